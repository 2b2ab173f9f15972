"""Spoken answers over the real engine: a chat model of random weights and the embedded voice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.inputs.speech import SpeechInput
from izwi_api.services.chat.cascade import AudioPiece, SpokenAnswer, Voice, open_spoken_answer
from izwi_api.services.models.served import ServedModels
from izwi_api.services.speech.synthesis import open_speech
from tests.api.scripted_chat import ScriptedRegistry
from tests.models.tiny_chat import write_tiny_chat

TTS = "izwi-tiny-tts"
ASK = SpeechInput("", voice="amber", seed=3)
TEXT = "The train leaves at seven. It arrives at nine in the evening."


@pytest.fixture(scope="module")
def backend():
    return torch_backend("cpu", "float32")


@pytest.fixture(scope="module")
def registry(backend, tmp_path_factory) -> ScriptedRegistry:
    made = Registry(backend)
    made.load(TTS)
    made.load(str(write_tiny_chat(tmp_path_factory.mktemp("models") / "chat")))
    return ScriptedRegistry(made, "chat", lambda messages: messages[-1].content)


@pytest.fixture
async def engine(backend, registry) -> AsyncIterator[AsyncEngine]:
    # room for little more than one answer, so that a paused answer is evicted by the others
    config = EngineConfig(kv_bytes=29 * 98_304, host_bytes=0, max_running=2)
    made = AsyncEngine(Engine(registry.models, backend, config))
    made.start()
    yield made
    await made.stop()


async def answer(engine, registry, text=TEXT, asked: SpeechInput | None = ASK) -> SpokenAnswer:
    ask = ChatInput((ChatMessage(Role.USER, text),), seed=5)
    models = ServedModels(engine, registry)
    voice = None if asked is None else Voice(models.speech(TTS), asked)
    return await open_spoken_answer(models.chat("chat"), ask, voice)


async def read(spoken: SpokenAnswer) -> tuple[str, np.ndarray]:
    text, audio = "", [np.zeros(0, np.float32)]
    async for piece in spoken.pieces():
        if isinstance(piece, AudioPiece):
            audio.append(piece.pcm)
        else:
            text += piece.content
    return text, np.concatenate(audio)


async def say(engine, registry, seed: int) -> None:
    ask = SpeechInput(TEXT, voice="basil", seed=seed)
    speech = await open_speech(ServedModels(engine, registry).speech(TTS), ask)
    async for _ in speech.output():
        pass


def is_idle(engine: AsyncEngine) -> bool:
    return not any(load["running"] + load["paused"] for load in engine.load.values())


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 -- the engine's thread tells nobody
            await asyncio.sleep(0.005)


async def test_the_first_audio_is_sent_before_the_answer_is_complete(engine, registry):
    text, kinds = "", []
    spoken = await answer(engine, registry)
    async for piece in spoken.pieces():
        kinds.append(isinstance(piece, AudioPiece))
        text += "" if isinstance(piece, AudioPiece) else piece.content
    assert text == TEXT
    first_audio, last_text = kinds.index(True), len(kinds) - 1 - kinds[::-1].index(False)
    assert first_audio < last_text
    assert spoken.num_frames * 1920 > 2 * 24_000
    assert is_idle(engine)


async def test_text_alone(engine, registry):
    text, audio = await read(await answer(engine, registry, asked=None))
    assert (text, len(audio)) == (TEXT, 0)


@pytest.mark.parametrize("text", ["```\nx = 1\n```", "🎉", "---"])
async def test_unspeakable_text_is_returned_as_text(engine, registry, text):
    written, audio = await read(await answer(engine, registry, text))
    assert (written, len(audio)) == (text, 0)
    assert is_idle(engine)


async def test_marks_are_not_said(engine, registry):
    _, plain = await read(await answer(engine, registry, "The train is very late."))
    _, marked = await read(
        await answer(engine, registry, "The [train](http://a.b) is **very** late.")
    )
    np.testing.assert_array_equal(marked, plain)


@pytest.mark.slow  # tests/engine/test_pause.py pauses toy models in every way
@pytest.mark.parametrize(("pause_s", "evicted"), [(0.2, False), (2.0, False), (0.2, True)])
async def test_a_pause_does_not_change_the_audio(engine, registry, pause_s, evicted):
    text, undisturbed = await read(await answer(engine, registry))
    spoken, audio, written, num_pauses = await answer(engine, registry), [], "", 0
    async for piece in spoken.pieces():
        if isinstance(piece, AudioPiece):
            audio.append(piece.pcm)
        else:
            written += piece.content
        if len(audio) in (1, 5) and num_pauses < len(audio) // 4 + 1:
            num_pauses += 1
            spoken.pause()
            if evicted and num_pauses == 2:  # others need its places, and its pages
                await asyncio.gather(*(say(engine, registry, n) for n in range(2)))
            await asyncio.sleep(pause_s)
            spoken.resume()
    assert num_pauses == 2
    assert written == text
    np.testing.assert_array_equal(np.concatenate(audio), undisturbed)


async def test_a_paused_answer_takes_no_steps(engine, registry):
    spoken = await answer(engine, registry)
    pieces = spoken.pieces()
    while not isinstance(await anext(pieces), AudioPiece):
        pass
    spoken.pause()
    await until(lambda: all(load["running"] == 0 for load in engine.load.values()))
    assert sum(load["paused"] for load in engine.load.values()) >= 1
    await pieces.aclose()
    await until(lambda: is_idle(engine))


async def test_leaving_stops_both_models(engine, registry):
    spoken = await answer(engine, registry, TEXT * 6)
    pieces = spoken.pieces()
    while not isinstance(await anext(pieces), AudioPiece):
        pass
    before = {name: load["steps"] for name, load in engine.load.items()}
    await pieces.aclose()
    await until(lambda: is_idle(engine))
    for name, load in engine.load.items():
        assert load["steps"] <= before[name] + 4  # two, and those that ran before `before` was read
