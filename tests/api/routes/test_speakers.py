"""Who speaks, with the embedded models: the public SDK, verification, subtitles."""

from __future__ import annotations

import base64
import json

import httpx
import numpy as np
import openai
import pytest
from typer.testing import CliRunner

from izwi.audio.decode import decode_audio
from izwi.audio.encode import wav_header
from izwi.audio.pcm import to_s16le
from izwi_api.cli.main import app as izwi
from izwi_api.settings import DEFAULT_MODELS
from tests.api.in_process import serving

pytestmark = pytest.mark.slow  # two servers with weights

RATE = 16_000
TTS, ASR = DEFAULT_MODELS[:2]
LINES = (
    ("amber", "The train leaves at seven in the morning."),
    ("hugo", "She put the book on the table near the window."),
    ("amber", "We have been waiting for the train for an hour."),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("home"), TTS, ASR) as (url, _):
        yield url


@pytest.fixture(scope="module")
def client(server):
    with httpx.Client(base_url=server, timeout=60) as http:
        yield http


@pytest.fixture(scope="module")
def sdk(server):
    return openai.OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def said(client):
    fields = {"model": TTS, "response_format": "wav", "seed": 1}
    answers = [
        client.post("/v1/audio/speech", json=fields | {"voice": voice, "input": text})
        for voice, text in LINES
    ]
    return [decode_audio(answer.content, RATE) for answer in answers]


@pytest.fixture(scope="module")
def dialog(said):
    pause = np.zeros(RATE // 2, np.float32)
    return wav(np.concatenate([part for clip in said for part in (clip, pause)]))


def wav(samples):
    pcm = to_s16le(samples)
    return wav_header(RATE, len(pcm)) + pcm


def data_url(samples):
    return f"data:audio/wav;base64,{base64.b64encode(wav(samples)).decode()}"


def merged(segments):
    """The speakers in turn."""
    names = [segment.speaker for segment in segments]
    return [name for n, name in enumerate(names) if n == 0 or names[n - 1] != name]


def test_sdk_gets_segments_by_speaker(sdk, dialog, said):
    answer = sdk.audio.transcriptions.create(
        model=ASR,
        file=("a.wav", dialog),
        response_format="diarized_json",
        chunking_strategy="auto",
    )
    assert merged(answer.segments) == ["A", "B", "A"]
    assert answer.task == "transcribe"
    assert answer.usage.type == "duration"
    second = next(s for s in answer.segments if s.speaker == "B")
    assert second.type == "transcript.text.segment"
    assert "window" in " ".join(s.text for s in answer.segments if s.speaker == "B").lower()
    begins_s = len(said[0]) / RATE
    assert begins_s - 0.2 <= second.start <= begins_s + 1.2
    assert answer.text == " ".join(segment.text for segment in answer.segments)


def test_known_speakers_have_their_names(sdk, dialog, said):
    reference = np.concatenate([said[1], said[1]])[: 4 * RATE]
    answer = sdk.audio.transcriptions.create(
        model=ASR,
        file=("a.wav", dialog),
        response_format="diarized_json",
        chunking_strategy={"type": "server_vad", "silence_duration_ms": 300},
        known_speaker_names=["hugo"],
        known_speaker_references=[data_url(reference)],
    )
    assert merged(answer.segments) == ["A", "hugo", "A"]


def test_stream_has_an_event_for_each_segment(sdk, dialog):
    events = list(
        sdk.audio.transcriptions.create(
            model=ASR, file=("a.wav", dialog), response_format="diarized_json", stream=True
        )
    )
    segments = [event for event in events if event.type == "transcript.text.segment"]
    assert merged(segments) == ["A", "B", "A"]
    ids = [segment.id for segment in segments]
    deltas = [event for event in events if event.type == "transcript.text.delta"]
    assert set(ids) == {delta.segment_id for delta in deltas}
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == "".join(delta.delta for delta in deltas)


def test_subtitles_and_text_have_names(client, dialog):
    def written(kind):
        data = {"model": ASR, "response_format": kind, "speakers": "true"}
        return client.post(
            "/v1/audio/transcriptions", data=data, files={"file": ("a.wav", dialog)}
        ).text

    assert "\nA: " in written("srt")
    assert "\nB: " in written("srt")
    assert "<v A>" in written("vtt")
    assert "<v B>" in written("vtt")
    assert [line[:3] for line in written("text").splitlines()] == ["A: ", "B: ", "A: "]


def test_command_writes_who_speaks(server, dialog, tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(dialog)
    shown = CliRunner().invoke(
        izwi, ["transcribe", str(path), "--speakers", "--json", "--server", server]
    )
    assert shown.exit_code == 0, shown.output
    segments = json.loads(shown.output)["segments"]
    assert {segment["speaker"] for segment in segments} == {"A", "B"}


def test_verification_and_identification(client, said):
    def post(path, **data):
        answer = client.post(
            f"/v1/voice/{path}", data=data, files={"file": ("a.wav", wav(said[2]))}
        )
        return answer.status_code, answer.json()

    _, same = post("verify", reference=data_url(said[0]))
    _, other = post("verify", reference=data_url(said[1]))
    assert same["is_same_speaker"]
    assert not other["is_same_speaker"]
    assert same["score"] > other["score"] + 0.2
    for name, clip in (("ann", said[0]), ("bob", said[1])):
        made = client.post(
            "/v1/audio/voices",
            data={"name": name, "consent": "yes", "x_vector_only": "true"},
            files={"audio_sample": ("a.wav", wav(clip))},
        )
        assert made.status_code == 200, made.text
    _, ranked = post("identify")
    assert [(v["name"], v["is_same_speaker"]) for v in ranked["data"]] == [
        ("ann", True),
        ("bob", False),
    ]
    assert post("verify", voice="ann")[1]["is_same_speaker"]
    assert post("verify", voice="nobody")[0] == 404
    assert post("verify")[1]["error"]["param"] == "voice"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"known_speaker_names[]": "ann"}, "known_speaker_references"),
        (
            {"known_speaker_names[]": "ann", "known_speaker_references[]": "data:text/html,x"},
            "known_speaker_references",
        ),
        (
            {
                "known_speaker_names[]": "ann",
                "known_speaker_references[]": data_url(np.ones(RATE, np.float32) / 9),
            },
            "known_speaker_references",
        ),
        ({"response_format": "json", "speakers": "true"}, "speakers"),
        ({"response_format": "diarized_json", "include[]": "logprobs"}, "include"),
        ({"chunking_strategy": '{"type": "server_vad", "threshold": 2}'}, "chunking_strategy"),
    ],
)
def test_wrong_fields_are_refused(client, dialog, fields, param):
    data = {"model": ASR, "response_format": "diarized_json"} | fields
    answer = client.post("/v1/audio/transcriptions", data=data, files={"file": ("a", dialog)})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(param)


def test_silence_has_no_segments(client):
    data = {"model": ASR, "response_format": "diarized_json"}
    files = {"file": ("a.wav", wav(np.zeros(2 * RATE, np.float32)))}
    answer = client.post("/v1/audio/transcriptions", data=data, files=files).json()
    assert (answer["segments"], answer["text"]) == ([], "")


def test_without_a_speaker_encoder_the_error_says_so(tmp_path_factory, dialog):
    with serving(tmp_path_factory.mktemp("home"), ASR) as (url, _):
        answer = httpx.post(
            f"{url}/v1/audio/transcriptions",
            data={"model": ASR, "response_format": "diarized_json"},
            files={"file": ("a.wav", dialog)},
            timeout=60,
        )
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "response_format"
    assert "speaker encoder" in error["message"]
