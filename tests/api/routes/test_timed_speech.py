"""When the words of a speech are said: in events, in sessions and in batches, at every speed."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner
from websockets.sync.client import connect

from izwi.audio.decode import decode_audio
from izwi.audio.encode import stream_encoder
from izwi.errors import TooLarge
from izwi.inputs.speech import SpeechInput
from izwi.model.alignment import AlignedWord
from izwi.request.request import Chunk, Reason
from izwi_api.cli.main import app as izwi
from izwi_api.serve.app import create_app
from izwi_api.services.models.served import ServedModels
from izwi_api.services.speech.synthesis import Speech, encoded_audio
from izwi_api.services.speech.word_times import TimedSpeech
from izwi_api.settings import Settings
from izwi_api.usage.metering import Charge
from tests.api.conftest import FakeEngine, FakeRegistry, FakeSpeech, listening, wait_for
from tests.api.in_process import serving
from tests.api.routes.test_align import FakeAligner, bare
from tests.models.tiny_aligner import write_tiny_aligner

FRAME_S = 0.08  # FakeSpeech makes a frame a character
RATE = 24_000
ASK = {
    "model": "tts",
    "input": "Hello there. And you?",
    "voice": "Ann",
    "response_format": "pcm",
    "stream_format": "sse",
    "word_timestamps": True,
}


class CharacterAligner(FakeAligner):
    """Aligns FakeSpeech: a word is said at the share of the piece where its letters are."""

    def read_alignment(self, request, classes):
        assert len(classes) == len(request.ask.text.split())
        return [
            AlignedWord(word, start * FRAME_S, stop * FRAME_S, start, stop)
            for word, start, stop in bare(request.ask.text)
        ]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    engine, aligner = FakeEngine(), CharacterAligner(("English",))
    registry = FakeRegistry(tts=FakeSpeech(), aligner=aligner)
    app = create_app(engine, registry, Settings(home=tmp_path_factory.mktemp("home")))
    with listening(app, ws="auto") as port:
        yield SimpleNamespace(engine=engine, aligner=aligner, port=port)


@pytest.fixture
def client(world):
    with httpx.Client(base_url=f"http://127.0.0.1:{world.port}", timeout=60) as http:
        yield http
    world.engine.step_s = 0.001
    wait_for(lambda: not world.engine.live)


def events_of(client, **fields):
    answer = client.post("/v1/audio/speech", json=ASK | fields)
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.split("\n\n") if line]


def audio_of(events):
    return b"".join(base64.b64decode(event.get("audio", "")) for event in events)


def words_of(events):
    return [word for event in events for word in event.get("words", [])]


def in_time(text, speed=1.0):
    """What FakeSpeech says when, piece after piece."""
    words, done = [], 0
    for piece in FakeSpeech().split_text(text):
        for word, start, stop in bare(piece):
            times = [round((done + at) * FRAME_S / speed, 3) for at in (start, stop)]
            words.append({"word": word, "start": times[0], "end": times[1]})
        done += len(piece)
    return words


@pytest.mark.parametrize("speed", [1.0, 0.25, 0.8, 2.0, 4.0])
def test_words_come_as_events_in_the_time_of_what_is_delivered(client, speed):
    events = events_of(client, speed=speed)
    words = words_of(events)
    assert words == [pytest.approx(word) for word in in_time(ASK["input"], speed)]
    assert [word["word"] for word in words] == ["Hello", "there", "And", "you"]
    kinds = [event["type"] for event in events]
    assert set(kinds) == {"speech.audio.delta", "speech.audio.words", "speech.audio.done"}
    assert kinds[-1] == "speech.audio.done"
    pcm = b"".join(base64.b64decode(event.get("audio", "")) for event in events)
    assert words[-1]["end"] <= len(pcm) / 2 / RATE + 0.05


def test_the_audio_of_each_piece_is_aligned(client, world):
    world.aligner.asked.clear()
    events_of(client, speed=2.0, language="english")
    asked = world.aligner.asked
    assert {ask.text for ask in asked} == set(FakeSpeech().split_text(ASK["input"]))
    for ask in asked:
        assert ask.language == "English"
        assert len(ask.samples) == pytest.approx(len(ask.text) * FRAME_S * 16_000, abs=2)
        assert np.abs(ask.samples).max() == pytest.approx(0.3, abs=0.05)


def test_the_words_of_a_piece_come_before_the_next_piece_is_whole(client, world):
    world.engine.step_s = 0.02
    text = "Hi. And this is a sentence that takes longer than that."
    kinds = [event["type"] for event in events_of(client, input=text)]
    first = kinds.index("speech.audio.words")
    assert "speech.audio.delta" in kinds[first:]


@pytest.mark.parametrize("audio_format", ["mp3", "opus", "flac"])
def test_every_format_has_the_same_times(client, audio_format):
    events = events_of(client, response_format=audio_format)
    assert words_of(events) == [pytest.approx(word) for word in in_time(ASK["input"])]
    content = b"".join(base64.b64decode(event.get("audio", "")) for event in events)
    frames = len("".join(FakeSpeech().split_text(ASK["input"])))
    assert len(decode_audio(content, RATE)) / RATE == pytest.approx(frames * FRAME_S, abs=0.1)


def test_word_events_are_sent_on_request_only(client, world):
    world.aligner.asked.clear()
    kinds = {event["type"] for event in events_of(client, word_timestamps=False)}
    assert kinds == {"speech.audio.delta", "speech.audio.done"}
    assert not world.aligner.asked


@pytest.mark.parametrize(
    ("fields", "reported"),
    [({"stream_format": "audio"}, "'sse'"), ({"stream_format": None}, "'sse'")],
)
def test_formats_without_events_refuse_word_times(client, fields, reported):
    answer = client.post("/v1/audio/speech", json=ASK | fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "word_timestamps")
    assert reported in error["message"]


def test_a_language_that_the_aligner_does_not_know(client, world, monkeypatch):
    monkeypatch.setattr(world.aligner, "languages", ("German",))
    answer = client.post("/v1/audio/speech", json=ASK | {"language": "english"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "word_timestamps")
    assert "German" in answer.json()["error"]["message"]


def test_without_an_aligner_it_is_said_what_is_missing(client, server):
    with httpx.Client(base_url=server.url) as http:
        answer = http.post("/v1/audio/speech", json=ASK)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "word_timestamps")
    assert "alignment model" in error["message"]


@pytest.mark.parametrize("error", [RuntimeError("a bug"), TooLarge("too long")])
def test_an_alignment_that_fails_does_not_change_the_audio(client, world, monkeypatch, error):
    whole = audio_of(events_of(client, word_timestamps=False))
    right = world.aligner.read_alignment

    def fail(request, classes):
        if "Hello" in request.ask.text:
            raise error
        return right(request, classes)

    monkeypatch.setattr(world.aligner, "read_alignment", fail)
    events = events_of(client)
    assert audio_of(events) == whole
    assert words_of(events) == [pytest.approx(word) for word in in_time(ASK["input"])[2:]]


def test_a_piece_longer_than_the_aligner_takes_is_timed_in_parts(client, world, monkeypatch):
    text = "one two three four, " + "five six seven eight nine ten, " * 2 + "eleven"
    limit = 3 * 16_000

    def split_audio(samples):
        return [(at, min(at + limit, len(samples))) for at in range(0, len(samples), limit)]

    world.aligner.asked.clear()
    monkeypatch.setattr(world.aligner, "split_audio", split_audio)
    words = words_of(events_of(client, input=text))
    asked = world.aligner.asked
    assert "".join(ask.text for ask in asked) == text
    assert len(asked) == 3
    assert all(len(ask.samples) <= limit for ask in asked)
    assert [word["word"] for word in words] == [word for word, *_ in bare(text)]
    for word, expected in zip(words, in_time(text), strict=True):
        assert word["start"] == pytest.approx(expected["start"], abs=1.0)
    starts = [word["start"] for word in words]
    assert starts == sorted(starts)


def test_disconnect_ends_speech_and_alignments(client, world):
    world.engine.step_s = 0.01
    ask = ASK | {"input": "Hi." + " a b" * 50}
    with client.stream("POST", "/v1/audio/speech", json=ask) as answer:
        pieces = answer.iter_raw()
        next(pieces)
        assert world.engine.live
        num_aborted = len(world.engine.aborted)
    wait_for(lambda: len(world.engine.aborted) > num_aborted and not world.engine.live)


def test_a_batch_has_the_words_of_each_item(client):
    items = [{"input": "one two."}, {"input": "three", "word_timestamps": False}]
    head = {"model": "tts", "voice": "Ann", "word_timestamps": True, "speed": 2.0}
    answer = client.post("/v1/audio/speech/batch", json=head | {"items": items}).json()
    first, second = answer["results"]
    assert first["words"] == [pytest.approx(word) for word in in_time("one two.", 2.0)]
    assert "words" not in second


def session(world, **fields):
    with connect(f"ws://127.0.0.1:{world.port}/v1/audio/speech/stream") as socket:
        head = {"type": "session.config", "model": "tts", "voice": "Ann", "word_timestamps": True}
        socket.send(json.dumps(head | fields))
        socket.send(json.dumps({"type": "input.text", "text": "one two. three"}))
        socket.send(json.dumps({"type": "input.done"}))
        while True:
            message = json.loads(socket.recv(60))
            yield message
            if message["type"] in ("session.done", "error"):
                return


@pytest.mark.parametrize("stream_audio", [True, False])
def test_a_session_has_word_times_with_the_audio_of_each_sentence(world, stream_audio):
    fields = {"audio_encoding": "base64", "split_granularity": "sentence", "speed": 0.5}
    reported = list(session(world, **fields, stream_audio=stream_audio))
    for index, text in enumerate(("one two.", "three")):
        chunks = [
            m for m in reported if m["type"] == "audio.chunk" and m["sentence_index"] == index
        ]
        words = [word for chunk in chunks for word in chunk["timestamps"] or []]
        assert words == [pytest.approx(word) for word in in_time(text, 0.5)]


@pytest.mark.parametrize(
    "fields", [{"audio_encoding": "base64"}, {"split_granularity": "sentence"}]
)
def test_a_session_says_where_words_come(world, fields):
    (reported,) = session(world, **fields)
    assert reported["error"]["param"] == "word_timestamps"
    assert "base64" in reported["message"]


# ---- real audio ----------------------------------------------------------------------------


def bursts(samples, rate):
    """Where the audio is loud: (start, end) in seconds; dips of up to 50 ms belong to a burst."""
    loud, found = np.flatnonzero(np.abs(samples) > 0.1) / rate, []
    for at in loud.tolist():
        if found and at - found[-1][1] < 0.05:
            found[-1] = (found[-1][0], at)
        else:
            found.append((at, at))
    return found


class BurstAligner:
    """Gives each word a burst of the audio."""

    model = SimpleNamespace(split_audio=lambda samples: [(0, len(samples))])

    async def align(self, asks, *, charged):
        assert not charged
        return [
            [
                AlignedWord(word, *times, start, stop)
                for (word, start, stop), times in zip(
                    bare(ask.text), bursts(ask.samples, 16_000), strict=True
                )
            ]
            for ask in asks
        ]


class BurstStream:
    """A piece whose words are bursts of 0.3 s, with as much silence around them."""

    def __init__(self, text):
        tone = 0.5 * np.sin(np.arange(int(0.3 * RATE)) * 2 * np.pi * 200 / RATE)
        silence = np.zeros(int(0.3 * RATE))
        parts = [part for _ in text.split() for part in (silence, tone)] + [silence]
        pcm = np.concatenate(parts).astype(np.float32)
        self._left = [pcm[at : at + 5000] for at in range(0, len(pcm), 5000)]

    def __aiter__(self):
        return self

    async def __anext__(self):
        pcm = self._left.pop(0)
        reason = None if self._left else Reason.STOP
        return Chunk("r", np.zeros((1, 1), np.int64), pcm=pcm, reason=reason)

    def abort(self):
        pass


@pytest.mark.parametrize(
    ("speed", "rates"),
    [(1.0, {}), (0.25, {}), (0.7, {0: 1.5}), (1.5, {}), (4.0, {}), (1.0, {1: 0.5})],
)
async def test_the_words_are_heard_when_they_are_said_to_be(speed, rates):
    texts = ["one two three", "four", "five six"]
    requests = [FakeSpeech().prepare_speech(text, "tts", SpeechInput(text)) for text in texts]
    engine = FakeEngine()
    engine.submit_all = lambda asked: [BurstStream(request.prompt.text) for request in asked]
    model = ServedModels(engine, FakeRegistry(tts=FakeSpeech())).speech("tts")
    speech = Speech(model, texts, requests, {}, rates, Charge())
    timed = TimedSpeech(speech, BurstAligner(), None, speed)
    pieces = [piece async for piece in encoded_audio(timed, stream_encoder("pcm", RATE), speed)]
    heard = bursts(np.frombuffer(b"".join(pieces), "<i2") / 32768, RATE)
    words = await timed.rest()
    assert [word.word for word in words] == ["one", "two", "three", "four", "five", "six"]
    near_s = 0.04 / min(1.0, speed, *rates.values())  # what is stretched has blurred edges
    for word, (start_s, end_s) in zip(words, heard, strict=True):
        assert word.start_s == pytest.approx(start_s, abs=near_s)
        assert word.end_s == pytest.approx(end_s, abs=near_s)


@pytest.mark.slow  # test_align_embedded.py has it with the embedded models
def test_the_real_engine_speaks_and_aligns(tmp_path):
    folder = write_tiny_aligner(tmp_path / "aligner")
    text = "It is warm. The road is long."
    ask = {"model": "izwi-tiny-tts", "voice": "amber", "input": text, "seed": 1}
    with (
        serving(tmp_path / "home", "izwi-tiny-tts", folder) as (url, _),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        reported = {speed: events_of(client, **ask, speed=speed) for speed in (1.0, 2.0)}
    words = {speed: words_of(events) for speed, events in reported.items()}
    assert [word["word"] for word in words[1.0]] == text.replace(".", "").split()
    pcm = b"".join(base64.b64decode(event.get("audio", "")) for event in reported[1.0])
    assert all(0 <= w["start"] <= w["end"] <= len(pcm) / 2 / RATE + 0.08 for w in words[1.0])
    for slow, fast in zip(words[1.0], words[2.0], strict=True):
        assert fast["start"] == pytest.approx(slow["start"] / 2, abs=0.001)
        assert fast["end"] == pytest.approx(slow["end"] / 2, abs=0.001)


# ---- the command line ----------------------------------------------------------------------


def say(*arguments):
    return CliRunner().invoke(izwi, ["say", *map(str, arguments)])


def test_the_command_writes_the_words_that_a_server_times(world, tmp_path):
    audio, words = tmp_path / "a.wav", tmp_path / "a.json"
    server = f"http://127.0.0.1:{world.port}"
    options = ("--voice", "Ann", "--out", audio, "--words", words, "--server", server)
    done = say("One, two.", *options)
    assert done.exit_code == 0, done.output
    reported = json.loads(words.read_text())
    assert reported["words"] == [pytest.approx(word) for word in in_time("One, two.")]
    assert reported["duration"] == pytest.approx(len(decode_audio(audio, RATE)) / RATE, abs=0.001)


def test_the_command_times_words_itself(tmp_path):
    aligner = write_tiny_aligner(tmp_path / "aligner")
    options = ("--device", "cpu", "--out", tmp_path / "a.wav", "--words", tmp_path / "a.json")
    done = say("It is warm.", "--voice", "amber", *options, "--aligner", aligner)
    assert done.exit_code == 0, done.output
    words = json.loads((tmp_path / "a.json").read_text())["words"]
    assert [word["word"] for word in words] == ["It", "is", "warm"]


@pytest.mark.parametrize(
    "options",
    [
        ("--aligner", "a"),
        ("--words", "a.json", "--aligner", "a", "--server", "http://127.0.0.1:1"),
    ],
)
def test_word_times_without_an_aligner_name_the_option(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = say("One.", *options)
    assert done.exit_code == 2
    assert "--aligner" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_server_without_an_aligner_leaves_no_file(server, tmp_path):
    options = ("--out", tmp_path / "a.wav", "--words", tmp_path / "a.json", "--server", server.url)
    done = say("One.", "--voice", "Ann", *options)
    assert done.exit_code == 2
    assert "alignment model" in done.stderr
    assert not list(tmp_path.iterdir())
