"""Live conversations through openai-python, unmodified: turns, answers, and speech over them."""

from __future__ import annotations

import asyncio
import base64
from contextlib import asynccontextmanager, suppress

import numpy as np
import pytest

from tests.realtime.conftest import ANSWER, LONG_ANSWER, Talk
from tests.realtime.hearing.test_vad import voice

# scripted answers end where their tokens do
ENDED = "incomplete"
QUESTION = "When does the train leave?"


@asynccontextmanager
async def talking(client, model="chat", **session):
    async with client.realtime.connect(model=model) as connection:
        talk = Talk(connection)
        created = await talk.until("session.created")
        assert (created.session.type, created.session.model) == ("realtime", model)
        await talk.until("conversation.created")
        if session:
            await connection.session.update(session={"type": "realtime", **session})
            await talk.until("session.updated")
        talk.events.clear()
        yield talk


async def ask(talk, said):
    await talk.speak(said(QUESTION))
    await talk.be_silent(0.8)


async def test_a_spoken_question_is_answered_aloud(client, served, said):
    transcription = {"model": "whisper-1"}
    async with talking(client, audio={"input": {"transcription": transcription}}) as talk:
        await ask(talk, said)
        done = await talk.until("response.done")
    types = [kind for kind in talk.types() if "transcription" not in kind]
    head = types[: types.index("response.content_part.added") + 1]
    assert head == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
    ]
    assert types[-7:] == [
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    assert done.response.status == ENDED
    assert done.response.usage.output_token_details.audio_tokens > 20
    deltas = [e.delta for e in talk.events if e.type == "response.output_audio_transcript.delta"]
    assert "".join(deltas) == ANSWER
    assert len(talk.audio()) > 2 * 48_000
    heard = next(e for e in talk.events if e.type.endswith("transcription.completed"))
    assert "train" in heard.transcript.lower()
    assert heard.usage.seconds > 1
    assert served.prompts[-1][-1].content == heard.transcript


async def test_a_written_question_is_answered_in_writing(client):
    async with talking(client, output_modalities=["text"], instructions="Be short.") as talk:
        await talk.connection.conversation.item.create(
            item={
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "When?"}],
            }
        )
        await talk.connection.response.create(response={"metadata": {"client_event_id": "x"}})
        created = await talk.until("response.created")
        assert created.response.metadata == {"client_event_id": "x"}
        done = await talk.until("response.done")
    assert talk.audio() == b""
    (item,) = done.response.output
    assert (item.content[0].type, item.content[0].text) == ("output_text", ANSWER)
    parts = [e.part.type for e in talk.events if e.type == "response.content_part.added"]
    assert parts == ["text"]


async def undisturbed(client, said):
    async with talking(client) as talk:
        await ask(talk, said)
        await talk.until("response.done")
        return talk.audio()


@pytest.mark.parametrize("cough_s", [pytest.param(0.12, marks=pytest.mark.slow), 0.2])
async def test_after_a_cough_the_answer_continues_at_the_same_sample(client, said, cough_s):
    expected = await undisturbed(client, said)
    async with talking(client) as talk:
        await ask(talk, said)
        for _ in range(2):
            await talk.until("response.output_audio.delta")
            await talk.speak(voice(31, 1.0)[4000 : 4000 + int(16_000 * cough_s)], 16_000)
            await talk.be_silent(1.0)
        done = await talk.until("response.done")
        assert done.response.status == ENDED
    kinds = [event.type for event in talk.events]
    assert kinds.count("input_audio_buffer.speech_started") == 1, "the question alone"
    assert talk.audio() == expected


async def test_an_interruption_ends_the_answer_and_is_answered(client, served, said):
    served.answer = LONG_ANSWER
    async with talking(client) as talk:
        await ask(talk, said)
        first = await talk.until("response.created")
        for _ in range(20):  # most of a second is played, or about to be
            await talk.until("response.output_audio.delta")
        served.answer = ANSWER
        await talk.speak(said("No, I would like to know about the bus."))
        started = await talk.until("input_audio_buffer.speech_started")
        done = await talk.until("response.done")
        assert done.response.id == first.response.id
        assert done.response.status == "cancelled"
        assert done.response.status_details.reason == "turn_detected"
        sent = len(talk.audio(first.response.id))
        await talk.be_silent(0.8)
        second = await talk.until("response.created")
        assert (await talk.until("response.done")).response.status == ENDED
        assert len(talk.audio(first.response.id)) == sent, "audio of a cancelled answer"
        assert len(talk.audio(second.response.id)) > 2 * 48_000
        (item,) = done.response.output
        await talk.connection.conversation.item.retrieve(item_id=item.id)
        kept = (await talk.until("conversation.item.retrieved")).item
        history = served.prompts[-1]
        # a client with an exact clock says how much was played
        await talk.connection.conversation.item.truncate(
            item_id=item.id, content_index=0, audio_end_ms=0
        )
        await talk.until("conversation.item.truncated")
    assert started.audio_start_ms > 0
    cut = history[-2].content
    assert history[-2].role == "assistant"
    assert 0 < len(cut) < len(LONG_ANSWER)
    assert LONG_ANSWER.startswith(cut)
    assert kept.content[0].transcript == cut


async def test_an_answer_that_a_client_truncates_is_cancelled(client, served):
    served.answer = LONG_ANSWER
    async with talking(client) as talk:
        await talk.connection.response.create()
        for _ in range(20):
            item_id = (await talk.until("response.output_audio.delta")).item_id
        await talk.connection.conversation.item.truncate(
            item_id=item_id, content_index=0, audio_end_ms=300
        )
        # some clients do both
        await talk.connection.response.cancel(event_id="both")
        await talk.until("conversation.item.truncated")
        done = (await talk.until("response.done")).response
        assert (done.status, done.status_details.reason) == ("cancelled", "client_cancelled")
        talk.events.clear()
        await talk.connection.conversation.item.retrieve(item_id=item_id)
        kept = (await talk.until("conversation.item.retrieved")).item
        assert talk.types() == ["conversation.item.retrieved"]
    assert LONG_ANSWER.startswith(kept.content[0].transcript)
    assert abs(len(base64.b64decode(kept.content[0].audio)) - 300 * 48) <= 2


async def test_push_to_talk_answers_when_the_client_commits(client, said):
    async with talking(client, audio={"input": {"turn_detection": None}}) as talk:
        await talk.speak(said(QUESTION))
        await talk.connection.input_audio_buffer.commit()
        await talk.connection.response.create()
        await talk.until("response.created")
        await talk.until("response.output_audio.delta")
        await talk.connection.response.cancel()
        done = await talk.until("response.done")
        assert done.response.status_details.reason == "client_cancelled"
    assert "input_audio_buffer.speech_started" not in talk.types()


@pytest.mark.parametrize("kind", ["audio/pcmu", pytest.param("audio/pcma", marks=pytest.mark.slow)])
async def test_answers_have_the_rate_of_telephone_formats(client, kind):
    audio = {"input": {"turn_detection": None}, "output": {"format": {"type": kind}, "speed": 1.5}}
    async with talking(client, audio=audio) as talk:
        await talk.connection.response.create(response={"instructions": "Say it."})
        await talk.until("response.done")
    assert 8000 < len(talk.audio()) < 8000 * 5


@pytest.mark.slow  # tests/realtime/test_lead.py has other leads
async def test_a_client_with_a_large_lead_gets_all_audio_at_once(client, said):
    expected = await undisturbed(client, said)
    async with talking(client, audio={"output": {"lead_ms": 60_000}}) as talk:
        await ask(talk, said)
        await talk.until("response.done")
    assert talk.audio() == expected


async def test_noise_and_silence_do_not_start_turns(client):
    noise = np.random.default_rng(3).normal(size=24_000 * 3) * 0.02
    async with talking(client) as talk:
        await talk.speak(noise)
        await talk.be_silent(2)
        await talk.connection.input_audio_buffer.clear()
        await talk.until("input_audio_buffer.cleared")
    assert talk.types() == ["input_audio_buffer.cleared"]


async def test_a_function_is_called_and_its_output_is_answered(client, served):
    tool = {
        "type": "function",
        "name": "departure",
        "description": "When a train leaves.",
        "parameters": {"type": "object", "properties": {"to": {"type": "string"}}},
    }
    served.answer = 'CALL departure {"to": "Bern"}'
    async with talking(client, tools=[tool], instructions="Help.") as talk:
        await talk.connection.response.create()
        done = await talk.until("response.done")
        (call,) = done.response.output
        assert (call.type, call.name) == ("function_call", "departure")
        assert call.arguments.strip() == '{"to": "Bern"}'
        deltas = [e.delta for e in talk.events if e.type.endswith("call_arguments.delta")]
        assert "".join(deltas) == call.arguments
        (ended,) = [e for e in talk.events if e.type.endswith("call_arguments.done")]
        assert (ended.call_id, ended.arguments) == (call.call_id, call.arguments)
        served.answer = ANSWER
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "at seven"}
        await talk.connection.conversation.item.create(item=output)
        await talk.connection.response.create()
        assert (await talk.until("response.done")).response.output[0].type == "message"
    asked = served.registry.scripted.asked[-1]
    assert "departure" in asked.tools
    system, called, answered = asked.messages
    assert (system.role, called.role, answered.role) == ("system", "assistant", "tool")
    assert called.tool_calls[0].call_id == answered.call_id == call.call_id
    assert answered.content == "at seven"


@pytest.mark.slow  # test_barge_in.py has the same with one process
async def test_interruptions_at_any_time_end_each_response_once(client, said):
    speech = said("No, I would like to know about the bus.")
    async with talking(client) as talk:
        await ask(talk, said)
        for num_deltas in (1, 3, 0, 12):
            await talk.until("response.created")
            for _ in range(num_deltas):
                await talk.until("response.output_audio.delta")
            await talk.speak(speech)
            await talk.be_silent(0.8)
        await talk.until("response.created")
        await talk.until("response.output_audio.delta")
        await talk.connection.response.cancel()
        await talk.until("response.done")
    created = [e.response.id for e in talk.events if e.type == "response.created"]
    done = [e.response.id for e in talk.events if e.type == "response.done"]
    assert created == done
    assert len(set(created)) == 5
    active = None
    for event in talk.events:
        if event.type == "response.created":
            assert active is None
            active = event.response.id
        elif event.type == "response.done":
            active = None
        elif event.type == "response.output_audio.delta":
            assert event.response_id == active


async def test_speech_over_an_answer_pauses_the_engine(client, served, said):
    served.answer = LONG_ANSWER
    async with talking(client) as talk:
        await ask(talk, said)
        await talk.until("response.output_audio.delta")
        await talk.speak(voice(31, 1.0)[4000:5600], 16_000)
        async with asyncio.timeout(30):
            while not sum(load["paused"] for load in served.engine.load.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        sent = len(talk.audio())
        with suppress(TimeoutError):  # what was on its way, and then nothing
            while len(talk.audio()) < sent + 48_000:
                await asyncio.wait_for(talk.next(), 0.7)
        assert len(talk.audio()) < sent + 48_000
        await talk.be_silent(0.5)
        assert (await talk.until("response.done")).response.status == ENDED
        assert len(talk.audio()) > sent + 48_000
