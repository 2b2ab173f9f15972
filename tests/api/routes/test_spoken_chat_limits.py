"""Conversations at their limits: answered or refused, without effect on the next caller."""

from __future__ import annotations

import base64
import json
import struct

import httpx
import numpy as np
import openai
import pytest

from izwi.audio.encode import stream_encoder, wav_header
from izwi.audio.pcm import to_s16le
from izwi_api.serve.app import create_app
from izwi_api.settings import Access, Settings
from izwi_api.usage.keys import digest_of
from tests.api.conftest import listening, wait_for
from tests.api.in_process import services_of
from tests.models.tiny_asr import waveform
from tests.models.tiny_lfm2_audio import CALM, write_tiny_lfm2_audio

KEYS = {"anna": "anna-0123456789abcdef", "ben": "ben-0123456789abcdef"}
ASK = {"model": "s2s", "max_completion_tokens": 12, "seed": 1}
ALOUD = ASK | {"modalities": ["text", "audio"], "audio": {"voice": "any", "format": "pcm16"}}
HELLO = {"role": "user", "content": "Who is there?"}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Room for 32,768 positions, and two keys."""
    root = tmp_path_factory.mktemp("limits")
    folder = write_tiny_lfm2_audio(root / "s2s", loudness=CALM, positions=32_768)
    services = services_of(root / "home", folder)
    keys = root / "keys.toml"
    keys.write_text(
        "".join(f'[{n}]\nsha256 = "{digest_of(key).hex()}"\n' for n, key in KEYS.items())
    )
    settings = Settings(home=root / "home", access=Access(api_keys_file=keys))
    with listening(create_app(services.engine, services.registry, settings)) as port:
        yield f"http://127.0.0.1:{port}", services.engine


@pytest.fixture
def sdk(served):
    def of(name):
        return openai.OpenAI(base_url=f"{served[0]}/v1", api_key=KEYS[name], max_retries=0)

    yield of
    wait_for(lambda: served[1].load["s2s"]["running"] == 0)


@pytest.fixture
def create(sdk):
    with sdk("anna") as client:
        yield client.chat.completions.create


def clip(seconds: float) -> bytes:
    pcm = to_s16le(np.resize(np.asarray(waveform(0.7), np.float32), round(16_000 * seconds)))
    return wav_header(16_000, len(pcm)) + pcm


def user_audio(content: bytes, name: str = "wav") -> dict:
    audio = {"data": base64.b64encode(content).decode(), "format": name}
    return {"role": "user", "content": [{"type": "input_audio", "input_audio": audio}]}


# -- length ----------------------------------------------------------------------------------
def test_conversation_of_two_hundred_turns_is_answered(create):
    """Half of them are spoken: each recording is encoded, equal ones once."""
    heard, said = user_audio(clip(0.3)), {"role": "assistant", "content": "Yes."}
    answer = create(messages=[heard, said] * 100 + [heard], **ALOUD)
    assert answer.choices[0].message.audio.data
    assert answer.usage.prompt_tokens > 200 * 5
    text = create(messages=[HELLO, said] * 100 + [HELLO], **ASK)
    assert text.choices[0].message.content


@pytest.mark.slow
def test_prompt_of_ten_thousand_tokens_is_answered(create):
    long = {"role": "user", "content": "x" * 10_000}
    answer = create(messages=[long], **ALOUD)
    assert answer.usage.prompt_tokens > 10_000
    assert answer.choices[0].message.audio.data
    for ask in (ALOUD, ASK):
        with pytest.raises(openai.BadRequestError, match="32768") as refused:
            create(messages=[{"role": "user", "content": "x" * 40_000}], **ask)
        assert refused.value.code == "context_length_exceeded"


def test_audio_of_five_hundredths_of_a_second_is_accepted(create):
    assert create(messages=[user_audio(clip(0.05))], **ALOUD).choices[0].message.audio.data


def test_audio_of_five_minutes_is_refused(create):
    with pytest.raises(openai.APIStatusError, match="120 s") as refused:
        create(messages=[user_audio(clip(300.0))], **ALOUD)
    assert refused.value.status_code == 413


# -- what a file says of itself --------------------------------------------------------------
def flac() -> bytes:
    encoder = stream_encoder("flac", 16_000)
    return encoder.write(np.asarray(waveform(0.3), np.float32)) + encoder.finish()


def wav_of(rate: int, channels: int, bits: int, size: int = 4000) -> bytes:
    block = channels * bits // 8
    head = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, channels,
                       rate, (rate * block) & 0xFFFFFFFF, block & 0xFFFF, bits)  # fmt: skip
    return head + struct.pack("<4sI", b"data", size) + bytes(range(250)) * 16


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (flac(), "wav"),
        (flac(), "mp3"),
        (b"RIFF\0\0\0\0WAVE" + flac(), "wav"),
        (b"ID3" + b"\xff" * 5000, "mp3"),
        (b"\xff\xfb" + b"\0" * 3000, "mp3"),
        (wav_of(0, 1, 16), "wav"),
        (wav_of(16_000, 0, 16), "wav"),
        (wav_of(16_000, 65_535, 16), "wav"),
        (wav_of(16_000, 1, 0), "wav"),
        (wav_of(4_000_000_000, 1, 16), "wav"),
        (clip(0.3)[:100], "wav"),
        (clip(0.3)[:44], "wav"),
    ],
    ids=range(12),
)
def test_a_file_that_lies_is_refused(create, content, name):
    with pytest.raises(openai.BadRequestError) as refused:
        create(messages=[user_audio(content, name)], **ALOUD)
    assert refused.value.param in ("messages", "file")


def test_a_request_after_refusals_is_answered(create):
    assert create(messages=[HELLO], **ALOUD).choices[0].message.audio.data


# -- ids -------------------------------------------------------------------------------------
def given(name: str) -> dict:
    return {"role": "assistant", "audio": {"id": name}}


def test_an_answer_is_its_callers_alone(create, sdk):
    said = create(messages=[HELLO], **ALOUD).choices[0].message.audio
    assert create(messages=[HELLO, given(said.id), HELLO], **ALOUD)
    with sdk("ben") as other, pytest.raises(openai.BadRequestError, match="expired") as refused:
        other.chat.completions.create(messages=[HELLO, given(said.id), HELLO], **ALOUD)
    assert refused.value.param == "messages"
    first = sdk("anna").responses.create(model="s2s", input="a", max_output_tokens=4)
    with sdk("ben") as other, pytest.raises(openai.BadRequestError) as refused:
        other.responses.create(model="s2s", input="b", previous_response_id=first.id)
    assert refused.value.param == "previous_response_id"


@pytest.mark.parametrize("name", ["", "audio_0", "x" * 128, "\ud800", "'; DROP TABLE items; --"])
def test_an_id_that_never_was(served, create, name):
    body = ALOUD | {"messages": [HELLO, given(name), HELLO]}
    answer = httpx.post(
        f"{served[0]}/v1/chat/completions",
        content=json.dumps(body),
        headers={"authorization": f"Bearer {KEYS['anna']}", "content-type": "application/json"},
    )
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


# -- odd bodies ------------------------------------------------------------------------------
PART = {"type": "text", "text": "hm"}


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [{"content": "x"}]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "user", "content": []}]},
        {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": "x"}]}]},
        {"messages": [{"role": "user", "content": [PART | {"type": "image_url"}]}]},
        {"messages": [{"role": "user", "content": [PART, {"text": "x"}]}]},
        {"messages": [{"role": "assistant", "audio": {}}]},
        {"messages": [{"role": "assistant", "audio": {"id": 5}}]},
        {"messages": [{"role": "system", "audio": {"id": "audio_0"}}]},
        {"messages": "hello"},
        {"messages": [5]},
        {"modalities": ["audio"], "audio": None},
        {"modalities": "audio"},
        {"audio": []},
        {"seed": 2**63},
        {"max_completion_tokens": 0},
        {"audio_top_k": -1},
        {"temperature": 9.0},
        {"tools": [{}]},
        {"stream": "yes"},
    ],
    ids=range(23),
)
def test_invalid_spoken_chat_bodies_name_their_field(served, create, change):
    answer = httpx.post(
        f"{served[0]}/v1/chat/completions",
        json=ALOUD | {"messages": [HELLO]} | change,
        headers={"authorization": f"Bearer {KEYS['anna']}"},
        timeout=60,
    )
    assert answer.status_code == 400, answer.text[:300]
    assert answer.json()["error"]["param"]
