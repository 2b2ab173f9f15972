"""The embedded aligner, as it is served by default: when each word is said."""

from __future__ import annotations

import base64
import itertools
import json
from pathlib import Path

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from izwi.audio.decode import decode_audio
from izwi.audio.encode import wav_header
from izwi.audio.pcm import to_s16le
from izwi_api.cli.main import app as izwi
from izwi_api.settings import DEFAULT_MODELS
from tests.api.in_process import serving

RATE = 16_000
STEP_S = 0.08
GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "words.npz")
SENTENCES = (
    "The train leaves at seven in the morning.",
    "She put the book on the table near the window.",
)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    with (
        serving(home, *DEFAULT_MODELS) as (url, _),
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        yield http


@pytest.fixture(scope="module")
def said(client):
    """The embedded voice's speech of each sentence, 16 kHz."""
    fields = {"model": "izwi-tiny-tts", "voice": "amber", "response_format": "wav", "seed": 1}
    answers = [client.post("/v1/audio/speech", json=fields | {"input": s}) for s in SENTENCES]
    return [decode_audio(answer.content, RATE) for answer in answers]


def wav(samples):
    pcm = to_s16le(samples)
    return wav_header(RATE, len(pcm)) + pcm


def align(client, samples, text):
    files = {"file": ("a.wav", wav(samples))}
    answer = client.post("/v1/audio/align", data={"text": text}, files=files)
    assert answer.status_code == 200, answer.text
    return answer.json()["words"]


def times(words):
    return np.array([time for word in words for time in (word["start"], word["end"])])


def silence(seconds):
    return np.zeros(round(seconds * RATE), np.float32)


def audible(samples):
    """When the speech begins and ends, in seconds."""
    return np.flatnonzero(np.abs(samples) > 0.02)[[0, -1]] / RATE


@pytest.mark.parametrize("late_s", [0.0, 0.9])
@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_words_are_found_where_the_synthesiser_says_that_they_are(client, number, late_s):
    text, known_ms = str(GOLDEN[f"text_{number}"]), GOLDEN[f"times_ms_{number}"]
    audio = GOLDEN[f"sound_{number}"].astype(np.float32) / 128
    words = align(client, np.concatenate([silence(late_s), audio]), text)
    assert [text[word["text_start"] : word["text_end"]] for word in words] == [
        word.strip(".,?") for word in text.split()
    ]
    off_s = np.abs(times(words) - late_s - known_ms / 1000)[known_ms >= 0]
    assert off_s.mean() < STEP_S
    assert (off_s <= 2 * STEP_S).mean() > 0.9


@pytest.mark.slow
def test_what_the_embedded_voice_says_has_its_words_in_order(client, said):
    for samples, text in zip(said, SENTENCES, strict=True):
        words = align(client, samples, text)
        assert [word["word"] for word in words] == text.removesuffix(".").split()
        found = times(words)
        assert (np.diff(found) >= 0).all()
        assert found[[0, -1]] == pytest.approx(audible(samples), abs=2 * STEP_S)


def test_nothing_is_said_in_a_pause(client, said):
    pause_s = 1.0
    samples = np.concatenate([said[0], silence(pause_s), said[1]])
    words = align(client, samples, " ".join(SENTENCES))
    before = len(SENTENCES[0].split())
    ends_s = audible(said[0])[1]
    begins_s = len(said[0]) / RATE + pause_s + audible(said[1])[0]
    assert words[before - 1]["end"] == pytest.approx(ends_s, abs=2 * STEP_S)
    assert words[before]["start"] == pytest.approx(begins_s, abs=2 * STEP_S)


def test_a_transcription_has_the_times_of_its_words(client, said):
    fields = {"model": "izwi-tiny-asr", "response_format": "verbose_json"}
    files = {"file": ("a.wav", wav(said[0]))}
    url = "/v1/audio/transcriptions"
    words = client.post(
        url, data=fields | {"timestamp_granularities[]": "word"}, files=files
    ).json()["words"]
    assert len(words) > 5
    assert all(one["end"] <= other["start"] for one, other in itertools.pairwise(words))
    assert times(words)[[0, -1]] == pytest.approx(audible(said[0]), abs=2 * STEP_S)
    srt = client.post(url, data=fields | {"response_format": "srt"}, files=files).text
    assert f"{words[0]['start']:.3f}".replace(".", ",") in srt.splitlines()[1]


def test_the_command_needs_no_model(client, said, tmp_path):
    (tmp_path / "a.wav").write_bytes(wav(said[0]))
    asked = ["align", str(tmp_path / "a.wav"), "--text", SENTENCES[0], "--device", "cpu"]
    done = CliRunner().invoke(izwi, asked)
    assert done.exit_code == 0, done.output
    printed = [line.split("\t") for line in done.stdout.splitlines()]
    reported = align(client, said[0], SENTENCES[0])
    assert [word for _, _, word in printed] == [word["word"] for word in reported]
    assert [float(start) for start, _, _ in printed] == [word["start"] for word in reported]


@pytest.mark.parametrize(("seconds", "status"), [(8.0, 200), (8.1, 413)])
def test_it_takes_eight_seconds(client, seconds, status):
    files = {"file": ("a.wav", wav(silence(seconds)))}
    assert client.post("/v1/audio/align", data={"text": "a"}, files=files).status_code == status


def test_speech_tells_the_times_of_its_words(client):
    text = "It is warm. The train leaves at seven."
    fields = {"model": "izwi-tiny-tts", "voice": "amber", "seed": 1, "input": text}
    asked = fields | {"word_timestamps": True, "stream_format": "sse", "response_format": "pcm"}
    reported = [
        json.loads(line.removeprefix("data: "))
        for line in client.post("/v1/audio/speech", json=asked).text.splitlines()
        if line.startswith("data: {")
    ]
    words = [word for event in reported for word in event.get("words", ())]
    assert [word["word"] for word in words] == fields["input"].replace(".", "").split()
    pcm = b"".join(base64.b64decode(event.get("audio", "")) for event in reported)
    heard = decode_audio(wav_header(24_000, len(pcm)) + pcm, RATE)
    assert (np.diff(times(words)) >= 0).all()
    assert times(words)[[0, -1]] == pytest.approx(audible(heard), abs=2 * STEP_S)


def test_no_word_ends_after_audio_that_does_not_contain_it(client):
    audio = np.random.default_rng(2).normal(size=RATE).astype(np.float32) * 0.05
    words = align(client, audio, " ".join(SENTENCES))
    assert len(words) == 18
    assert all(0.0 <= word["start"] <= word["end"] <= 1.0 for word in words)
