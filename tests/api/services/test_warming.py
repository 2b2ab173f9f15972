"""What is listed in a file is computed on each engine when it starts, in the background."""

from __future__ import annotations

import asyncio

import pytest

from izwi.backends.choice import open_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi.errors import InvalidRequest
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi_api.schemas.warm_file import WarmFile, WarmPrompt, WarmVoice, read_warm_file
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModels
from izwi_api.services.warming import Warming
from izwi_api.settings import Settings
from izwi_api.voices.store import VoiceStore
from tests.api.conftest import FakeChat, FakeEngine, FakeRegistry, FakeSpeech

SYSTEM = "You are a helpful voice assistant. Answer in one short sentence."
FILE = f"""
[[prompt]]
model = "chat"
system = "{SYSTEM}"

[[voice]]
model = "tts"
name = "Bob"
"""
WANTED = WarmFile((WarmPrompt("chat", SYSTEM),), (WarmVoice("tts", "Bob"),))


def services_of(engine, registry, folder) -> Services:
    models = ServedModels(engine, registry)
    return Services(engine, models, Settings(home=folder), VoiceStore(folder / "voices"))


def test_a_file_lists_prompts_and_voices(tmp_path):
    path = tmp_path / "warm.toml"
    path.write_text(FILE)
    assert read_warm_file(path) == WANTED


@pytest.mark.parametrize(
    "text",
    [
        "[[prompt]]\nmodel = 'chat'",
        "[[prompt]]\nmodel = 'chat'\nsystem = ''",
        "[[voice]]\nmodel = 'tts'\nname = 'a'\nspeed = 2",
        "[[prompts]]\nmodel = 'chat'\nsystem = 'a'",
        "[[prompt",
    ],
)
def test_a_file_with_something_else_is_refused(tmp_path, text):
    path = tmp_path / "warm.toml"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match="--warm"):
        read_warm_file(path)
    with pytest.raises(InvalidRequest, match="--warm"):
        read_warm_file(tmp_path / "missing.toml")


async def test_prompts_and_voices_run_on_the_engine_that_starts(tmp_path):
    chat, tts, elsewhere, engine = FakeChat(), FakeSpeech(), FakeEngine(), FakeEngine()
    services = services_of(elsewhere, FakeRegistry(chat=chat, tts=tts), tmp_path)
    warming = Warming(services, WANTED)
    warming.start(engine)
    await asyncio.wait_for(asyncio.gather(*warming._tasks), 60)
    assert (engine.num_submitted, elsewhere.num_submitted) == (2, 0)
    assert chat.asked[0].messages[0] == ChatMessage(Role.SYSTEM, SYSTEM)
    assert tts.asked[0].voice == "Bob"
    await warming.stop()


async def test_what_cannot_be_computed_does_not_stop_the_rest(tmp_path, caplog):
    services = services_of(FakeEngine(), FakeRegistry(tts=FakeSpeech()), tmp_path)
    wanted = WarmFile(WANTED.prompt, (WarmVoice("tts", "nobody"), WarmVoice("tts", "Bob")))
    assert await Warming(services, wanted).warm(FakeEngine()) == 1
    assert caplog.text.count("could not warm") == 2


async def test_warming_ends_with_the_server(tmp_path):
    engine = FakeEngine()
    engine.holds_at = 0  # it never answers
    warming = Warming(services_of(engine, FakeRegistry(tts=FakeSpeech()), tmp_path), WANTED)
    warming.start(engine)
    while not engine.live:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await warming.stop()
    assert not engine.live


@pytest.mark.slow
async def test_a_conversation_finds_the_warmed_system_prompt(tmp_path):
    backend = open_backend("cpu", "float32")
    registry = Registry(backend)
    registry.load("izwi-tiny-chat")
    engine = AsyncEngine(Engine(registry.models, backend, EngineConfig()))
    engine.start()
    services = services_of(engine, registry, tmp_path)
    wanted = WarmFile((WarmPrompt("izwi-tiny-chat", SYSTEM),))
    assert await Warming(services, wanted).warm(engine) == 1
    model, cached = services.registry.chat("izwi-tiny-chat"), []
    for number, system in enumerate((SYSTEM, f"Now {SYSTEM}")):
        turns = ChatMessage(Role.SYSTEM, system), ChatMessage(Role.USER, "What is two plus two?")
        ask = ChatInput(turns, max_new_tokens=2)
        request = model.frontend.prepare_chat(f"r{number}", model.name, ask)
        chunks = [chunk async for chunk in model.submit(request)]
        cached.append(chunks[-1].timing.num_cached)
    await engine.stop()
    assert cached[0] >= 16
    assert cached[0] > cached[1]
