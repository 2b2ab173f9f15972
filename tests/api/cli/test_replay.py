"""`izwi serve --record` and `izwi replay`, over the embedded checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from izwi.backends.torch.backend import torch_backend
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi.inputs.speech import SpeechInput
from izwi.recording.line import SpeechLine, read_recording
from izwi.recording.recorder import RequestRecorder, platform_of
from izwi.request.request import Chunk, Reason, Request
from izwi.request.serialization import encode_line
from izwi_api.cli.main import app
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.serve.recording import recorded
from izwi_api.services.models.served import ServedModels
from izwi_api.services.speech.synthesis import open_speech
from izwi_api.services.speech.writer import open_speech_writer
from tests.api.conftest import FakePrompt
from tests.golden.make_recordings import RECORDINGS, SPEAKER, loaded


@pytest.fixture
def recording(tmp_path):
    """The shortest golden line of speech, in a file of its own."""
    line = min(read_recording(RECORDINGS / "speech.jsonl"), key=lambda line: len(line.entries))
    path = tmp_path / "one.jsonl"
    path.write_bytes(encode_line(line))
    return path


def izwi(*arguments, code):
    result = CliRunner().invoke(app, [*map(str, arguments), "--device", "cpu"])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def change(path, **fields):
    (line,) = read_recording(path)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(line, **fields)) + b"\n")
    return line


def test_a_difference_exits_with_1_and_is_reported(recording):
    line = change(recording, reason=Reason.LENGTH)
    result = izwi("replay", recording, "--json", code=1)
    reported = json.loads(result.stdout)
    assert reported["lines"] == 1
    message = f"length recorded, {line.reason} now"
    assert reported["differences"] == [
        {"line": 1, "model": SPEAKER, "what": "reason", "message": message}
    ]


def test_replay_with_another_checkpoint_is_reported(recording):
    change(recording, fingerprint="0123456789abcdef")
    result = izwi("replay", recording, "--json", code=1)
    (difference,) = json.loads(result.stdout)["differences"]
    assert difference["what"] == "checkpoint"
    assert "0123456789abcdef was recorded" in difference["message"]
    table = izwi("replay", recording, code=1).stdout
    assert "checkpoint" in table


def test_a_file_that_is_not_a_recording_is_rejected(tmp_path):
    path = tmp_path / "no.jsonl"
    path.write_text("hello\n")
    assert "line 1 is not a request" in izwi("replay", path, code=2).stderr
    izwi("replay", tmp_path / "missing.jsonl", code=1)


@dataclass
class ObservedEngine:
    observers: list = field(default_factory=list)

    def observe(self, observer):
        self.observers.append(observer)


def test_serve_gives_the_engine_a_recorder(tmp_path, fake_world):
    _, registry, named = fake_world()
    registry.models = named
    path, engine = tmp_path / "t.jsonl", ObservedEngine()
    with recorded(
        engine, path, registry, torch_backend("cpu", "float32"), RuntimeOptions("cpu", "float32")
    ):
        (recorder,) = engine.observers
        recorder.submitted(Request("a", SPEAKER, FakePrompt("speech"), ask=SpeechInput("Hi.")))
        recorder.chunk(Chunk("a", np.ones((1, 4), np.int64), reason=Reason.STOP))
    (line,) = read_recording(path)
    assert isinstance(line, SpeechLine)
    assert (line.ask.text, line.fingerprint) == ("Hi.", "f")
    assert "cpu float32" in line.platform


def started(path):
    """A running engine over the embedded checkpoints, its recorder and its registry."""
    backend, registry = loaded()
    recorder = RequestRecorder(path, registry, platform_of(backend))
    engine = AsyncEngine(Engine(registry.models, backend, EngineConfig()))
    engine.observe(recorder)
    engine.start()
    return engine, recorder, registry


@pytest.mark.slow
async def test_the_recording_of_a_running_engine_replays_identically(tmp_path):
    path = tmp_path / "t.jsonl"
    engine, recorder, registry = started(path)
    speech = await open_speech(
        ServedModels(engine, registry).speech(SPEAKER), SpeechInput("It is warm.", seed=3)
    )
    num_frames = sum([len(chunk.entries) async for chunk in speech.output()])
    left = await open_speech(
        ServedModels(engine, registry).speech(SPEAKER), SpeechInput("It is cold.")
    )
    async for _ in left.output():
        break
    left.abort()
    await engine.stop()
    recorder.close()
    whole, cut = read_recording(path)
    assert (len(whole.entries), whole.reason) == (num_frames, Reason.STOP)
    assert cut.reason is Reason.ABORTED
    # Recorded on this machine: other processors may round the last bit of the audio differently.
    result = izwi("replay", path, "--alone", "--dtype", "float32", code=0)
    assert "same" in result.stdout
    assert SPEAKER in result.stdout


@pytest.mark.slow
async def test_speech_from_streamed_text_replays_identically(tmp_path):
    path = tmp_path / "t.jsonl"
    engine, recorder, registry = started(path)
    whole = await open_speech_writer(
        ServedModels(engine, registry).speech(SPEAKER), SpeechInput("", seed=5)
    )
    chunks = whole.output()
    await whole.write("It is warm in the")
    received = [await anext(chunks)]  # audio leaves before the rest is written
    await whole.write(" house. The next")
    await whole.write(" train.")
    await whole.close()
    received += [chunk async for chunk in chunks]
    left = await open_speech_writer(
        ServedModels(engine, registry).speech(SPEAKER), SpeechInput("", seed=6)
    )
    await left.write("It is cold in the garden, but")
    async for chunk in left.output():
        if chunk.pcm is not None:
            break
    left.abort()
    await engine.stop()
    recorder.close()
    *written, cut = read_recording(path)
    assert sum(len(line.entries) for line in written) == sum(len(c.entries) for c in received)
    assert {line.reason for line in written} == {Reason.STOP}
    assert cut.reason is Reason.ABORTED
    assert cut.num_samples > 0
    assert all(line.ask.turn_ids and line.written for line in (written[0], cut))
    result = izwi("replay", path, "--dtype", "float32", code=0)
    assert "same" in result.stdout
    wrong = [msgspec.structs.replace(line, written=line.written[:-1]) for line in written]
    path.write_bytes(b"".join(encode_line(line) for line in wrong))
    result = izwi("replay", path, "--json", "--dtype", "float32", code=1)
    assert json.loads(result.stdout)["differences"][0]["what"] in ("entries", "reason")
