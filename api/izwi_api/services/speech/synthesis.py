"""Speak a text: split it, keep a few pieces submitted, and return their audio in order.

Without HTTP: endpoints and live sessions use it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol
from uuid import uuid4

import numpy as np
from msgspec.structs import replace

from izwi.audio.encode import StreamEncoder
from izwi.audio.tempo import StreamTempo
from izwi.engine_client.protocol import Answer
from izwi.errors import InvalidRequest, Overloaded
from izwi.inputs.speech import SpeechInput
from izwi.model.frontend import AudioEntries, SpeechFrontend
from izwi.request.request import Chunk, Request
from izwi_api.services.context import chunks_of, frames_of
from izwi_api.services.generation import ChargedGeneration, Source
from izwi_api.services.models.served import ServedModel
from izwi_api.services.speech.spoken_text import (
    MAX_PAUSES_S,
    Pause,
    Pronunciations,
    Rate,
    SpokenPart,
    spoken_parts,
)
from izwi_api.usage.metering import Charge

# Pieces of a text that are submitted at a time, including the one being read. Each lasts some
# seconds, which is enough for playback without gaps; more would only delay other callers.
PIECES_AHEAD = 8
_SEED_RANGE = 1 << 63
_MORE_CHARACTERS = 4096  # characters that pronunciations may add to a text


class AudioSource(Protocol):
    """Speech in progress, of a complete text or of one that is still being written."""

    sample_rate: int

    def output(self) -> AsyncGenerator[Chunk]:
        """Yield the chunks of all pieces in order."""
        ...


class Speech(ChargedGeneration):
    """The audio of a text while it is made.

    The first pieces are submitted at once. Each time that one has been read to its end, the next
    one is submitted. So a reader that reads nothing costs only the first ones, and a long text
    leaves room for other requests.

    Attributes:
        sample_rate: Sample rate of the audio, in Hz.
        num_prompt_positions: Prompt positions of all pieces, for usage.
        num_frames: Frames generated so far.
        texts: Its pieces, in order.
        audio_entries: Which entries of its chunks are frames of audio.
    """

    def __init__(
        self,
        model: ServedModel[SpeechFrontend],
        texts: Sequence[str],
        requests: Sequence[Request],
        pauses: Mapping[int, float],
        rates: Mapping[int, float],
        charge: Charge,
    ):
        """Submit the first pieces. Raises as `open_speech`.

        Args:
            model: The model that speaks.
            texts: The pieces, in order.
            requests: One for each piece.
            pauses: Seconds of silence before a piece, by its index; silence after the last piece
                has the index `len(texts)`.
            rates: How fast a piece is spoken, by its index; 1 for others.
            charge: For the whole text, so that a key without enough quota for it is refused before
                any audio.
        """
        super().__init__(charge)
        self.texts, self.sample_rate = texts, model.frontend.sample_rate
        self.audio_entries = model.frontend.audio_entries
        self._pauses, self._rates = pauses, rates
        self.num_prompt_positions = sum(request.prompt.num_positions for request in requests)
        self.num_frames = 0
        self._model = model
        self._answers: deque[Answer] = deque()  # submitted and not read to their ends
        self._later = deque(requests)
        self._num_read = 0
        # background work has no playback to run ahead of
        num_first = PIECES_AHEAD if requests[0].streams else len(requests)
        with charge.unless_refused():
            self._submit(num_first)

    def sources(self) -> Iterable[Source]:
        """Return the pieces that run."""
        return self._answers

    async def output(self) -> AsyncGenerator[Chunk]:
        """Yield the chunks of all pieces in order; leaving early aborts all of them.

        Raises:
            IzwiError: A piece failed.
        """
        with self.reading():
            for number in itertools.count():
                if number in self._pauses:
                    yield silence(self._pauses[number], self.sample_rate)
                if not self._answers:
                    break
                rate = self._rates.get(number)
                tempo = None if rate is None else StreamTempo(self.sample_rate, rate)
                async for chunk in chunks_of(self._answers[0]):
                    self.num_frames += len(frames_of(chunk, self.audio_entries))
                    if chunk.pcm is not None:
                        self._charge.count_audio(len(chunk.pcm), self.sample_rate)
                    yield chunk if tempo is None else _paced(chunk, tempo)
                self._answers.popleft()
                self._num_read += 1
                self._follow()

    def abort(self) -> None:
        """Abort all running pieces, and submit no more."""
        self._later.clear()
        super().abort()

    def refund_unread(self) -> None:
        """Refund the text of the pieces that were not read."""
        self._charge.refund(characters=sum(map(len, self.texts[self._num_read :])))

    def _follow(self) -> None:
        """Submit the next piece. Raises EngineStopped and Overloaded."""
        if not self._later:
            return
        try:
            self._submit(1)
        except Overloaded:  # all that was not read is refunded
            raise
        except BaseException:
            self._charge.refund(characters=len(self.texts[-len(self._later)]))
            raise

    def _submit(self, count: int) -> None:
        """Submit this many pieces, or those that are left."""
        requests = list(itertools.islice(self._later, count))
        started = self._model.submit_all(requests)
        for answer in started if self.is_paused else ():
            answer.pause()
        self._answers += started
        for _ in requests:
            self._later.popleft()


def _paced(chunk: Chunk, tempo: StreamTempo) -> Chunk:
    """Return a chunk of a piece with its audio faster or slower."""
    pcm = np.zeros(0, np.float32) if chunk.pcm is None else tempo.write(chunk.pcm)
    if chunk.reason is not None:
        pcm = np.concatenate([pcm, tempo.finish()])
    return replace(chunk, pcm=pcm)


class CollectedCodes:
    """A speech whose codes are collected, to be sent with its audio.

    Attributes:
        sample_rate: Sample rate of the audio, in Hz.
    """

    def __init__(self, speech: AudioSource, audio_entries: AudioEntries):
        self.sample_rate = speech.sample_rate
        self._speech, self._audio_entries = speech, audio_entries
        self._codes: list[list[int]] = []

    async def output(self) -> AsyncGenerator[Chunk]:
        """Yield the chunks; raises as those of the speech do."""
        async with aclosing(self._speech.output()) as chunks:
            async for chunk in chunks:
                self._codes += frames_of(chunk, self._audio_entries).tolist()
                yield chunk

    def pop_codes(self) -> list[list[int]]:
        """Return the codes since the last call: one list of codebook ids for each frame."""
        codes, self._codes = self._codes, []
        return codes


async def open_speech(
    model: ServedModel[SpeechFrontend],
    ask: SpeechInput | Sequence[SpokenPart],
    *,
    streams: bool = True,
    charged: bool = True,
) -> Speech:
    """Start to speak a text.

    Args:
        model: The speech model.
        ask: The text, and how to speak it; or several, each a text of its own, with pauses and
            rates between them.
        streams: The audio is played while it is made; otherwise it is background work.
        charged: Charge the text to the caller's quota.

    Raises:
        InvalidRequest: The text cannot be spoken as asked.
        QuotaExceeded: The caller's key has too few characters left; nothing was started.
        Overloaded: The engine's queue is full, or the predicted wait too long; nothing was started.
    """
    if streams:
        model.check_admission()
    parts = [ask] if isinstance(ask, SpeechInput) else ask
    texts, requests, pauses, rates = await asyncio.to_thread(_prepare, model, parts, streams)
    charge = Charge(characters=sum(map(len, texts)), is_free=not charged)
    return Speech(model, texts, requests, pauses, rates, charge)


def silence(seconds: float, sample_rate: int) -> Chunk:
    """Return a chunk of silence."""
    samples = np.zeros(round(seconds * sample_rate), np.float32)
    return Chunk("", np.zeros((0, 1), np.int64), pcm=samples)


async def encoded_audio(
    speech: AudioSource, encoder: StreamEncoder, speed: float = 1.0
) -> AsyncGenerator[bytes]:
    """Yield a speech as the bytes of an audio file, as they become available.

    Raises:
        IzwiError: A piece failed; the file is incomplete.
    """
    tempo = StreamTempo(speech.sample_rate, speed)
    async with aclosing(speech.output()) as chunks:
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
    """Return a new id of a speech; its pieces are `{id}-{number}`, played in order."""
    return f"speech-{uuid4().hex}"


def piece_seed(seed: int, index: int) -> int:
    """Return the seed of a piece: equal noise in every piece would repeat an unlucky draw.

    The first piece keeps the caller's seed, whatever its sign.
    """
    return seed if index == 0 else (seed + index) % _SEED_RANGE


def _prepare(
    model: ServedModel[SpeechFrontend], parts: Sequence[SpokenPart], streams: bool
) -> tuple[list[str], list[Request], dict[int, float], dict[int, float]]:
    speech_id = new_speech_id()
    pieces, pauses, rates = _split(model.frontend, parts)
    requests: list[Request] = []
    for index, piece in enumerate(pieces):
        wish = replace(piece, seed=piece_seed(piece.seed, index), pronunciations=None)
        request = model.frontend.prepare_speech(f"{speech_id}-{index}", model.name, wish)
        requests.append(replace(request, listener=speech_id, streams=streams, continues=index > 0))
    return [piece.text for piece in pieces], requests, pauses, rates


def _split(
    model: SpeechFrontend, parts: Sequence[SpokenPart]
) -> tuple[list[SpeechInput], dict[int, float], dict[int, float]]:
    """Return the pieces of a text, the seconds of silence before each, and rates, by index.

    Raises:
        InvalidRequest: Nothing in it can be spoken, or a pronunciation is invalid.
    """
    pieces: list[SpeechInput] = []
    pauses: dict[int, float] = {}
    rates: dict[int, float] = {}
    rate = 1.0
    unsayable: InvalidRequest | None = None
    for part in _spoken(parts):
        if isinstance(part, Pause):
            pauses[len(pieces)] = pauses.get(len(pieces), 0.0) + part.seconds
        elif isinstance(part, Rate):
            rate = part.factor
        elif part.text.strip():
            num_before = len(pieces)
            try:
                pieces += [replace(part, text=text) for text in model.split_text(part.text)]
            except InvalidRequest as error:  # nothing between two pauses can be spoken
                unsayable = unsayable or error
            if rate != 1.0:
                rates |= dict.fromkeys(range(num_before, len(pieces)), rate)
    if sum(pauses.values()) > MAX_PAUSES_S:
        raise InvalidRequest(
            f"the pauses of a text last at most {MAX_PAUSES_S:g} s together", param="input"
        )
    if not pieces:
        raise unsayable or InvalidRequest("there is no text to say", param="input")
    return pieces, pauses, rates


def _spoken(parts: Sequence[SpokenPart]) -> list[SpokenPart]:
    """Return the parts with words replaced, cut at the pauses in their texts.

    Raises:
        InvalidRequest: A pronunciation is invalid or makes the text too long, or a pause is.
    """
    spoken: list[SpokenPart] = []
    num_written = num_spoken = 0
    for part in parts:
        if isinstance(part, Pause | Rate):
            spoken.append(part)
            continue
        num_written += len(part.text)
        for said in spoken_parts(part.text, Pronunciations(part.pronunciations)):
            if isinstance(said, Pause):
                spoken.append(said)
            else:
                num_spoken += len(said)
                spoken.append(replace(part, text=said))
    if num_spoken > 2 * num_written + _MORE_CHARACTERS:
        raise InvalidRequest(
            f"pronunciations make the text {num_spoken} characters long instead "
            f"of {num_written}; at most twice as many plus {_MORE_CHARACTERS} are "
            "allowed",
            param="pronunciations",
        )
    return spoken
