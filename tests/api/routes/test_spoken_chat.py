"""Chat completions with audio in and out, with the real engine and random weights."""

from __future__ import annotations

import base64
import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest
import soundfile

from izwi.audio.decode import decode_audio
from izwi.audio.encode import stream_encoder
from izwi.audio.resample import resampling_of
from izwi.audio.sinc import sinc_resample
from izwi_api.schemas.chat_messages import InputAudio
from izwi_api.services.chat.spoken_turns import decode_input_audio
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModels
from tests.api.conftest import wait_for
from tests.api.in_process import serving
from tests.models.tiny_asr import waveform
from tests.models.tiny_chat import write_tiny_chat
from tests.models.tiny_lfm2_audio import write_tiny_lfm2_audio

ALOUD = {"model": "s2s", "modalities": ["text", "audio"], "max_completion_tokens": 40, "seed": 1}
SHORT = {**ALOUD, "max_completion_tokens": 12}  # six pieces of text, and then frames
PCM = {"voice": "any", "format": "pcm16"}
FRAME_BYTES = 2 * 1920


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("real")
    folders = [write_tiny_lfm2_audio(root / "s2s"), write_tiny_chat(root / "chat")]
    with serving(root / "home", *folders) as served:
        yield served


@pytest.fixture
def create(served):
    with openai.OpenAI(base_url=f"{served[0]}/v1", api_key="none", max_retries=0) as client:
        yield client.chat.completions.create


def file_of(name: str, seconds: float = 0.7, rate: int = 16_000) -> str:
    encoder = stream_encoder(name, rate)
    data = encoder.write(np.asarray(waveform(seconds), np.float32)) + encoder.finish()
    return base64.b64encode(data).decode()


def input_audio(name: str = "wav", data: str | None = None) -> dict:
    return {
        "type": "input_audio",
        "input_audio": {"data": file_of(name) if data is None else data, "format": name},
    }


def user(*parts) -> dict:
    return {"role": "user", "content": list(parts)}


TEXT = {"type": "text", "text": "What is this?"}


# -- answers ---------------------------------------------------------------------------------
def test_an_answer_aloud(create):
    answer = create(messages=[user(TEXT, input_audio())], audio=PCM, **ALOUD)
    (choice,) = answer.choices
    assert choice.finish_reason == "length"
    assert choice.message.content is None
    said, details = choice.message.audio, answer.usage.completion_tokens_details
    assert said.id.startswith("audio_")
    assert said.transcript
    frames = len(base64.b64decode(said.data)) / FRAME_BYTES
    # a frame that ends the audio is not audio
    assert 0 < frames <= details.audio_tokens
    assert frames == int(frames)
    assert details.audio_tokens + details.text_tokens == 40 == answer.usage.completion_tokens
    assert answer.usage.prompt_tokens > 10


@pytest.mark.parametrize(
    "name",
    [
        "wav",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("mp3", "flac", "opus", "aac")),
    ],
)
def test_the_file_has_the_format_that_was_asked_for(create, name):
    whole = create(messages=[user(TEXT)], audio={"voice": "any", "format": name}, **ALOUD)
    data = base64.b64decode(whole.choices[0].message.audio.data)
    heads = {"wav": b"RIFF", "flac": b"fLaC", "opus": b"OggS"}
    assert data.startswith(heads.get(name, b"\xff"))
    if name in ("wav", "flac"):
        samples, rate = soundfile.read(io.BytesIO(data))
        assert rate == 24_000
        frames = whole.usage.completion_tokens_details.audio_tokens
        assert 0 < len(samples) <= frames * 1920
        assert len(samples) % 1920 == 0


def test_a_stream_says_what_the_whole_says(create):
    ask = {"messages": [user(TEXT, input_audio("mp3"))], "audio": PCM, **ALOUD}
    whole = create(**ask).choices[0].message.audio
    chunks = list(create(stream=True, stream_options={"include_usage": True}, **ask))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    parts = [delta.to_dict()["audio"] for delta in deltas if "audio" in delta.to_dict()]
    assert len({part["id"] for part in parts}) == 1
    assert "".join(part.get("transcript", "") for part in parts) == whole.transcript
    data = b"".join(base64.b64decode(part["data"]) for part in parts if "data" in part)
    assert data == base64.b64decode(whole.data)
    # text and audio by turns, not one after the other
    kinds = [next(k for k in ("transcript", "data", "id") if k in part) for part in parts]
    first, last = kinds.index("data"), len(kinds) - kinds[::-1].index("data")
    assert "transcript" in kinds[first:last]
    assert set(parts[-1]) == {"id", "expires_at"}
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:-1]] == ["length"]
    assert chunks[-1].usage.completion_tokens == 40


@pytest.mark.slow
def test_the_next_turn_names_the_answer_by_its_id(create, served):
    first = user(TEXT, input_audio())
    said = create(messages=[first], audio=PCM, **ALOUD).choices[0].message
    before = served[1].engine.load["s2s"]["prefix_positions_hit"]
    given = {"role": "assistant", "audio": {"id": said.audio.id}}
    again = create(messages=[first, given, user(TEXT)], audio=PCM, **ALOUD)
    assert served[1].engine.load["s2s"]["prefix_positions_hit"] - before >= 40
    # as the SDK gives it back, with its data
    whole = said.model_dump(exclude_none=True)
    same = create(messages=[first, whole, user(TEXT)], audio=PCM, **ALOUD)
    assert same.choices[0].message.audio.data == again.choices[0].message.audio.data
    text = {"role": "assistant", "content": said.audio.transcript}
    other = create(messages=[first, text, user(TEXT)], audio=PCM, **ALOUD)
    assert other.usage.prompt_tokens < again.usage.prompt_tokens


def test_audio_may_be_answered_in_text(create):
    answer = create(model="s2s", messages=[user(input_audio())], max_tokens=12, temperature=0.0)
    (choice,) = answer.choices
    assert choice.message.content
    assert choice.message.audio is None
    assert answer.usage.completion_tokens <= 12
    pieces = create(
        model="s2s", messages=[user(input_audio())], max_tokens=12, temperature=0, stream=True
    )
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == choice.message.content


@pytest.mark.slow
def test_text_and_audio_have_their_own_sampling(create):
    def ask(**more):
        answer = create(messages=[user(TEXT)], audio=PCM, **{**SHORT, **more})
        return answer.choices[0].message.audio

    greedy = ask(temperature=0.0)
    assert ask(temperature=0.0, seed=2).data == greedy.data
    warm = [ask(temperature=0.0, extra_body={"audio_temperature": 1.0}, seed=n) for n in (1, 2)]
    assert warm[0].data != warm[1].data
    assert ask(seed=3).data == ask(seed=3).data


@pytest.mark.slow  # tests/models/test_lfm2_mixed.py has it of the engine
def test_callers_do_not_notice_each_other(create):
    def ask(seed):
        asked = {**ALOUD, "max_completion_tokens": 24, "seed": seed}
        answer = create(messages=[user(TEXT)], audio=PCM, **asked)
        return answer.choices[0].message.audio.data

    alone = [ask(seed) for seed in range(3)]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(ask, range(3))) == alone


def test_disconnect_frees_the_engine(create, served):
    more = {**ALOUD, "max_completion_tokens": 1500}
    stream = create(messages=[user(TEXT)], audio=PCM, stream=True, **more)
    next(iter(stream))
    stream.close()
    wait_for(lambda: served[1].engine.load["s2s"]["running"] == 0)


async def test_audio_is_resampled_as_in_the_models_training(served):
    data = file_of("wav", 0.5, 44_100)
    audio = InputAudio(data=data, format="wav")
    own = decode_audio(base64.b64decode(data), 44_100)
    local = served[1]
    models = ServedModels(local.engine, local.registry)
    services = Services(local.engine, models, local.settings, None)
    conversation, text = (resampling_of(models.model(name).frontend) for name in ("s2s", "chat"))
    heard = await decode_input_audio(services, audio, conversation)
    np.testing.assert_allclose(heard, sinc_resample(own, 44_100, 16_000), atol=1e-6)
    other = await decode_input_audio(services, audio, text)
    assert np.abs(other[:2000] - heard[:2000]).max() > 1e-4


# -- refusals --------------------------------------------------------------------------------
MP3 = file_of("mp3")


@pytest.mark.parametrize(
    ("change", "status", "match"),
    [
        ({"audio": None}, 400, "audio"),
        ({"modalities": ["text"]}, 400, "belong together"),
        ({"audio": {"voice": "x", "format": "ogg"}}, 400, "'audio'"),
        ({"audio": {"voice": 5, "format": "wav"}}, 400, "'audio'"),
        ({"modalities": ["audio", "smell"]}, 400, "modalities"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [user(input_audio(data="%%%"))]}, 400, "base64"),
        ({"messages": [user(input_audio(data=""))]}, 400, "'messages'"),
        ({"messages": [user(input_audio("wav", MP3))]}, 400, "not wav audio"),
        ({"messages": [user(input_audio("mp3", file_of("wav")))]}, 400, "not mp3 audio"),
        ({"messages": [user(input_audio(data=file_of("wav", 0.005)))]}, 400, "160"),
        ({"messages": [user(input_audio(data=file_of("wav", 150.0)))]}, 413, "too long"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "tool_call_id"),
        (
            {"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]},
            400,
            "no tools.*'assistant'",
        ),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "assistant"),
        ({"messages": [{"role": "user", "audio": {"id": "audio_1"}}]}, 400, "assistant"),
        ({"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}, 400, "expired"),
        ({"model": "chat"}, 404, "no served model can speak"),
        ({"model": "nobody"}, 404, "nobody"),
        ({"n": 2}, 400, "n"),
        ({"stop": "."}, 400, "`stop` is not supported"),
        ({"stop": ["."], "messages": [user(input_audio())]}, 400, "`stop` is not supported"),
        ({"response_format": {"type": "json_object"}}, 400, "`response_format` is not supported"),
        ({"messages": [user({"type": "text", "text": "x " * 40_000})]}, 400, "2048"),
        ({"extra_body": {"min_p": 0.1}}, 400, "'min_p' is not supported"),
        ({"extra_body": {"speech_model": "chat"}}, 400, "'speech_model' is not supported"),
    ],
    ids=range(26),
)
def test_unsupported_spoken_chat_requests_say_why(create, change, status, match):
    body = {"messages": [user(TEXT)], "audio": PCM, **ALOUD, **change}
    body = {key: value for key, value in body.items() if value is not None}
    with pytest.raises(openai.APIStatusError, match=match) as refused:
        create(**body)
    assert refused.value.status_code == status
    brief = {**ALOUD, "max_completion_tokens": 8}
    assert create(messages=[user(TEXT)], audio=PCM, **brief).choices[0].message.audio.data


def test_spoken_chat_fields_with_default_values_are_accepted(create):
    more = {"stop": [], "response_format": {"type": "text"}, "n": 1, "top_p": 1}
    more |= {"frequency_penalty": 0, "logit_bias": {}, "tools": [], "tool_choice": "auto"}
    more |= {"reasoning_effort": "none", "extra_body": {"enable_thinking": False}}
    assert create(messages=[user(TEXT)], audio=PCM, **SHORT, **more).choices[0].message.audio.data


def test_a_refusal_is_what_was_said(create):
    def num_read(**said):
        messages = [user(TEXT), {"role": "assistant", **said}, user(TEXT)]
        return create(messages=messages, audio=PCM, **SHORT).usage.prompt_tokens

    parts = [{"type": "refusal", "refusal": "No."}]
    text = num_read(content="No.")
    assert num_read(content=parts) == num_read(content=None, refusal="No.") == text
    assert num_read(content="No. Never.") > text


def test_many_turns_are_answered_or_refused(create):
    roles = ("user", "assistant")
    turns = [{"role": roles[n % 2], "content": "hm"} for n in range(101)]
    assert create(messages=turns, audio=PCM, **SHORT).choices[0].message.audio.data
    with pytest.raises(openai.BadRequestError) as refused:
        create(messages=turns * 3, audio=PCM, **ALOUD)
    assert refused.value.code == "context_length_exceeded"
