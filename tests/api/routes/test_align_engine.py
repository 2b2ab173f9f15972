"""Alignment through the API servers and the real engine, over checkpoints of random weights."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from typer.testing import CliRunner

from izwi.audio.encode import wav_header
from izwi.audio.pcm import to_s16le
from izwi_api.cli.main import app as izwi
from tests.api.in_process import serving
from tests.models.tiny_aligner import write_tiny_aligner
from tests.models.tiny_asr import waveform, write_tiny_asr

TEXT = "The system, and the land: it isn't the end."
WORDS = ["The", "system", "and", "the", "land", "it", "isn't", "the", "end"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("real")
    folders = [write_tiny_asr(root / "asr"), write_tiny_aligner(root / "aligner")]
    with (
        serving(root / "home", *folders) as (url, _),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        yield client, root


def wav(seconds):
    pcm = to_s16le(waveform(seconds))
    return wav_header(16_000, len(pcm)) + pcm


def align(client, seconds):
    fields = {"text": TEXT, "language": "en"}
    answer = client.post("/v1/audio/align", data=fields, files={"file": ("a.wav", wav(seconds))})
    assert answer.status_code == 200, answer.text
    return answer.json()["words"]


def test_times_are_the_same_alone_and_among_others(served):
    client, root = served
    lengths = [1.3, 2.0, 8.4, 9.0]
    alone = [align(client, seconds) for seconds in lengths]
    for words in alone:
        assert [word["word"] for word in words] == WORDS
        assert [TEXT[word["text_start"] : word["text_end"]] for word in words] == WORDS
        times = [time for word in words for time in (word["start"], word["end"])]
        assert times == sorted(times)
    assert len({str(words) for words in alone}) == len(lengths)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda seconds: align(client, seconds), lengths)) == alone
    (root / "a.wav").write_bytes(wav(1.3))
    asked = ["align", str(root / "a.wav"), "--text", TEXT, "--model", str(root / "aligner")]
    printed = CliRunner().invoke(izwi, [*asked, "--device", "cpu"]).stdout.splitlines()
    lines = [f"{word['start']:.3f}\t{word['end']:.3f}\t{word['word']}" for word in alone[0]]
    assert printed == lines


def test_a_transcription_has_words_with_times(served):
    client, _ = served
    fields = {
        "model": "asr",
        "language": "en",
        "max_new_tokens": 32,
        "response_format": "verbose_json",
        "timestamp_granularities[]": "word",
    }
    answer = client.post(
        "/v1/audio/transcriptions", data=fields, files={"file": ("a.wav", wav(2.0))}
    )
    assert answer.status_code == 200, answer.text
    reported = answer.json()
    assert reported["words"]
    assert all(word["start"] <= word["end"] for word in reported["words"])
    letters = "".join(word["word"] for word in reported["words"])
    assert letters == "".join(c for c in reported["text"] if c.isalnum() or c == "'")
