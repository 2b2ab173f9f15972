"""A live server: the embedded voice and transcriber, and a chat model whose words tests choose."""

from __future__ import annotations

import asyncio
import base64
from types import SimpleNamespace

import httpx
import numpy as np
import openai
import pytest
import soxr
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from izwi.audio.pcm import from_s16le, to_s16le
from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi_api.realtime.answering import response_maker
from izwi_api.serve.app import create_app
from izwi_api.settings import Settings
from tests.api.conftest import listening
from tests.api.scripted_chat import ScriptedRegistry
from tests.models.tiny_chat import write_tiny_chat

TTS = "izwi-tiny-tts"
ANSWER = "The train leaves at seven in the morning."
# for what is done while an answer is played: a busy machine may be late by seconds
LONG_ANSWER = f"{ANSWER} It arrives at nine in the evening."
_SERVER_EVENT = TypeAdapter(RealtimeServerEvent)


@pytest.fixture(scope="package")
def served(tmp_path_factory):
    """A server, and what it is made of; `script` says what the chat model answers."""
    home = tmp_path_factory.mktemp("realtime")
    backend = torch_backend("cpu", "float32")
    registry = Registry(backend)
    for name in (TTS, "izwi-tiny-asr", str(write_tiny_chat(home / "chat"))):
        registry.load(name)
    engine = AsyncEngine(Engine(registry.models, backend, EngineConfig(kv_bytes=1 << 26)))
    world = SimpleNamespace(engine=engine, answer=ANSWER, prompts=[])

    def write(messages):
        world.prompts.append(messages)
        return world.answer

    world.registry = ScriptedRegistry(registry, "chat", write)
    app = create_app(engine, world.registry, Settings(home=home, apis=("twilio", "vonage")))
    with pytest.MonkeyPatch.context() as patch, listening(app, ws="auto") as port:
        # the same answers in every session, so that they can be compared
        patch.setattr(response_maker, "secrets", SimpleNamespace(randbits=lambda _: 7))
        world.port, world.url = port, f"http://127.0.0.1:{port}/v1"
        yield world


@pytest.fixture(scope="package")
def said(served):
    """Say a text with another voice than the answers': samples at 24 kHz, cached."""
    known = {}

    def say(text, voice="felix"):
        if (text, voice) not in known:
            ask = {"model": TTS, "voice": voice, "input": text, "response_format": "pcm"}
            spoken = httpx.post(f"{served.url}/audio/speech", json=ask | {"seed": 1}, timeout=90)
            assert spoken.status_code == 200, spoken.text
            known[text, voice] = from_s16le(spoken.content)
        return known[text, voice]

    return say


@pytest.fixture
def client(served):
    served.answer = ANSWER
    served.prompts.clear()
    return openai.AsyncOpenAI(base_url=served.url, api_key="none", max_retries=0)


class Talk:
    """A connection of openai-python, and a log of all that came: each event checked strictly."""

    def __init__(self, connection):
        self.connection = connection
        self.events = []

    async def next(self):
        raw = await asyncio.wait_for(self.connection.recv_bytes(), 90)
        event = _SERVER_EVENT.validate_json(raw, strict=True)
        assert event.event_id
        self.events.append(event)
        return event

    async def until(self, kind, **fields):
        """Wait for the next event of a kind, and of these values."""
        while True:
            event = await self.next()
            if event.type == kind and all(getattr(event, k) == v for k, v in fields.items()):
                return event

    async def speak(self, samples, rate=24_000):
        """Send audio, 16-bit PCM at 24 kHz, as fast as the server accepts it."""
        if rate != 24_000:
            samples = soxr.resample(samples, rate, 24_000)
        data = to_s16le(np.asarray(samples, np.float32))
        for start in range(0, len(data), 4800):
            audio = base64.b64encode(data[start : start + 4800]).decode()
            await self.connection.input_audio_buffer.append(audio=audio)

    async def be_silent(self, seconds):
        await self.speak(np.zeros(int(24_000 * seconds), np.float32))

    def types(self):
        """Kinds of events, each run of equal ones once."""
        kinds = [event.type for event in self.events]
        return [kind for n, kind in enumerate(kinds) if n == 0 or kinds[n - 1] != kind]

    def audio(self, response_id=None):
        """All audio of a response, or of all of them."""
        return b"".join(
            base64.b64decode(event.delta)
            for event in self.events
            if event.type == "response.output_audio.delta"
            and response_id in (None, event.response_id)
        )
