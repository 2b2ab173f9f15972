"""Services for sessions in virtual time: the embedded voice and transcriber, a scripted chat."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import soundfile
from msgspec.structs import replace

from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.speech import SpeechInput
from izwi_api.realtime.answering import response_maker
from izwi_api.realtime.protocol.settings import RealtimeSettings, TranscriptionSettings, updated
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModels
from izwi_api.settings import Settings
from izwi_api.voices.store import VoiceStore
from tests.api.scripted_chat import ScriptedRegistry
from tests.models.tiny_chat import write_tiny_chat
from tests.realtime.phone import Phone, at_24_khz, call
from tests.realtime.virtual import STEP_S, SteppedEngine, run_virtually

TTS = "izwi-tiny-tts"
SOUNDS = Path(__file__).parent / "sounds"
ANSWER = "The train leaves at seven in the morning."
# Passes of the event loop until a task that is cancelled, and those that it waits for, have ended.
_PASSES = 10


class World:
    """What sessions share; each gets an engine of its own, and another seed only when asked."""

    def __init__(self, home, monkeypatch):
        self.home = home
        self.backend = torch_backend("cpu", "float32")
        self.models = Registry(self.backend)
        for name in (TTS, "izwi-tiny-asr", str(write_tiny_chat(home / "chat"))):
            self.models.load(name)
        self.answer, self.prompts = ANSWER, []
        self.config = EngineConfig(kv_bytes=1 << 26)
        self.registry = ScriptedRegistry(self.models, "chat", self._write)
        monkeypatch.setattr(response_maker, "secrets", SimpleNamespace(randbits=lambda _: 7))

    def _write(self, messages):
        self.prompts.append(messages)
        return self.answer

    def engine(self, clock):
        return Engine(self.models.models, self.backend, self.config, clock)

    def speech(self, name, seed):
        """A request for speech that has nothing to do with the session."""
        ask = SpeechInput("The garden is behind the house.", "amber", seed=seed, temperature=1.0)
        request = self.models.speech(TTS).prepare_speech(name, TTS, ask)
        return replace(request, stop_ids=(), max_entries=40)

    def talk(self, script, *, session=None, limits=None, step_s=STEP_S, server=None, **phone):
        """Hold a session in virtual time; `script(phone, engine)` is what the caller does.

        Args:
            session: What the client sets.
            server: Settings of the server, without its home.

        Returns:
            The phone, with all that happened.
        """
        self.prompts.clear()

        async def main():
            before = asyncio.all_tasks()
            engine = SteppedEngine(self.engine, step_s)
            settings = Settings(home=self.home, **(server or {}))
            made, voices = Phone(**phone), VoiceStore(self.home)
            count = made.prepared.append
            models = ServedModels(engine, self.registry)
            services = Services(engine, models, settings, voices, count_prepared=count)
            reports = {"report_answer": made.figures.append, "count_turn": made.turns.append}
            services = dataclasses.replace(services, **reports)
            only_transcribes = (session or {}).get("type") == "transcription"
            first = TranscriptionSettings() if only_transcribes else RealtimeSettings(model="chat")
            asked = updated(first, session or {})
            await call(services, asked, made, script(made, engine), limits)
            for _ in range(_PASSES):  # what was cancelled ends
                await asyncio.sleep(0)
            made.num_left = len(engine.live)
            made.tasks_left = asyncio.all_tasks() - before - {engine.stepping}
            made.paused = engine.paused
            await engine.stop()
            return made

        return run_virtually(main())


_known = {}


def recorded(name, level_db=0.0):
    """A recorded sound at 24 kHz, at a level in dB over its own."""
    if name not in _known:
        _known[name] = at_24_khz(*soundfile.read(SOUNDS / f"{name}.opus", dtype="float32"))
    return _known[name] * np.float32(10 ** (level_db / 20))


@contextmanager
def spoken_by(sounds):
    """Let `recorded` return other sounds, by name, for a while."""
    before = dict(_known)
    _known.update(sounds)
    try:
        yield
    finally:
        _known.clear()
        _known.update(before)


def rms(samples):
    return float(np.sqrt(np.mean(np.square(samples))))
