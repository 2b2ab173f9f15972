"""Say a text: cut it, ask the engine for every piece at once, hand the sound on in order.

Knows no HTTP: the web and the command line both speak through here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol
from uuid import uuid4

from izwi.audio.encode import StreamEncoder
from izwi.audio.tempo import StreamTempo
from izwi.errors import InvalidRequest
from izwi.model import SpeechModel
from izwi.request import Chunk, Request, SpeechInput
from izwi_api.door import Engine, Registry, Stream, chunks_of

_SEED_RANGE = 1 << 63


class Sound(Protocol):
    """Speech under way, of a text that is there or of one that is still being written."""

    sample_rate: int

    def chunks(self) -> AsyncGenerator[Chunk]:
        """Yield the chunks of all pieces in order."""
        ...


class Speech:
    """The sound of one text while it is made. Whoever leaves must `abort`.

    Attributes:
        sample_rate: Of the sound, in Hz.
        num_prompt_positions: What the engine read, for the bill.
        num_frames: What it has made so far.
        texts: Its pieces, in order.
    """

    def __init__(
        self,
        texts: Sequence[str],
        requests: Sequence[Request],
        streams: Sequence[Stream],
        sample_rate: int,
    ):
        self.texts, self.sample_rate = texts, sample_rate
        self.num_prompt_positions = sum(request.prompt.num_positions for request in requests)
        self.num_frames = 0
        self._streams = streams

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """Yield the chunks of all pieces in order; when left early, nothing goes on running.

        Raises:
            IzwiError: A piece failed.
        """
        try:
            for stream in self._streams:
                async for chunk in chunks_of(stream):
                    self.num_frames += len(chunk.entries)
                    yield chunk
        finally:
            self.abort()

    def abort(self) -> None:
        """Stop every piece that still runs."""
        for stream in self._streams:
            stream.abort()


async def open_speech(
    engine: Engine, registry: Registry, model_name: str, ask: SpeechInput, *, streams: bool = True
) -> Speech:
    """Start to say a text.

    Args:
        engine: Which makes the sound.
        registry: Where the model is found.
        model_name: Who speaks.
        ask: What is said, and how.
        streams: Somebody listens while it is made; otherwise it is background work.

    Raises:
        ModelNotFound: No such model.
        InvalidRequest: The text, or what was asked of it, cannot be said.
        Overloaded: The engine's queue is full; nothing was started.
    """
    model = registry.speech(model_name)
    texts, requests = await asyncio.to_thread(_prepare, model, model_name, ask, streams)
    return Speech(texts, requests, engine.submit_all(requests), model.sample_rate)


async def encoded_sound(
    speech: Sound, encoder: StreamEncoder, speed: float = 1.0
) -> AsyncGenerator[bytes]:
    """Yield a speech as the bytes of a file, as soon as there are any.

    Raises:
        IzwiError: A piece failed; the bytes so far are not a whole file.
    """
    tempo = StreamTempo(speech.sample_rate, speed)
    async with aclosing(speech.chunks()) as chunks:
        async for chunk in chunks:
            if chunk.pcm is None or chunk.pcm.size == 0:
                continue
            content = encoder.write(tempo.write(chunk.pcm))
            if content:
                yield content
    content = encoder.write(tempo.finish()) + encoder.finish()
    if content:
        yield content


def new_speech_id() -> str:
    """Name a speech; its pieces are `{id}-{number}`, and they are heard one after the other."""
    return f"speech-{uuid4().hex}"


def piece_seed(seed: int, index: int) -> int:
    """Seed of a piece: equal noise in every piece would repeat an unlucky pick.

    The first piece keeps the caller's seed, whatever its sign.
    """
    return seed if index == 0 else (seed + index) % _SEED_RANGE


def _prepare(
    model: SpeechModel, model_name: str, ask: SpeechInput, streams: bool
) -> tuple[list[str], list[Request]]:
    if not ask.text.strip():
        raise InvalidRequest("there is no text to say", param="input")
    speech_id = new_speech_id()
    texts, requests = model.split_text(ask.text), []
    for index, text in enumerate(texts):
        wish = replace(ask, text=text, seed=piece_seed(ask.seed, index))
        request = model.prepare_speech(f"{speech_id}-{index}", model_name, wish)
        requests.append(replace(request, listener=speech_id, streams=streams))
    return texts, requests
