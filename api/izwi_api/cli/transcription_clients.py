"""Transcription clients: the engine in this process, or a running server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, Self

from msgspec.structs import replace

from izwi.errors import EngineStopped
from izwi.inputs import TranscriptionInput
from izwi.request import Task
from izwi_api.cli.remote import Server, Upload
from izwi_api.cli.sound_files import SoundFile
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.services.context import Services
from izwi_api.services.decoding import InProcess
from izwi_api.services.transcribe import SAMPLE_RATE, Segment, open_transcription
from izwi_api.settings import read_settings

# Called with the share of a file that is transcribed, from 0 to 1.
ProgressCallback = Callable[[float], None]

# Sound that is decoded and not written down yet, over all files; one file may be longer alone.
_MAX_DECODED_S = 1200


@dataclass(frozen=True, slots=True)
class Transcript:
    """The transcript of a file.

    Attributes:
        language: The first one heard, empty if none was.
        token_ids: What the model emitted.
        segments: The pieces, with their times.
    """

    text: str
    language: str
    token_ids: list[int]
    segments: list[Segment]


class TranscriptionClient(Protocol):
    """Transcribes files; several calls may run at the same time."""

    async def hear(self, sound: SoundFile, report: ProgressCallback) -> Transcript:
        """Transcribe one, reporting progress where it is known.

        Raises InvalidAudio, TooLarge and other kinds of IzwiError.
        """
        ...


class LocalTranscriptionClient:
    """The engine of this process. The model is loaded when the first sound was decoded.

    So a lone file that cannot be read is told at once. Sounds are decoded one after the other and
    run in the engine together; the memory they take does not grow with their number.
    """

    def __init__(self, model: str, runtime: RuntimeOptions, ask: TranscriptionInput):
        """Write down as `ask` says; its samples are not looked at. Raises as `read_settings`."""
        self._model, self._runtime, self._ask = model, runtime, ask
        self._settings = read_settings(os.environ)
        self._decoder, self._decoding = InProcess(self._settings.home), asyncio.Lock()
        self._room = _Room(_MAX_DECODED_S * SAMPLE_RATE)
        self._stack = AsyncExitStack()
        self._services: Services | None = None

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the engine."""
        await self._stack.aclose()

    async def hear(self, sound: SoundFile, report: ProgressCallback) -> Transcript:
        """Write one down; raises as `TranscriptionClient`."""
        async with AsyncExitStack() as taken:
            async with self._decoding:
                content = await asyncio.to_thread(sound.read)
                limits = self._settings.upload_limits
                samples = await self._decoder.spool(content, SAMPLE_RATE, limits)
                taken.enter_context(samples)
                del content
                services = await self._open_services()
                await taken.enter_async_context(self._room.taken(len(samples)))
            name = services.registry.names()[0]
            ask = replace(self._ask, samples=samples)
            detects_speech = self._settings.detects_speech
            result = await open_transcription(
                services.engine, services.registry, name, ask, detects_speech=detects_speech
            )
            async with aclosing(result.deltas()) as deltas:
                async for _ in deltas:
                    report(result.segments[-1].end_s / result.duration_s)
        return Transcript(result.text, result.language, result.token_ids, result.segments)

    async def _open_services(self) -> Services:
        if self._services is None:
            # torch, which a server's asker can spare
            from izwi_api.serve.local_services import running_services

            opened = running_services([self._model], self._runtime)
            self._services = await self._stack.enter_async_context(opened)
        return self._services


class RemoteTranscriptionClient:
    """A running server. Files are sent as they are."""

    def __init__(self, server: Server, model: str | None, language: str | None, prompt: str):
        self._server, self._model = server, model
        self._fields = {
            "language": language,
            "prompt": prompt or None,
            "response_format": "verbose_json",
            "stream": "true",
        }
        self._name: str | None = None

    async def hear(self, sound: SoundFile, report: ProgressCallback | None = None) -> Transcript:
        """Transcribe one; raises as the protocol, and EngineStopped where no server responds."""
        content = await asyncio.to_thread(sound.read)
        if self._name is None:
            self._name = await self._server.model(Task.TRANSCRIPTION, self._model)
        upload = Upload("file", f"sound{sound.within.suffix}", content)
        fields = {"model": self._name, **self._fields}
        answer: dict[str, Any] = {}
        path = "/v1/audio/transcriptions"
        async with aclosing(self._server.form_events(path, fields, upload)) as events:
            async for answer in events:
                if report is not None and answer.get("type") == "transcript.text.segment":
                    report(answer["end"] / answer["duration"])
        try:
            # Names of languages come in small letters, as Whisper writes them.
            language = str(answer["language"]).title()
            segments = [
                Segment(
                    start_s=float(segment["start"]),
                    end_s=float(segment["end"]),
                    text=str(segment["text"]),
                    language=language,
                    token_ids=tuple(int(token) for token in segment["tokens"]),
                )
                for segment in answer["segments"]
            ]
            text = str(answer["text"])
        except (KeyError, TypeError, ValueError) as error:
            raise EngineStopped(f"{self._server.url} gave no transcription") from error
        return Transcript(text, language, [t for s in segments for t in s.token_ids], segments)


class _Room:
    """Room for so much at a time; what is larger than all of it waits until it is alone."""

    def __init__(self, amount: int):
        self._amount = self._free = amount
        self._change = asyncio.Condition()

    @asynccontextmanager
    async def taken(self, amount: int) -> AsyncGenerator[None]:
        """Wait for room, and hold it until the block ends."""
        amount = min(amount, self._amount)
        async with self._change:
            await self._change.wait_for(lambda: self._free >= amount)
            self._free -= amount
        try:
            yield
        finally:
            async with self._change:
                self._free += amount
                self._change.notify_all()
