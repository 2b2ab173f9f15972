"""Audio to and from a chat model, by the embedded transcriber and voice, before the real engine.

The tests choose the chat model's words; it runs in the engine, one token per word.
"""

from __future__ import annotations

import asyncio
import base64
import io
from contextlib import aclosing

import numpy as np
import openai
import pytest
import soundfile

from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.inputs.speech import SpeechInput
from izwi.model.capability import Capability
from izwi_api.schemas.chat import ChatBody
from izwi_api.serve.app import create_app
from izwi_api.services.chat.cascade import AudioPiece, Voice, open_spoken_answer
from izwi_api.services.chat.pipeline import choose_pipeline
from izwi_api.services.chat.transcribed_turns import transcribe_turns
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModels
from tests.api.conftest import listening, wait_for
from tests.api.in_process import services_of
from tests.api.scripted_chat import ScriptedRegistry
from tests.models.tiny_chat import write_tiny_chat

TTS, ASR = "izwi-tiny-tts", "izwi-tiny-asr"
QUESTION = "When does the train leave in the morning?"
ANSWER = "The train leaves at seven. It arrives at nine."
BRIEF = "It is warm."  # where the words do not matter
LONG = f"{ANSWER} Then we go home."
PCM = {"voice": "amber", "format": "pcm16"}
ALOUD = {"model": "chat", "modalities": ["text", "audio"], "audio": PCM, "seed": 3}
TOOL = {"type": "function", "function": {"name": "wait", "parameters": {"type": "object"}}}


def script(messages) -> str:
    said = messages[-1].content
    if said.startswith(("CALL", "```")):
        return said
    if said == "brief":
        return BRIEF
    return LONG if "long" in said else ANSWER


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("real")
    services = services_of(root / "home", TTS, ASR, write_tiny_chat(root / "chat"))
    registry = ScriptedRegistry(services.registry, "chat", script)
    app = create_app(services.engine, registry, services.settings)
    with listening(app) as port:
        yield f"http://127.0.0.1:{port}", services, registry.scripted


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=f"{served[0]}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def create(client):
    return client.chat.completions.create


@pytest.fixture(scope="module")
def question(client) -> dict:
    audio = client.audio.speech.create(
        model=TTS, voice="basil", input=QUESTION, response_format="wav"
    )
    return input_audio(audio.content)


def input_audio(content: bytes, kind: str = "wav") -> dict:
    data = base64.b64encode(content).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": kind}}


def silence(seconds: float = 1.0) -> dict:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(int(16_000 * seconds), np.float32), 16_000, format="WAV")
    return input_audio(file.getvalue())


def user(*parts) -> dict:
    return {"role": "user", "content": list(parts)}


def text(said: str) -> dict:
    return {"type": "text", "text": said}


def words(said: str) -> list[str]:
    return "".join(c for c in said.lower() if c.isalpha() or c == " ").split()


# -- answers ---------------------------------------------------------------------------------
def test_a_spoken_question_is_answered_aloud(client, create, served, question):
    answer = create(messages=[user(question)], **ALOUD)
    heard = served[2].asked[-1].messages[-1].content
    assert words(heard) == words(QUESTION)
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("length", None)
    assert choice.message.audio.transcript == ANSWER
    pcm = base64.b64decode(choice.message.audio.data)
    usage = answer.usage
    frames = usage.completion_tokens_details.audio_tokens
    assert 0 < len(pcm) <= frames * 2 * 1920
    assert usage.completion_tokens == frames + len(ANSWER.split())
    assert usage.prompt_tokens_details.audio_tokens > 10
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    file = io.BytesIO()
    soundfile.write(file, np.frombuffer(pcm, "<i2"), 24_000, format="WAV")
    said = client.audio.transcriptions.create(model=ASR, file=("a.wav", file.getvalue())).text
    assert words(said) == words(ANSWER)


def test_a_stream_has_audio_before_its_text_is_complete_and_says_the_same(create, question):
    ask = {"messages": [user(question, text("a long one"))], **ALOUD}
    whole = create(**ask).choices[0].message.audio
    chunks = list(create(stream=True, stream_options={"include_usage": True}, **ask))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].to_dict() == {"role": "assistant"}
    parts = [delta.to_dict()["audio"] for delta in deltas if "audio" in delta.to_dict()]
    assert len({part["id"] for part in parts}) == 1
    assert "".join(part.get("transcript", "") for part in parts) == LONG
    data = b"".join(base64.b64decode(part["data"]) for part in parts if "data" in part)
    assert data == base64.b64decode(whole.data)
    kinds = [next(k for k in ("transcript", "data", "id") if k in part) for part in parts]
    last_text = len(kinds) - 1 - kinds[::-1].index("transcript")
    assert kinds.index("data") < last_text
    assert set(parts[-1]) == {"id", "expires_at"}
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens_details.audio_tokens > 0


@pytest.mark.slow
def test_the_next_turn_names_the_answer_by_its_id(create, served, question):
    said = create(messages=[user(question)], **ALOUD).choices[0].message
    given = [
        {"role": "assistant", "audio": {"id": said.audio.id}},
        said.model_dump(exclude_none=True),
    ]
    for message in given:
        create(messages=[user(question), message, user(text("And then?"))], **ALOUD)
        asked = [(m.role.value, m.content) for m in served[2].asked[-1].messages]
        assert asked[1:] == [("assistant", ANSWER), ("user", "And then?")]
        assert words(asked[0][1]) == words(QUESTION)


@pytest.mark.slow
def test_text_with_audio_and_several_audio_parts_are_one_message(create, served, question):
    messages = [
        {"role": "system", "content": "Be short."},
        user(text("Listen:"), question, question),
    ]
    create(messages=messages, **ALOUD)
    system, asked = served[2].asked[-1].messages
    assert system.content == "Be short."
    lines = asked.content.split("\n")
    assert lines[0] == "Listen:"
    assert [words(line) for line in lines[1:]] == [words(QUESTION)] * 2


def test_text_may_be_answered_with_audio_and_audio_with_text(create, question):
    aloud = create(messages=[{"role": "user", "content": "brief"}], **ALOUD).choices[0].message
    assert aloud.audio.transcript == BRIEF
    answer = create(model="chat", messages=[user(question)])
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].message.audio is None
    pieces = create(model="chat", messages=[user(question)], stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == ANSWER


@pytest.mark.parametrize(
    "name",
    [
        "wav",
        "mp3",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("mp3", "flac", "opus", "aac")),
    ],
)
def test_the_file_has_the_format_that_was_asked_for(create, name):
    ask = {**ALOUD, "audio": {"voice": "alloy", "format": name}}
    data = base64.b64decode(
        create(messages=[user(text("brief"))], **ask).choices[0].message.audio.data
    )
    assert data.startswith(
        {"wav": b"RIFF", "flac": b"fLaC", "opus": b"OggS"}.get(name, (b"\xff", b"ID3"))
    )


def test_calls_are_not_said(create):
    ask = {"messages": [user(text('CALL wait {"s": 1}'))], "tools": [TOOL], **ALOUD}
    message = create(**ask).choices[0].message
    assert (message.content, message.audio) == (None, None)
    (call,) = message.tool_calls
    assert (call.function.name, call.function.arguments.strip()) == ("wait", '{"s": 1}')
    deltas = [chunk.choices[0].delta for chunk in create(stream=True, **ask)]
    assert not any("audio" in delta.to_dict() for delta in deltas)
    assert any(delta.tool_calls for delta in deltas)


def test_unspeakable_answer_is_returned_as_text(create):
    message = create(messages=[user(text("```\nx = 1\n```"))], **ALOUD).choices[0].message
    assert (message.audio.transcript, message.audio.data) == ("```\nx = 1\n```", "")


@pytest.mark.slow  # test_spoken_chat.py and tests/api/services have its parts
def test_a_stop_string_ends_text_and_audio(create):
    said = create(messages=[user(text("hm"))], **ALOUD, stop=" It").choices[0].message.audio
    whole = create(messages=[user(text("hm"))], **ALOUD).choices[0].message.audio
    assert said.transcript == "The train leaves at seven."
    assert 0 < len(said.data) < 0.6 * len(whole.data)


def test_an_answer_in_text_to_audio_accepts_the_fields_of_a_question_in_text(
    create, served, question
):
    answer = create(model="chat", messages=[user(question)], n=3)
    assert [choice.message.content for choice in answer.choices] == [ANSWER] * 3
    body = {"model": "chat", "messages": [user(question)], "logprobs": True}
    models = ServedModels(served[1].engine, served[1].registry)
    choose_pipeline(models, ChatBody.model_validate(body))


@pytest.mark.parametrize("more", [{}, pytest.param(ALOUD, marks=pytest.mark.slow)])
def test_a_completion_looks_its_model_up_once(monkeypatch, create, question, more):
    looked_up, served_name = [], ServedModels._served

    def note(self, name):
        looked_up.append(name)
        return served_name(self, name)

    monkeypatch.setattr(ServedModels, "_served", note)
    create(**{"model": "chat", "messages": [user(question)]} | more)
    assert looked_up.count("chat") == 1


def test_audio_may_be_a_bare_string(create, served, question):
    bare = {"type": "input_audio", "input_audio": question["input_audio"]["data"]}
    create(model="chat", messages=[user(bare)])
    assert words(served[2].asked[-1].messages[-1].content) == words(QUESTION)


# -- leaving ---------------------------------------------------------------------------------
def test_disconnect_frees_all_models(create, served):
    stream = create(messages=[user(text("a long one"))], stream=True, **ALOUD)
    while "data" not in next(stream).choices[0].delta.to_dict().get("audio", {}):
        pass
    stream.close()
    engine = served[1].engine
    wait_for(lambda: not any(load["running"] + load["waiting"] for load in engine.load.values()))


async def test_stopping_an_answer_stops_chat_and_voice_within_two_steps(served, monkeypatch):
    services, passes = served[1], {"chat": 0, TTS: 0}
    for name in passes:
        model = services.registry.models[name]

        def run(x, context, name=name, run=model.run):
            passes[name] += 1
            return run(x, context)

        monkeypatch.setattr(model, "run", run)
    registry = ScriptedRegistry(services.registry, "chat", lambda _: LONG * 20)
    models = ServedModels(services.engine, registry)
    spoken = await open_spoken_answer(
        models.chat("chat"),
        ChatInput((ChatMessage(Role.USER, "a long one"),), seed=3),
        Voice(models.speech(TTS), SpeechInput("", voice="amber", seed=3)),
    )
    async with aclosing(spoken.pieces()) as pieces, asyncio.timeout(60):
        while not isinstance(await anext(pieces), AudioPiece):
            pass
        assert spoken.answer.reason is None  # the first audio leaves before the text is complete
        spoken.abort()
        before = dict(passes)
        load = services.engine.load
        while any(load[name]["running"] + load[name]["waiting"] for name in passes):
            await asyncio.sleep(0.001)
            load = services.engine.load
    assert all(passes[name] <= before[name] + 2 for name in passes), (before, passes)
    assert passes["chat"] < len(LONG.split()) * 20


async def test_leaving_while_the_question_is_written_down_stops_the_transcriber(
    served, question, monkeypatch
):
    local, steps_at_aborts = served[1], []
    engine, models = local.engine, ServedModels(local.engine, local.registry)
    services = Services(engine, models, local.settings, None)
    name = models.default(Capability.TRANSCRIBE)
    abort = engine.abort

    def counted(request_id):
        abort(request_id)  # the engine steps on until it is told, however long that takes us
        steps_at_aborts.append(engine.load[name]["steps"])

    monkeypatch.setattr(engine, "abort", counted)
    samples = np.random.default_rng(0).normal(0, 0.1, 16_000 * 20).astype(np.float32)
    speech = np.tile(decoded(question), 8)
    speech[: len(samples)] += 0.01 * samples[: len(speech)]
    file = io.BytesIO()
    soundfile.write(file, speech, 24_000, format="WAV")
    messages = [user(input_audio(file.getvalue()))]
    body = ChatBody.model_validate({"model": "chat", "messages": messages})
    writing = asyncio.create_task(transcribe_turns(services, "", body))
    async with asyncio.timeout(60):
        while not engine.load[name]["running"]:  # noqa: ASYNC110 -- the engine tells nobody
            await asyncio.sleep(0.001)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    async with asyncio.timeout(60):
        while engine.load[name]["running"]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert steps_at_aborts
    # two, and those that the figures did not count yet
    assert engine.load[name]["steps"] <= steps_at_aborts[0] + 4


def decoded(part: dict) -> np.ndarray:
    content = base64.b64decode(part["input_audio"]["data"])
    return soundfile.read(io.BytesIO(content), dtype="float32")[0]


# -- refusals --------------------------------------------------------------------------------
BROKEN = {"type": "input_audio", "input_audio": {"data": "%%", "format": "wav"}}


def audio(**change) -> dict:
    return {"audio": {key: value for key, value in {**PCM, **change}.items() if value is not None}}


@pytest.mark.parametrize(
    ("change", "status", "match"),
    [
        ({"audio": None}, 400, "belong together"),
        ({"modalities": ["text"]}, 400, "belong together"),
        ({"modalities": ["audio", "smell"]}, 400, "modalities"),
        (audio(format="ogg"), 400, "audio"),
        (audio(voice=None), 400, "voice"),
        (audio(voice="nobody"), 404, "no voice 'nobody'"),
        ({"messages": [user(silence())]}, 400, "no words were recognized"),
        ({"messages": [user(input_audio(b"RIFF"))]}, 400, "not wav audio"),
        ({"messages": [user(BROKEN)]}, 400, "base64"),
        ({"messages": [user({"type": "input_audio"})]}, 400, "missing .*input_audio"),
        ({"messages": [user({"type": "input_audio", "input_audio": "aGVsbG8="})]},
         400, "not mp3 audio"),
        ({"messages": [user({"type": "image_url"}, silence())]}, 400, "type 'text'"),
        ({"messages": [{"role": "user", "audio": {"id": "audio_1"}}]}, 400, "assistant"),
        ({"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}, 400, "expired"),
        ({"messages": []}, 400, "messages"),
        ({"n": 2}, 400, "'n'"),
        ({"logprobs": True}, 400, "logprobs"),
        ({"extra_body": {"speech_model": "chat"}}, 400, "not speech"),
        ({"extra_body": {"transcription_model": TTS}, "messages": [user(silence())]},
         400, "not transcription"),
        ({"extra_body": {"colour": 1}}, 400, "colour"),
        ({"model": "nobody"}, 404, "nobody"),
        ({"model": ASR}, 400, "not conversation"),
        ({"messages": [user(text("x " * 40_000))]}, 400, "has room for"),
    ],
    ids=range(23),
)  # fmt: skip
def test_unsupported_cascade_requests_say_why(create, change, status, match):
    body = {"messages": [user(text("hm"))], **ALOUD, **change}
    body = {key: value for key, value in body.items() if value is not None}
    with pytest.raises(openai.APIStatusError, match=match) as refused:
        create(**body)
    assert refused.value.status_code == status
