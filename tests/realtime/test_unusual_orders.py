"""Events in unusual but allowed orders."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from izwi.audio.g711 import decode_g711, encode_g711
from izwi.audio.pcm import to_s16le
from izwi.audio.resample import resample
from tests.realtime.test_conversations import talking

QUESTION = "When does the train leave?"
TRANSCRIBED = {"transcription": {"model": "whisper-1"}}
PUSH_TO_TALK = {"input": TRANSCRIBED | {"turn_detection": None}}


async def append(talk, data, size=4800):
    for start in range(0, len(data), size):
        audio = base64.b64encode(data[start : start + size]).decode()
        await talk.connection.input_audio_buffer.append(audio=audio)


async def transcript(talk):
    return (await talk.until("conversation.item.input_audio_transcription.completed")).transcript


async def test_half_a_sample_belongs_to_the_audio_before_a_clear_or_commit(client, said):
    speech = to_s16le(said(QUESTION))
    async with talking(client, audio=PUSH_TO_TALK) as talk:
        buffer = talk.connection.input_audio_buffer
        await append(talk, bytes(4801))
        await buffer.clear()
        for _ in range(2):
            await append(talk, speech + b"\1")
            await buffer.commit()
            assert await transcript(talk) == QUESTION


async def test_a_refused_commit_keeps_half_a_sample(client, said):
    speech = to_s16le(said(QUESTION))
    async with talking(client, audio=PUSH_TO_TALK) as talk:
        await append(talk, speech[:1])
        await talk.connection.input_audio_buffer.commit()
        assert (await talk.until("error")).error.code == "input_audio_buffer_commit_empty"
        await append(talk, speech[1:])
        await talk.connection.input_audio_buffer.commit()
        assert await transcript(talk) == QUESTION


@pytest.mark.parametrize("law", ["mu", "a"])
async def test_audio_in_two_formats_becomes_one_item(client, said, law):
    speech = said(QUESTION)
    silence = encode_g711(np.zeros(4000, np.float32), law)
    async with talking(client, audio=PUSH_TO_TALK) as talk:
        await append(talk, to_s16le(speech))
        kind = {"type": {"mu": "audio/pcmu", "a": "audio/pcma"}[law]}
        await talk.connection.session.update(
            session={"type": "realtime", "audio": {"input": {"format": kind}}}
        )
        await append(talk, silence, 800)
        await talk.connection.input_audio_buffer.commit()
        committed = await talk.until("input_audio_buffer.committed")
        assert await transcript(talk) == QUESTION
        await talk.connection.conversation.item.retrieve(item_id=committed.item_id)
        item = (await talk.until("conversation.item.retrieved")).item
    kept = decode_g711(base64.b64decode(item.content[0].audio), law)
    expected = np.concatenate([resample(speech, 24_000, 8_000), np.zeros(4000, np.float32)])
    assert len(kept) == pytest.approx(len(expected), abs=16)
    size = min(len(kept), len(expected))
    assert np.corrcoef(kept[:size], expected[:size])[0, 1] > 0.99


async def test_new_settings_of_the_detector_keep_the_turn_in_progress(client, said):
    speech = said("The train leaves at seven in the morning, and it arrives at nine.")
    half = len(speech) // 2
    async with talking(client, audio={"input": TRANSCRIBED}) as talk:
        await talk.speak(speech[:half])
        await talk.until("input_audio_buffer.speech_started")
        detection = {"type": "server_vad", "silence_duration_ms": 400}
        await talk.connection.session.update(
            session={"type": "realtime", "audio": {"input": {"turn_detection": detection}}}
        )
        await talk.speak(speech[half:])
        await talk.be_silent(1)
        text = await transcript(talk)
    assert text.startswith("The train"), text
    assert "nine" in text
    kinds = [kind for kind in talk.types() if kind.startswith("input_audio_buffer")]
    assert kinds == [
        f"input_audio_buffer.{k}" for k in ("speech_started", "speech_stopped", "committed")
    ]


@pytest.mark.parametrize("way", ["in the conversation", "in the request"])
async def test_audio_that_a_client_inserts_is_transcribed(client, served, said, way):
    audio = base64.b64encode(to_s16le(said(QUESTION))).decode()
    parts = [{"type": "input_text", "text": "Listen:"}, {"type": "input_audio", "audio": audio}]
    item = {"type": "message", "role": "user", "content": parts}
    async with talking(client, output_modalities=["text"]) as talk:
        if way == "in the request":
            await talk.connection.response.create(response={"input": [item]})
        else:
            await talk.connection.conversation.item.create(item=item)
            await talk.connection.response.create()
        await talk.until("response.done")
    (message,) = served.prompts[-1]
    assert message.content == f"Listen:\n{QUESTION}"


async def test_a_transcript_that_a_client_inserts_is_taken(client, served):
    audio = base64.b64encode(to_s16le(np.zeros(24_000, np.float32))).decode()
    part = {"type": "input_audio", "audio": audio, "transcript": "Is it seven?"}
    item = {"type": "message", "role": "user", "content": [part]}
    async with talking(client, output_modalities=["text"]) as talk:
        await talk.connection.conversation.item.create(item=item)
        await talk.connection.response.create()
        await talk.until("response.done")
    assert served.prompts[-1][0].content == "Is it seven?"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "other"}])
async def test_a_call_of_a_function_that_is_not_there_is_refused(client, choice):
    tools = [{"type": "function", "name": "f"}] if choice != "required" else []
    async with talking(client, tools=tools, tool_choice=choice) as talk:
        await talk.connection.response.create()
        assert (await talk.until("error")).error.param == "response.tool_choice"
    assert "response.created" not in talk.types()


async def test_a_function_that_is_too_expensive_to_call_stops_its_response_only(client):
    many = [{"type": "string", "pattern": f".*{a}b.*"} for a in "abcdefghijklmnop"]
    parameters = {"type": "object", "properties": {"to": {"allOf": many}}}
    tool = {"type": "function", "name": "f", "parameters": parameters}
    async with talking(client, tools=[tool], tool_choice="required") as talk:
        await talk.connection.response.create()
        failed = await talk.until("response.done")
        assert failed.response.status == "failed"
        assert "too expensive" in str(failed.response.status_details)
        await talk.connection.response.create(response={"tool_choice": "auto"})
        assert (await talk.until("response.done")).response.status != "failed"


async def test_a_voice_that_is_not_there_is_named_where_it_was_written(client):
    output = {"output": {"voice": "nobody"}}
    async with talking(client) as talk:
        await talk.connection.session.update(session={"type": "realtime", "audio": output})
        error = (await talk.until("error")).error
        assert (error.code, error.param) == ("voice_not_found", "session.audio.output.voice")
        await talk.connection.response.create(response={"audio": output})
        error = (await talk.until("error")).error
        assert (error.code, error.param) == ("voice_not_found", "response.audio.output.voice")
