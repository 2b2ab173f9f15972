"""Speech with word times, for `izwi say --words`: made in this process or by a server."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np

from izwi.audio.encode import PCM_RATE
from izwi.errors import EngineStopped
from izwi.request import Chunk
from izwi_api.cli.sound_out import whole_file
from izwi_api.schemas.alignment import word_json

if TYPE_CHECKING:
    from izwi_api.cli.remote import Server
    from izwi_api.services.timed_speech import TimedSpeech


class LocalTimedSpeech:
    """A speech made in this process; its last chunk comes when every word has its time.

    Attributes:
        sample_rate: Of the sound, in Hz.
        words: As JSON has them; complete when the sound is.
    """

    def __init__(self, timed: TimedSpeech):
        self.sample_rate = timed.sample_rate
        self.words: list[dict[str, object]] = []
        self._timed = timed

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """Yield the sound. Raises IzwiError, as the speech and the alignment do."""
        async with aclosing(self._timed.chunks()) as chunks:
            async for chunk in chunks:
                yield chunk
        self.words += map(word_json, await self._timed.rest())

    def abort(self) -> None:
        """Stop what still runs."""
        self._timed.abort()


class RemoteTimedSpeech:
    """A speech that a server makes.

    Attributes:
        sample_rate: Of the sound, in Hz.
        words: As JSON has them; complete when the sound is.
    """

    sample_rate = PCM_RATE

    def __init__(self, server: Server, fields: Mapping[str, object]):
        self.words: list[dict[str, object]] = []
        asked = {"response_format": "pcm", "stream_format": "sse", "word_timestamps": True}
        given = {key: value for key, value in fields.items() if value is not None}
        self._events = server.events("/v1/audio/speech", given | asked)
        self._name = f"remote-{uuid4().hex}"

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """Yield the sound; the chunks have no codes. Raises IzwiError."""
        nothing = np.zeros((0, 0), np.int64)
        is_whole = False
        async with aclosing(self._events):
            async for event in self._events:
                if event.get("type") == "speech.audio.words":
                    self.words += event["words"]
                elif event.get("type") == "speech.audio.delta":
                    yield Chunk(self._name, nothing, pcm=_samples(event["audio"]))
                is_whole = event.get("type") == "speech.audio.done"
        if not is_whole:
            raise EngineStopped("the server broke off")

    def abort(self) -> None:
        """Nothing more: who leaves `chunks` leaves the server."""


def write_words(path: Path, words: list[dict[str, object]], seconds: float) -> None:
    """Write when each word is said as JSON. Raises OSError."""
    reported = {"duration": round(seconds, 3), "words": words}
    with whole_file(path) as file:
        file.write(json.dumps(reported, ensure_ascii=False, indent=1).encode() + b"\n")


def _samples(audio: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    try:
        content = base64.b64decode(audio, validate=True)
        # divided by what the server multiplied with, so that its samples come back exactly
        return np.frombuffer(content, "<i2").astype(np.float32) / np.float32(32767.0)
    except (binascii.Error, ValueError) as error:
        raise EngineStopped("the server sent no sound") from error
