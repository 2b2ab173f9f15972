"""Long files over HTTP: samples lie in an unnamed file, and the answers are the same."""

from __future__ import annotations

import json
import sys
import tracemalloc
from hashlib import sha256
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from msgspec.structs import replace

from izwi.audio import decoded_audio
from izwi.audio.encode import wav_header
from izwi.inputs.speech import TranscriptionInput
from izwi_api.serve.app import create_app
from izwi_api.services.decoding import InProcess
from izwi_api.services.models.served import ServedModels
from izwi_api.services.transcription import transcribe
from izwi_api.services.transcription.transcribe import open_transcription
from izwi_api.settings import Settings
from tests.api.conftest import FakeEngine, FakeRegistry, FakeTranscription, listening, wait_for
from tests.api.routes.test_align import FakeAligner
from tests.nameless import nameless_files

URL = "/v1/audio/transcriptions"
SECONDS = 185.0
PIECES = 19  # of 10 s

resource = pytest.importorskip("resource")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


class ListeningModel(FakeTranscription):
    """Writes a text that depends on every bit of its audio."""

    def __init__(self, engine, home):
        self.engine, self.home = engine, home
        self.most_files = 0

    def prepare_transcription(self, request_id, model, ask):
        self.most_files = max(self.most_files, len(nameless_files(self.home)))
        assert np.abs(ask.samples[:]).max() <= 1.0
        request = super().prepare_transcription(request_id, model, ask)
        request.prompt.text = f"English|word {sha256(ask.samples[:].tobytes()).hexdigest()[:16]}"
        return replace(request, max_entries=len(request.prompt.text))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    home = tmp_path_factory.mktemp("long") / "home"
    engine = FakeEngine()
    model = ListeningModel(engine, home)
    registry = FakeRegistry(**{"org/asr": model, "org/aligner": FakeAligner()})
    settings = Settings(home=home, max_audio_s=200.0, detects_speech=False)  # noise
    with listening(create_app(engine, registry, settings)) as port:
        url = f"http://127.0.0.1:{port}"
        yield SimpleNamespace(engine=engine, model=model, home=home, url=url)


@pytest.fixture
def client(world):
    with httpx.Client(base_url=world.url, timeout=60) as http:
        yield http
    world.engine.step_s = 0.001
    wait_for(lambda: not world.engine.live and not nameless_files(world.home))


@pytest.fixture
def in_file(monkeypatch, world):
    """Puts all decoded audio into files; the returned function says whether there was any."""
    monkeypatch.setattr(decoded_audio, "MAX_MEMORY_SAMPLES", 100)
    world.model.most_files = 0
    return lambda: world.model.most_files > 0


@pytest.fixture(scope="module")
def long_wav():
    """Some minutes of noise at 24 kHz, over full scale once it is resampled."""
    rng = np.random.default_rng(3)
    pcm = rng.integers(-32768, 32767, int(SECONDS * 24_000)).astype("<i2").tobytes()
    return wav_header(24_000, len(pcm)) + pcm


def post(client, content, **fields):
    return client.post(URL, data={"model": "org/asr"} | fields, files={"file": ("a.wav", content)})


@pytest.mark.parametrize("text_format", ["json", "verbose_json", "srt"])
def test_the_answer_is_the_same_bit_for_bit(client, world, long_wav, monkeypatch, text_format):
    answers = []
    for most in (100, 1 << 30):
        monkeypatch.setattr(decoded_audio, "MAX_MEMORY_SAMPLES", most)
        world.model.most_files = 0
        answer = post(client, long_wav, response_format=text_format)
        assert answer.status_code == 200, answer.text
        assert world.model.most_files == (most == 100)
        answers.append(answer.content)
    assert answers[0] == answers[1]
    assert answers[0].count(b"word") >= PIECES


def test_text_is_streamed_while_later_pieces_wait(client, world, long_wav, in_file, monkeypatch):
    monkeypatch.setattr(transcribe, "_MAX_AHEAD", 3)
    fields = {"data": {"model": "org/asr", "stream": "true"}, "files": {"file": ("a", long_wav)}}
    reported, at_work = [], []
    with client.stream("POST", URL, **fields) as answer:
        for line in filter(None, answer.iter_lines()):
            event = json.loads(line.removeprefix("data: "))
            reported.append(event)
            at_work.append(
                max((int(name.split("-")[-1]) for name in world.engine.live), default=-1)
            )
    assert in_file()
    assert reported[-1]["text"] == "".join(event["delta"] for event in reported[:-1])
    assert at_work[0] < 6 < PIECES - 1  # the last ones had not begun when the first was told
    assert sum(numbered < PIECES - 3 for numbered in at_work[:-1]) > PIECES // 2


def test_disconnect_leaves_no_file(client, world, long_wav, in_file):
    world.engine.step_s = 0.02
    fields = {"data": {"model": "org/asr", "stream": "true"}, "files": {"file": ("a", long_wav)}}
    with client.stream("POST", URL, **fields) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert len(nameless_files(world.home)) == 1
    wait_for(lambda: not nameless_files(world.home))
    assert not list(world.home.iterdir())
    world.engine.step_s = 30.0
    with pytest.raises(httpx.ReadTimeout):
        client.post(
            URL, **(fields | {"data": {"model": "org/asr"}}), timeout=httpx.Timeout(60, read=2)
        )
    wait_for(lambda: not nameless_files(world.home) and not world.engine.live)


def test_a_piece_that_fails_leaves_no_file(client, world, long_wav, in_file, monkeypatch):
    def fail(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(world.model, "read", fail)
    assert post(client, long_wav).status_code == 500
    assert in_file()


def test_refusals_come_before_the_answer(client, world, tone_wav, in_file):
    for content in (tone_wav(201.0), tone_wav(100.0)[:-1000], tone_wav(0.05)):
        for stream in ("true", "false"):
            assert post(client, content, stream=stream).status_code in (400, 413)
    assert not in_file()


def test_a_full_disk_is_answered_503(client, tone_wav, in_file):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        answer = post(client, tone_wav(30.0, 8_000), stream="true")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["code"] == "overloaded"
    assert int(answer.headers["retry-after"]) > 1
    assert post(client, tone_wav(30.0)).status_code == 200  # the decoder is well


@pytest.mark.parametrize("seconds", [100.0, 20.0])
def test_long_pieces_are_fewer_at_a_time(seconds, monkeypatch):
    monkeypatch.setattr(transcribe, "_MAX_AHEAD_S", 60.0)
    step = int(seconds * 16_000)
    places = [(at, at + step) for at in range(0, 10 * step, step)]
    assert transcribe.num_together(places) == {100.0: 2, 20.0: 3}[seconds]
    assert transcribe.num_together(places[-1:]) == 1
    assert transcribe.num_together([]) == 0


@pytest.mark.slow
async def test_an_hour_takes_no_more_memory_than_minutes(tmp_path, tone_wav):
    model, engine = FakeTranscription(), FakeEngine(step_s=0.0)
    content = tone_wav(900.0, 8_000)
    limits = Settings().upload_limits
    tracemalloc.start()
    try:
        with await InProcess(tmp_path).spool(content, 16_000, limits) as audio:
            assert len(audio) == 900 * 16_000  # 58 MB
            ask = TranscriptionInput(audio, max_new_tokens=4)
            result = await open_transcription(
                ServedModels(engine, FakeRegistry(m=model)).transcription("m"), ask
            )
            await result.finish()
        assert len(result.segments) == 90
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # the first minute, and what is looked through or in work at a time
    assert peak < 40e6
