"""POST /v1/audio/align, and word times of transcriptions, on a small engine."""

from __future__ import annotations

import itertools
import json
import re
import unicodedata

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from izwi.errors import InvalidRequest
from izwi.model.alignment import AlignedWord
from izwi.model.capability import Capability
from izwi.request.request import Request
from izwi_api.cli.main import app
from izwi_api.serve.app import create_app
from izwi_api.services.transcription.subtitles import (
    cue_lines,
    cut_cues,
    cut_segments,
    estimate_words,
)
from izwi_api.services.transcription.transcribe import Segment
from izwi_api.settings import Settings
from tests.api.conftest import FakeEngine, FakePrompt, FakeRegistry, FakeTranscription, listening

URL = "/v1/audio/align"


def bare(text):
    """Words without punctuation, and their positions in the text."""
    return [(m[0], m.start(), m.end()) for m in re.finditer(r"\w+", text)]


class FakeAligner:
    """Gives the n-th word half a second from the n-th second on; the entries are seconds."""

    capabilities = (Capability.ALIGN,)
    num_codebooks = 1

    def __init__(self, languages=("english", "English")):
        self.languages = languages
        self.asked = []

    def split_audio(self, samples):
        step = 4 * 16_000
        return [(i, min(i + step, len(samples))) for i in range(0, len(samples), step)]

    def prepare_alignment(self, request_id, model, ask):
        self.asked.append(ask)
        if not ask.text.split():
            raise InvalidRequest("there is no word in the text", param="text")
        entries = "".join(chr(n) for n in range(len(ask.text.split())))
        prompt = FakePrompt("listen", entries.replace("\x01", "\x11").replace("\x02", "\x12"))
        return Request(request_id, model, prompt, max_entries=len(entries), ask=ask)

    def read_alignment(self, request, classes):
        seconds = [second % 16 for second in classes]
        return [
            AlignedWord(word, second, second + 0.5, start, stop)
            for second, (word, start, stop) in zip(seconds, bare(request.ask.text), strict=True)
        ]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    aligner = FakeAligner()
    models = {"org/asr": FakeTranscription(), "org/aligner": aligner}
    settings = Settings(home=tmp_path_factory.mktemp("home"))
    with listening(create_app(FakeEngine(), FakeRegistry(**models), settings)) as port:
        yield aligner, port


@pytest.fixture
def client(world):
    with httpx.Client(base_url=f"http://127.0.0.1:{world[1]}", timeout=60) as http:
        yield http


def post(client, url, audio, **fields):
    return client.post(url, data=fields, files={"file": ("a.wav", audio)})


def test_words_have_times_and_places(client, world, tone_wav):
    answer = post(client, URL, tone_wav(3.0), text="The cat, sat.", language="en").json()
    assert answer["duration"] == 3.0
    assert answer["words"] == [
        {"word": "The", "start": 0, "end": 0.5, "text_start": 0, "text_end": 3},
        {"word": "cat", "start": 1, "end": 1.5, "text_start": 4, "text_end": 7},
        {"word": "sat", "start": 2, "end": 2.5, "text_start": 9, "text_end": 12},
    ]
    assert world[0].asked[-1].language == "en"


def test_subtitles_of_a_text(client, tone_wav):
    srt = post(client, URL, tone_wav(3.0), text="One two.", response_format="srt")
    assert srt.headers["content-type"].startswith("application/x-subrip")
    assert srt.text == "1\n00:00:00,000 --> 00:00:01,500\nOne two.\n\n"
    vtt = post(client, URL, tone_wav(3.0), text="One two.", response_format="vtt")
    assert vtt.text.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nOne two.")


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({}, 400, "text"),
        ({"text": ""}, 400, "text"),
        ({"text": "a", "model": "org/asr"}, 400, "model"),
        ({"text": "a", "model": "org/none"}, 404, "model"),
        ({"text": "a", "response_format": "text"}, 400, "response_format"),
        ({"text": "a", "color": "red"}, 400, "color"),
        ({"text": ["a", "b"]}, 400, "text"),
    ],
)
def test_invalid_alignment_requests_are_400(client, tone_wav, fields, status, param):
    answer = post(client, URL, tone_wav(1.0), **fields)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param


def test_a_file_is_needed(client):
    answer = client.post(URL, files={"text": (None, "a")})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")


def test_times_of_transcribed_words_count_from_the_start_of_the_audio(client, world, tone_wav):
    fields = {
        "model": "org/asr",
        "response_format": "verbose_json",
        "timestamp_granularities[]": ["word", "segment"],
    }
    answer = post(client, "/v1/audio/transcriptions", tone_wav(6.0), **fields).json()
    # cut for the aligner's four seconds, of which the transcriber would take ten
    assert [(s["start"], s["end"]) for s in answer["segments"]] == [(0.0, 4.0), (4.0, 6.0)]
    starts = [0, 1, 2, 3, 4, 5]
    assert answer["words"] == [{"word": "word", "start": t, "end": t + 0.5} for t in starts]
    assert [len(ask.samples) for ask in world[0].asked[-2:]] == [64_000, 32_000]
    alone = fields | {"timestamp_granularities[]": "word"}
    answer = post(client, "/v1/audio/transcriptions", tone_wav(2.0), **alone).json()
    assert len(answer["words"]) == 2
    assert "segments" not in answer


def test_subtitles_of_a_transcription_are_cut_at_words(client, tone_wav):
    fields = {"model": "org/asr", "response_format": "srt", "prompt": "end. Then"}
    answer = post(client, "/v1/audio/transcriptions", tone_wav(3.0), **fields).text
    assert answer == (
        # the fourth and fifth word would be behind the three seconds that there are
        "1\n00:00:00,000 --> 00:00:03,000\nword word word end.\n\n"
        "2\n00:00:03,000 --> 00:00:04,000\nThen\n\n"
    )


def test_a_language_that_the_aligner_does_not_know(client, world, tone_wav, monkeypatch):
    monkeypatch.setattr(world[0], "languages", ("German",))
    fields = {"model": "org/asr", "response_format": "verbose_json"}
    words = fields | {"timestamp_granularities[]": "word"}
    answer = post(client, "/v1/audio/transcriptions", tone_wav(1.0), **words)
    assert answer.status_code == 400
    assert "German" in answer.json()["error"]["message"]
    fields["response_format"] = "srt"  # nobody asked for words: segments do
    answer = post(client, "/v1/audio/transcriptions", tone_wav(1.0), **fields)
    assert answer.text.startswith("1\n00:00:00,000 --> 00:00:01,000\nword\n")


def timed(text, seconds=0.4, gap=0.0):
    return [
        AlignedWord(word, n * (seconds + gap), n * (seconds + gap) + seconds, start, stop)
        for n, (word, start, stop) in enumerate(bare(text))
    ]


@pytest.mark.parametrize(
    ("text", "pace", "cues"),
    [
        ("", {}, []),
        ("Wait. What?", {}, ["Wait. What?"]),  # too short to be read apart
        ('He said: "So be it." Then he left.', {}, ['He said: "So be it."', "Then he left."]),
        ("one two", {"gap": 1.1}, ["one", "two"]),
        ("a " * 20, {"seconds": 1.0}, [" ".join("a" * 7)] * 2 + [" ".join("a" * 6)]),
        ("abcdefghi " * 10, {"seconds": 0.1}, [" ".join(["abcdefghi"] * 8), "abcdefghi abcdefghi"]),
    ],
)
def test_cues(text, pace, cues):
    made = cut_cues(text, timed(text, **pace))
    assert [cue.text for cue in made] == cues
    for cue, following in itertools.pairwise(made):
        assert cue.start_s < cue.end_s <= following.start_s


def test_wide_letters_count_twice_and_nothing_is_lost():
    text = "「你好」，" * 12
    places = [n for n, c in enumerate(text) if c in "你好"]
    words = [AlignedWord(text[n], i * 0.1, i * 0.1 + 0.1, n, n + 1) for i, n in enumerate(places)]
    made = cut_cues(text, words)
    assert "".join(cue.text for cue in made) == text
    assert all(len(cue.text) <= 45 for cue in made)  # 42, and punctuation around them
    assert len(made) == 2
    assert all(cue.text.startswith("「") for cue in made)


def widths(line):
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


def assert_readable(cues, text):
    """Each cue is short enough in letters, lines and time, and together they are the text."""
    for cue in cues:
        lines = cue_lines(cue.text)
        assert 1 <= len(lines) <= 2
        assert all(0 < widths(line) <= 42 for line in lines)
        assert 0 <= cue.end_s - cue.start_s <= 7.0 + 1e-9
    assert "".join("".join(cue.text.split()) for cue in cues) == "".join(text.split())


@given(
    st.lists(
        st.sampled_from(["a", "Wait.", "x" * 41, "w" * 100, "「你好」，", "3.5", "...", "!" * 50])
    ),
    st.sampled_from([0.01, 0.4, 3.0, 9.0]),
)
def test_cues_of_any_text_can_be_read(parts, seconds):
    text = " ".join(parts)
    if bare(text):
        assert_readable(cut_cues(text, timed(text, seconds)), text)
    end_s = 2.0 + seconds * len(parts)
    words = estimate_words(text, 2.0, end_s)
    if words:
        assert (words[0].start_s, words[-1].end_s) == (2.0, round(end_s, 3))
        assert_readable(cut_cues(text, words), text)
    else:
        assert not any(c.isalnum() for c in text)


def test_three_sentences_are_three_cues_with_and_without_word_times():
    text = "The red house is near the river. The train leaves at seven. Bring an umbrella today."
    whole, empty = Segment(1.0, 7.7, text, "English", ()), Segment(7.7, 8.1, "", "English", ())
    apart = [sentence + "." for sentence in text.rstrip(".").split(". ")]
    for words in (None, [timed(text), []]):
        assert [cue.text for cue in cut_segments([whole, empty], words)] == apart
    assert cue_lines(apart[0] + " " + apart[1]) == [
        "The red house is near the river.",
        "The train leaves at seven.",
    ]


def run_align(*arguments):
    return CliRunner().invoke(app, ["align", *map(str, arguments)])


def test_the_command_asks_a_server(world, tone_wav, tmp_path):
    (tmp_path / "a.wav").write_bytes(tone_wav(2.0))
    server = f"http://127.0.0.1:{world[1]}"
    done = run_align(tmp_path / "a.wav", "--text", "One, two.", "--server", server)
    assert done.output == "0.000\t0.500\tOne\n1.000\t1.500\ttwo\n"
    (tmp_path / "a.txt").write_text("One, two.")
    asked = (tmp_path / "a.wav", "--text-file", tmp_path / "a.txt", "--server", server)
    assert "00:00:01.500\nOne, two.\n" in run_align(*asked, "--format", "vtt").output
    reported = json.loads(run_align(*asked, "--format", "json").output)
    assert reported["words"][1] == {"word": "two", "start": 1.0, "end": 1.5}


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--model", "m"),
        ("--model", "m", "--text", "a", "--text-file", "b"),
        ("--model", "/nowhere/at/all", "--text", "a"),
    ],
)
def test_the_command_says_what_it_lacks(tone_wav, tmp_path, options):
    (tmp_path / "a.wav").write_bytes(tone_wav(1.0))
    done = run_align(tmp_path / "a.wav", "--offline", *options)
    assert done.exit_code == 2
    assert done.stderr.startswith("izwi: ")
