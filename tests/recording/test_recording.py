"""Recordings: lines rebuild a request, recording disturbs nothing, replay finds changes."""

from __future__ import annotations

import json
import logging
import random
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from izwi.backends.torch.backend import TorchBackend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.errors import InvalidMessage
from izwi.inputs.speech import (
    ReferenceClip,
    SpeechInput,
    TextMode,
    Transcript,
    TranscriptionInput,
    VoicePrompt,
)
from izwi.model.layers import KVSpec
from izwi.recording.line import Line, SpeechLine, TranscriptionLine, read_recording
from izwi.recording.recorder import RequestRecorder, platform_of
from izwi.recording.replay import Difference, replay
from izwi.request.request import Chunk, Reason, Request
from izwi.request.serialization import decode_line, encode_line
from tests.golden.make_recordings import RECORDINGS, SPEAKER, loaded, run_alone

NOTHING = np.zeros((0, 1), np.int64)
SAMPLES = np.array([0.1, -0.0, np.float32(1 / 3), 1e-30, -1.0], np.float32)


# -- lines ------------------------------------------------------------------------------------
class OneArray(Struct):
    values: np.ndarray[Any, Any]


class OneAsk(Struct):
    ask: SpeechInput | TranscriptionInput


@given(st.sampled_from(["float32", "float64", "int64", "uint8"]), st.integers(0, 40))
def test_arrays_come_back_bit_for_bit(dtype: str, size: int) -> None:
    noise = np.random.default_rng(size).integers(0, 256, size * np.dtype(dtype).itemsize)
    array = np.frombuffer(noise.astype(np.uint8).tobytes(), dtype)
    shapes = [(size,), (size, 1), (1, size)]
    for shape in shapes:
        back = decode_line(encode_line(OneArray(array.reshape(shape))), OneArray).values
        assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, shape, array.tobytes())


@pytest.mark.parametrize(
    "changed",
    [
        {"dtype": "object"},
        {"dtype": "no"},
        {"shape": (6,)},
        {"shape": (4,)},  # more than the shape has room for
        {"shape": (-5,)},
        {"shape": (-5, -1)},
        {"shape": (2**62, 5)},
        {"data": "anVuaw=="},
        {"data": "!"},
        {"data": 3},
    ],
)
def test_broken_arrays_are_named(changed: dict[str, object]) -> None:
    packed = json.loads(encode_line(OneArray(SAMPLES)))["values"] | changed
    with pytest.raises(InvalidMessage, match="cannot be read"):
        decode_line(json.dumps({"values": packed}).encode(), OneArray)


@pytest.mark.parametrize(
    "voice",
    [
        None,
        "amber",
        ReferenceClip(SAMPLES, "so it is"),
        ReferenceClip(SAMPLES),
        VoicePrompt(SAMPLES, np.arange(8).reshape(2, 4), "one"),
        VoicePrompt(SAMPLES),
    ],
)
def test_recorded_request_is_read_back_unchanged(
    voice: str | ReferenceClip | VoicePrompt | None,
) -> None:
    how = 0.3, 5, 0.9, -(2**63), 40, {"é": "acute"}
    ask = SpeechInput("Say «é».", voice, "english", "softly", TextMode.STREAMING, *how)
    assert all(getattr(ask, name) is not None for name in ask.__struct_fields__[2:])
    assert_equal(decode_line(encode_line(OneAsk(ask)), OneAsk).ask, ask)
    heard = TranscriptionInput(SAMPLES, "French", "before", 0.2, 2**63 - 1, 7)
    assert_equal(decode_line(encode_line(OneAsk(heard)), OneAsk).ask, heard)


def assert_equal(one: object, other: object) -> None:
    """Equal fields all the way down; the classes themselves compare by identity."""
    assert type(one) is type(other)
    assert isinstance(other, Struct)
    for name in other.__struct_fields__:
        value, expected = getattr(one, name), getattr(other, name)
        if isinstance(expected, np.ndarray):
            assert value.dtype == expected.dtype
            np.testing.assert_array_equal(value, expected)
        elif isinstance(expected, ReferenceClip | VoicePrompt):
            assert_equal(value, expected)
        else:
            assert value == expected, name


# -- recording --------------------------------------------------------------------------------
@dataclass
class FakePrompt:
    num_positions: int = 3
    encode_inputs: tuple = ()


class FakeModels:
    def fingerprint(self, name: str) -> str:
        return f"of {name}"

    def transcription(self, name: str) -> FakeModels:
        return self

    def read(self, tokens: list[int], language: str | None) -> Transcript:
        return Transcript(language or "", "".join(map(chr, tokens)))


def asked(request_id: str, ask: SpeechInput | TranscriptionInput | None, **more) -> Request:
    return Request(request_id, "m", FakePrompt(), ask=ask, **more)


def gave(request_id: str, entries: list, reason: Reason | None = None, **more) -> Chunk:
    array = np.array(entries, np.int64).reshape(len(entries), -1) if entries else NOTHING
    return Chunk(request_id, array, reason=reason, **more)


def test_only_completed_requests_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    recorder = RequestRecorder(path, FakeModels(), "here")
    speech, heard = SpeechInput("Hi."), TranscriptionInput(SAMPLES, language="English")
    for request in (
        asked("a", speech, seed=4),
        asked("b", heard),
        asked("left", speech),
        asked("failed", speech),
        asked("encodes", None, encode_only=True),
        asked("written", speech, open_input=True),
        asked("open", SpeechInput("", turn_ids=(1, 2, 3, 4)), open_input=True),
    ):
        recorder.submitted(request)
    recorder.written("open", [5, 6])
    recorder.written("written", [9])
    recorder.written("open", (7,))
    recorder.chunk(gave("a", [[1, 2]], pcm=SAMPLES))
    for name in ("b", "failed", "encodes", "written", "never heard of"):
        recorder.chunk(gave(name, [[104]]))
    recorder.chunk(gave("left", [[5, 6]], Reason.ABORTED))
    recorder.chunk(gave("a", [[3, 4]], Reason.STOP, pcm=SAMPLES))
    recorder.chunk(gave("b", [[105]], Reason.LENGTH))
    for name in ("encodes", "written"):
        recorder.chunk(gave(name, [], Reason.STOP))
    recorder.chunk(gave("open", [[8, 9]], Reason.STOP))
    recorder.chunk(gave("failed", [], Reason.ERROR, error=RuntimeError("no")))
    recorder.close()
    left, first, second, last = read_recording(path)
    assert isinstance(last, SpeechLine)
    assert (last.ask.turn_ids, last.written, last.entries) == ((1, 2, 3, 4), (5, 6, 7), ((8, 9),))
    assert (left.reason, left.entries, first.reason) == (Reason.ABORTED, ((5, 6),), Reason.STOP)
    assert isinstance(first, SpeechLine)
    assert isinstance(second, TranscriptionLine)
    assert (first.entries, first.num_samples) == (((1, 2), (3, 4)), 10)
    assert (first.request.seed, first.fingerprint, first.platform) == (4, "of m", "here")
    assert (second.text, second.reason) == ("hi", Reason.LENGTH)
    assert path.stat().st_mode & 0o077 == 0, "others can read what callers said"


def one_more(path: Path) -> bytes:
    """Record one request more; the file then."""
    recorder = RequestRecorder(path, FakeModels(), "here")
    recorder.submitted(asked("a", SpeechInput("Hi.")))
    recorder.chunk(gave("a", [[1, 2]], Reason.STOP))
    recorder.close()
    return path.read_bytes()


def test_a_killed_writer_costs_its_last_line_only(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    once = one_more(path)
    path.write_bytes(once + once[:40])
    assert len(read_recording(path)) == 1
    assert one_more(path) == once + once


@pytest.mark.parametrize(
    ("content", "named"),
    [(b'{"version":2}\n', "version 2"), (b"{}\n", "line 1"), (b"\n", "line 1"), (b"]\n", "line 1")],
)
def test_the_error_names_a_line_that_is_not_a_recording(
    tmp_path: Path, content: bytes, named: str
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(InvalidMessage, match=named):
        read_recording(path)


def test_a_full_disk_ends_the_recording_and_nothing_else(caplog) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full on this system")
    recorder = RequestRecorder(full, FakeModels(), "here")
    with caplog.at_level(logging.ERROR, logger="izwi.recording.recorder"):
        for name in "abc":
            recorder.submitted(asked(name, SpeechInput("Hi.")))
            recorder.chunk(gave(name, [[1, 2]], Reason.STOP))
        recorder.close()
    assert not recorder.recording
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "recording to /dev/full has stopped"
    ]


def test_a_disk_that_is_too_slow_ends_the_recording(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr("izwi.recording.recorder._MAX_PENDING", 4)
    recorder = RequestRecorder(tmp_path / "t.jsonl", FakeModels(), "here")
    release = blocked(recorder)
    with caplog.at_level(logging.ERROR, logger="izwi.recording.recorder"):
        for name in "abcdefgh":
            recorder.submitted(asked(name, SpeechInput("Hi.")))
            recorder.chunk(gave(name, [[1, 2]], Reason.STOP))
    release()
    recorder.close()
    assert len(caplog.records) == 1
    lines = read_recording(tmp_path / "t.jsonl")
    assert 1 <= len(lines) <= 3
    assert all(line.entries == ((1, 2),) for line in lines)


def blocked(recorder: RequestRecorder):
    """Let the recorder's next write wait until what is returned is called."""
    gate, write = threading.Event(), recorder._write

    def slow(line: bytes) -> None:
        gate.wait(60)
        write(line)

    recorder._write = slow  # type: ignore[method-assign]
    return gate.set


# -- replay -----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def world() -> tuple[TorchBackend, Registry]:
    return loaded()


def golden() -> list[Line]:
    return [line for path in sorted(RECORDINGS.glob("*.jsonl")) for line in read_recording(path)]


def shortest() -> SpeechLine:
    return min(
        (line for line in golden() if isinstance(line, SpeechLine)),
        key=lambda line: len(line.entries),
    )


def engine_of(world: tuple[TorchBackend, Registry], **config) -> Engine:
    backend, registry = world
    return Engine(registry.models, backend, EngineConfig(**config))


def here(differences: list[Difference], lines: list[Line], backend: TorchBackend):
    """Differences that count: other kernels may round the last bit of the audio differently."""
    platform = platform_of(backend)
    return [
        difference
        for difference in differences
        if difference.what != "audio" or lines[difference.line - 1].platform == platform
    ]


def test_the_corpus_is_varied_and_small() -> None:
    lines = golden()
    asks = [line.ask for line in lines if isinstance(line, SpeechLine)]
    assert {ask.text_mode for ask in asks} >= {None, TextMode.STREAMING}
    assert any(ask.temperature == 0.0 for ask in asks)
    assert any(not isinstance(ask.voice, str | None) for ask in asks)
    assert sum(isinstance(line, TranscriptionLine) for line in lines) >= 3
    assert sum(path.stat().st_size for path in RECORDINGS.glob("*.jsonl")) < 300_000


@pytest.mark.slow  # in batches they are compared with what they were alone
@pytest.mark.parametrize("most_entries", [25, 10_000])
def test_the_corpus_gives_the_same_alone(world, most_entries: int) -> None:
    lines = [line for line in golden() if len(line.entries) <= most_entries]
    assert len({type(line) for line in lines}) == 2
    assert here(replay(engine_of(world), world[1], lines, alone=True), lines, world[0]) == []


def test_golden_recordings_replay_the_same_in_batches_and_under_pressure(world) -> None:
    lines = golden()
    random.Random(0).shuffle(lines)
    roomy = engine_of(world)
    assert here(replay(roomy, world[1], lines), lines, world[0]) == []
    # memory for one and a half of the longest: nobody runs through undisturbed
    lines = [line for line in lines if len(line.entries) <= 25]
    needed = max(line.request.num_positions + len(line.entries) for line in lines)
    tight = engine_of(world, kv_bytes=tight_bytes(world, needed), max_step_tokens=64)
    pages = min(load["pages"] for load in tight.load.values())
    assert needed <= pages * 16 < 4 * needed
    assert here(replay(tight, world[1], lines), lines, world[0]) == []
    assert tight.load[SPEAKER]["preempted"] > 0


def tight_bytes(world, num_positions: int) -> int:
    """Memory in which the larger of the two models just holds so many positions and half more."""
    specs = [KVSpec.from_layers(model.layers) for model in world[1].models.values()]
    position = max(2 * kv.num_layers * kv.num_kv_heads * kv.head_dim * 4 for kv in specs)
    return len(specs) * position * (num_positions * 3 // 2 + 16)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda _: {"fingerprint": "0" * 16}, "checkpoint"),
        (lambda _: {"model": "nobody"}, "model"),
        pytest.param(
            lambda line: {"entries": line.entries[:-1]}, "entries", marks=pytest.mark.slow
        ),
        (lambda line: {"entries": ((7, *line.entries[0][1:]), *line.entries[1:])}, "entries"),
        (lambda _: {"reason": Reason.LENGTH}, "reason"),
        pytest.param(
            lambda line: {"request": msgspec.structs.replace(line.request, seed=1)},
            "request",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda line: {"ask": msgspec.structs.replace(line.ask, voice="nobody")},
            "request",
            marks=pytest.mark.slow,
        ),
        (lambda line: {"ask": msgspec.structs.replace(line.ask, text="A bird.")}, "request"),
        (lambda _: {"pcm_sha256": "0" * 64}, "audio"),
    ],
)
def test_a_change_is_found_and_named(world, change, what: str) -> None:
    line = shortest()
    changed = msgspec.structs.replace(line, **change(line))
    (difference,) = replay(engine_of(world), world[1], [changed])
    assert (difference.line, difference.what) == (1, what)
    if what == "checkpoint":
        assert "the checkpoint's fingerprint differs" in difference.message


def test_a_changed_text_is_found(world) -> None:
    line = next(line for line in golden() if isinstance(line, TranscriptionLine))
    changed = msgspec.structs.replace(line, text=f"{line.text}!")
    assert [one.what for one in replay(engine_of(world), world[1], [changed])] == ["text"]


def test_what_was_aborted_is_compared_as_far_as_it_went(world, tmp_path: Path) -> None:
    line = golden()[0]
    assert isinstance(line, SpeechLine)
    path = tmp_path / "t.jsonl"
    recorder = RequestRecorder(path, world[1], line.platform)
    model = world[1].speech(line.model)
    request = model.prepare_speech("x", line.model, line.ask)
    engine = engine_of(world)
    engine.submit(request)
    recorder.submitted(request)
    for _ in range(10):
        for chunk in engine.step():
            recorder.chunk(chunk)
    recorder.chunk(engine.abort("x")[0])
    recorder.close()
    (aborted,) = read_recording(path)
    assert isinstance(aborted, SpeechLine)
    assert aborted.reason is Reason.ABORTED
    assert 0 < len(aborted.entries) < len(line.entries)
    assert aborted.num_samples > 0
    assert replay(engine, world[1], [aborted]) == []
    wrong = msgspec.structs.replace(aborted, entries=(*aborted.entries[:-1], (0,) * 16))
    assert [one.what for one in replay(engine, world[1], [wrong])] == ["entries"]
    assert not engine.has_work


def test_recording_alone_gives_the_golden_line_again(world, tmp_path: Path) -> None:
    line = golden()[1]
    backend, registry = world
    platform = platform_of(backend)
    recorder = RequestRecorder(tmp_path / "t.jsonl", registry, platform)
    model = registry.speech(line.model)
    ask = line.ask
    assert isinstance(ask, SpeechInput)
    run_alone(engine_of(world), model.prepare_speech("x", line.model, ask), recorder)
    recorder.close()
    (again,) = read_recording(tmp_path / "t.jsonl")
    assert again.entries == line.entries
    if line.platform == platform:
        assert encode_line(again) == encode_line(line)
