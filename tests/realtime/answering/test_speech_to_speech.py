"""Live sessions with a speech-to-speech model, over random weights."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import openai
import pytest

from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi.inputs.conversation import AnswerContent, AudioContent
from izwi_api.realtime.answering import response_maker
from izwi_api.realtime.answering.speech_to_speech import played_entries, spoken_turns
from izwi_api.realtime.protocol.items import Content, Item
from izwi_api.serve.app import create_app
from izwi_api.settings import Settings
from tests.api.conftest import listening
from tests.models.tiny_lfm2_audio import CALM, write_tiny_lfm2_audio
from tests.realtime.conftest import Talk
from tests.realtime.hearing.test_vad import voice
from tests.realtime.test_conversations import talking as talking_to

MODEL = "s2s"
ENTRIES = 72  # 3.8 s
LONG = {"max_output_tokens": ENTRIES}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    home = tmp_path_factory.mktemp("s2s")
    backend = torch_backend("cpu", "float32")
    registry = Registry(backend)
    registry.load(str(write_tiny_lfm2_audio(home / MODEL, loudness=CALM)))
    engine = AsyncEngine(Engine(registry.models, backend, EngineConfig(kv_bytes=1 << 24)))
    app = create_app(engine, registry, Settings(home=home))
    made = SimpleNamespace(engine=engine, asked=[])
    open_conversation = response_maker.open_conversation

    async def seen(model, ask):
        made.asked.append(ask)
        return await open_conversation(model, ask)

    with pytest.MonkeyPatch.context() as patch, listening(app, ws="auto") as port:
        patch.setattr(response_maker, "secrets", SimpleNamespace(randbits=lambda _: 7))
        patch.setattr(response_maker, "open_conversation", seen)
        made.url = f"http://127.0.0.1:{port}/v1"
        yield made


@pytest.fixture
def client(world):
    world.asked.clear()
    return openai.AsyncOpenAI(base_url=world.url, api_key="none", max_retries=0)


def talking(client, **session):
    return talking_to(client, MODEL, **LONG, **session)


QUESTION = voice(31, 1.2)


async def ask(talk):
    await talk.speak(QUESTION, 16_000)
    await talk.be_silent(0.8)


async def test_a_speech_to_speech_model_answers_and_keeps_the_conversation(client, world):
    async with talking(client, instructions="Be short.") as talk:
        await ask(talk)
        done = await talk.until("response.done")
        assert done.response.status == "incomplete"
        assert done.response.status_details.reason == "max_output_tokens"
        audio = talk.audio()
        assert len(audio) > 48_000
        usage = done.response.usage.output_token_details
        assert usage.text_tokens + usage.audio_tokens == ENTRIES
        await ask(talk)
        await talk.until("response.done")
    first, second = world.asked[0], world.asked[-1]
    assert first.instructions == "Be short."
    assert [turn.role for turn in first.turns] == ["user"]
    (heard,) = first.turns[0].parts
    assert isinstance(heard, AudioContent)
    assert 1.0 < len(heard.samples) / 16_000 < 3.0
    assert [turn.role for turn in second.turns] == ["user", "assistant", "user"]
    (said,) = second.turns[1].parts
    assert isinstance(said, AnswerContent)
    # all that was played when the user spoke
    assert ENTRIES - 10 < len(said.entries) <= ENTRIES


@pytest.mark.slow  # test_conversations.py has it with a cascade
async def test_after_a_cough_the_answer_continues_at_the_same_sample(client, world):
    async with talking(client) as talk:
        await ask(talk)
        await talk.until("response.done")
        expected = talk.audio()
    async with talking(client) as talk:
        await ask(talk)
        for _ in range(3):
            await talk.until("response.output_audio.delta")
        await talk.speak(voice(33, 1.0)[4000:7200], 16_000)
        async with asyncio.timeout(60):
            while not sum(load["paused"] for load in world.engine.load.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await talk.be_silent(1.0)
        await talk.until("response.done")
    kinds = [event.type for event in talk.events]
    assert kinds.count("input_audio_buffer.speech_started") == 1, "the question alone"
    assert talk.audio() == expected


async def test_an_interruption_truncates_the_answer_to_the_played_part(client, world):
    async with talking(client) as talk:
        await ask(talk)
        for _ in range(30):
            await talk.until("response.output_audio.delta")
        await talk.speak(QUESTION, 16_000)
        done = await talk.until("response.done")
        assert done.response.status_details.reason == "turn_detected"
        sent_ms = len(talk.audio(done.response.id)) / 48
        await talk.be_silent(0.8)
        await talk.until("response.created")
        await talk.connection.response.cancel()
        await talk.until("response.done")
        (said,) = world.asked[-1].turns[1].parts
        frames = sum(len(entry) > 1 for entry in said.entries)
        assert 0 < frames * 80 <= sent_ms + 80
        (item,) = done.response.output
        await talk.connection.conversation.item.truncate(
            item_id=item.id, content_index=0, audio_end_ms=100
        )
        await talk.until("conversation.item.truncated")
        await talk.connection.response.create()
        await talk.until("response.created")
        await talk.until("response.output_audio.delta")
    (said,) = world.asked[-1].turns[1].parts
    assert sum(len(entry) > 1 for entry in said.entries) == 2


async def test_a_speech_to_speech_model_answers_in_text(client, world):
    async with talking(client, output_modalities=["text"]) as talk:
        said = [{"type": "input_text", "text": "When?"}]
        item = {"type": "message", "role": "user", "content": said}
        await talk.connection.conversation.item.create(item=item)
        await talk.connection.response.create()
        done = await talk.until("response.done")
    assert not talk.audio()
    assert done.response.status in ("completed", "incomplete")
    assert world.asked[-1].speaks is False


async def test_a_speech_to_speech_model_refuses_functions(client):
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    async with talking(client) as talk:
        await talk.connection.session.update(session={"type": "realtime", "tools": [tool]})
        error = (await talk.until("error")).error
    assert error.param == "session.tools"


async def test_a_speech_to_speech_model_is_the_default_without_others(client):
    async with client.realtime.connect() as connection:
        assert (await Talk(connection).until("session.created")).session.model == MODEL


def test_the_played_part_of_an_answer_ends_with_a_frame():
    entries = ((1,), (2,), (3, 3), (4, 4), (5,), (6, 6))
    content = Content("output_audio", "x", entries=entries, frame_ms=80.0)
    assert played_entries(content) == entries
    for played_ms, kept in ((0, 0), (1, 3), (80, 3), (81, 4), (160, 4), (161, 6), (999, 6)):
        content.played_ms = played_ms
        assert len(played_entries(content)) == kept, played_ms
    unsaid = Item("message", role="assistant", content=[Content("output_audio", entries=entries)])
    unsaid.content[0].played_ms = 0
    assert [turn.role for turn in spoken_turns([unsaid])] == ["user"]


def test_audio_that_is_not_kept_is_replaced_by_its_transcript():
    written = Content("input_audio", "When?", audio=None)
    (turn,) = spoken_turns([Item("message", role="user", content=[written])])
    assert turn.parts == ("When?",)
