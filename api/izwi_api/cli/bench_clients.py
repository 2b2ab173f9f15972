"""Bench clients: the engine in this process, or a running server."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from izwi.arrays import Float32
from izwi.errors import ModelNotFound
from izwi.inputs import SpeechInput, TranscriptionInput
from izwi.request import Task
from izwi_api.cli.remote import Server, Upload
from izwi_api.services.transcribe import SAMPLE_RATE, open_transcription

if TYPE_CHECKING:
    from izwi_api.cli.sound_out import Speech
    from izwi_api.services.context import Services

# A checkpoint that was not trained never ends a sentence: about 12 s, at 12.5 frames a second.
_MAX_FRAMES = 150


class BenchClient(Protocol):
    """Synthesises and transcribes. Both raise IzwiError.

    Attributes:
        voice: The model that says what others are to write down.
        models: Those that are to be measured, with what they do.
    """

    voice: str
    models: list[tuple[str, Task]]

    async def say(self, model: str, text: str, seed: int) -> Speech:
        """Start to synthesise a text."""
        ...

    async def write_down(self, model: str, samples: Float32) -> None:
        """Transcribe to the end.

        Args:
            model: Which one does it.
            samples: (n,) at SAMPLE_RATE.
        """
        ...


class LocalBenchClient:
    """The engine of this process.

    Args:
        services: Open.
        num_asked: So many of its models, the first ones, are to be measured.
        voice: As in `BenchClient`.
    """

    def __init__(self, services: Services, num_asked: int, voice: str):
        self._services, self.voice = services, voice
        names = services.registry.names()[:num_asked]
        self.models = [(name, services.registry.model(name).task) for name in names]

    async def say(self, model: str, text: str, seed: int) -> Speech:
        """Start to synthesise a text."""
        from izwi_api.services.speech import open_speech

        ask = SpeechInput(text, seed=seed, max_new_tokens=_MAX_FRAMES)
        return await open_speech(self._services.engine, self._services.registry, model, ask)

    async def write_down(self, model: str, samples: Float32) -> None:
        """Transcribe to the end."""
        ask = TranscriptionInput(samples)
        result = await open_transcription(
            self._services.engine, self._services.registry, model, ask
        )
        await result.finish()


class RemoteBenchClient:
    """A running server, HTTP included. Made by `asked`."""

    def __init__(self, server: Server, models: list[tuple[str, Task]], voice: str):
        self._server, self.models, self.voice = server, models, voice
        self._speakers: dict[str, str | None] = {}

    @classmethod
    async def asked(cls, server: Server, names: Sequence[str] | None) -> RemoteBenchClient:
        """Ask a server what it serves.

        Args:
            server: Which.
            names: Models to measure; None: all that speak or write down.

        Raises:
            ModelNotFound: One of them is not served there, or nothing there speaks.
            IzwiError: As `Server`.
        """
        entries = (await server.get("/v1/models")).get("data", [])
        tasks = {str(entry["id"]): Task(entry["task"]) for entry in entries}
        for name in names or ():
            if name not in tasks:
                raise ModelNotFound(f"{server.url} serves no model {name!r}", param="model")
        client = (Task.SPEECH, Task.TRANSCRIPTION)
        wanted = names or [name for name, task in tasks.items() if task in client]
        voice = await server.model(Task.SPEECH, None)
        return cls(server, [(name, tasks[name]) for name in wanted], voice)

    async def say(self, model: str, text: str, seed: int) -> Speech:
        """Start to synthesise a text."""
        if model not in self._speakers:
            self._speakers[model] = await self._server.first_speaker(model)
        ask = {"model": model, "input": text, "voice": self._speakers[model], "seed": seed}
        return await self._server.speech(ask | {"max_new_tokens": _MAX_FRAMES})

    async def write_down(self, model: str, samples: Float32) -> None:
        """Transcribe to the end."""
        import soundfile

        file = io.BytesIO()
        soundfile.write(file, samples, SAMPLE_RATE, format="WAV", subtype="PCM_16")
        upload = Upload("file", "sound.wav", file.getvalue())
        await self._server.post_form("/v1/audio/transcriptions", {"model": model}, upload)
