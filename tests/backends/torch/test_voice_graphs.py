"""Captured voice encoders give what plain ones give; clips of a bucket share a batch.

Without a GPU a capture is run again each time, over the same staged buffers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from izwi.audio.mel import speaker_log_mel
from izwi.backends.padded import encode_together, padded_batches
from izwi.backends.torch.backend import TorchBackend
from izwi.backends.torch.ops import TorchOps
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.speech import ReferenceClip, SpeechInput
from izwi.request.request import EncodeInput
from izwi_models.qwen3_tts import FAMILY
from izwi_models.qwen3_tts.model import Qwen3TTS
from izwi_models.qwen3_tts.prompt import ENCODE_CODES, ENCODE_SPEAKER
from tests.models.tiny_asr import waveform
from tests.models.tiny_tts import write_tiny_tts

pytest.importorskip("triton")  # which staging knows the limits of
from izwi.backends.torch.captured.capturer import GraphCapturer
from izwi.backends.torch.captured.encoder_graphs import EncoderGraphs

RATE = 24_000
KINDS = (ENCODE_SPEAKER, ENCODE_CODES)
# nine of one bucket, which takes eight at once; whole buckets; a sample more
SAMPLES = (*range(26_001, 44_001, 2_000), RATE, 12_000, 24_960, 24_961, 2 * RATE, 2 * RATE + 1)
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
NEAR = 1e-4 if GPU else 1e-5  # there a product's order depends on its rows


class CapturingOps(TorchOps):
    """The plain operations, captured."""

    captures = True


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # larger is slower at this size
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_tts(tmp_path_factory.mktemp("tiny") / "base", "base")


def load(folder: Path, ops: TorchOps) -> Qwen3TTS:
    loaded = FAMILY.load_model(folder, TorchBackend(ops))
    assert isinstance(loaded, Qwen3TTS)
    return loaded


@pytest.fixture(scope="module")
def model(folder: Path) -> Qwen3TTS:
    return load(folder, TorchOps(DEVICE))


def clip(kind: str, samples: int, seed: int = 0) -> EncodeInput:
    heard = waveform(samples / 16_000, seed)
    return EncodeInput(kind, speaker_log_mel(heard) if kind == ENCODE_SPEAKER else heard)


def clips(samples: tuple[int, ...], seed: int = 0) -> list[EncodeInput]:
    return [clip(kind, n, seed + i) for i, n in enumerate(samples) for kind in KINDS]


def graphs_of(model: Qwen3TTS, max_pieces: int = 16) -> EncoderGraphs:
    encoders = model.padded_encoders
    return EncoderGraphs(encoders, GraphCapturer(DEVICE), max_pieces, DEVICE, torch.float32)


def assert_plain(model: Qwen3TTS, pieces: list[EncodeInput], encoded: list[Any]) -> None:
    """Every result is what its clip gives alone, unpadded."""
    assert len(encoded) == len(pieces)
    for piece, result in zip(pieces, encoded, strict=True):
        (alone,) = model.encode([piece])
        assert result.shape == alone.shape
        assert result.dtype == alone.dtype
        if piece.kind == ENCODE_SPEAKER:
            assert (result - alone).abs().max() < NEAR * alone.abs().max()
        else:  # other orders of sums on a GPU may decide a tie otherwise, and what follows from it
            unequal = (result != alone).any(-1).sum()
            assert unequal <= (len(alone) // 20 if GPU else 0), piece.values.shape


def test_clips_of_mixed_lengths_are_encoded_as_each_alone(model: Qwen3TTS) -> None:
    pieces, graphs = clips(SAMPLES), graphs_of(model)
    assert all(graphs.takes(piece) for piece in pieces)
    assert_plain(model, pieces, graphs.encode(pieces))


def test_nothing_is_left_of_what_ran_before(model: Qwen3TTS) -> None:
    graphs = graphs_of(model)
    long, short = clips((RATE, 23_999, 24_960)), clips((12_000, 13_333), seed=9)
    kept = graphs.encode(long)
    assert_plain(model, short, graphs.encode(short))
    assert_plain(model, short[:1], graphs.encode(short[:1]))
    assert_plain(model, long, kept)  # later launches leave results alone


def test_voice_encoders_are_captured_at_warm_up(
    model: Qwen3TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs, asked = graphs_of(model, max_pieces=2), list[tuple[int, ...]]()
    for kind, encoder in model.padded_encoders.items():
        monkeypatch.setattr(encoder, "shapes", encoder.shapes[:2])
        plain = encoder.encode_padded

        def watched(values: Any, lengths: Any, plain: Any = plain) -> Any:
            asked.append(tuple(values.shape))
            return plain(values, lengths)

        monkeypatch.setattr(encoder, "encode_padded", watched)
        assert kind in KINDS
    graphs.warm_up()
    speakers = [(2, 188, 128), (1, 188, 128), (2, 94, 128), (1, 94, 128)]
    codes = [(2, 48_000), (1, 48_000), (2, 24_960), (1, 24_960)]
    assert list(dict.fromkeys(asked)) == speakers + codes  # the largest first


def test_voice_graphs_refuse_shapes_that_were_not_captured(model: Qwen3TTS) -> None:
    graphs = graphs_of(model)
    (longest,) = model.padded_encoders[ENCODE_CODES].shapes[-1]
    silence = np.zeros(longest, np.float32)
    assert graphs.takes(EncodeInput(ENCODE_CODES, silence))
    assert not graphs.takes(EncodeInput(ENCODE_CODES, np.zeros(longest + 1, np.float32)))
    mel = clip(ENCODE_SPEAKER, RATE).values
    assert not graphs.takes(EncodeInput(ENCODE_SPEAKER, mel[:, :64]))
    assert not graphs.takes(EncodeInput("window", mel))


@pytest.mark.slow
def test_the_padded_encoders_ask_for_no_value(model: Qwen3TTS) -> None:
    """A capture cannot: shapes and launches are the same whatever the arrays hold."""
    results = {ENCODE_SPEAKER: lambda _: (64,), ENCODE_CODES: lambda shape: (shape[0] // 1920, 16)}
    for kind, encoder in model.padded_encoders.items():
        for shape in encoder.shapes:
            with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
                lengths = torch.ones(2, dtype=torch.int64, device=DEVICE)
                values = torch.zeros(2, *shape, device=DEVICE)
                encoded = encoder.encode_padded(values, lengths)
            assert encoded.shape == (2, *results[kind](shape))


# -- without a graph ------------------------------------------------------------------------


def test_clips_of_a_bucket_go_through_in_one_pass(
    model: Qwen3TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[tuple[int, ...]] = []
    for encoder in model.padded_encoders.values():
        plain = encoder.encode_padded

        def watched(values: Any, lengths: Any, plain: Any = plain) -> Any:
            passes.append(tuple(values.shape))
            return plain(values, lengths)

        monkeypatch.setattr(encoder, "encode_padded", watched)
    pieces = clips((12_000, 30_000, 23_000, 45_678, 20_000, 70_000))
    encoded = encode_together(model, TorchOps(DEVICE), 16, pieces)
    assert sorted(passes) == [(2, 188, 128), (2, 48_000), (3, 94, 128), (3, 24_960)]
    assert_plain(model, pieces, encoded)


def test_clips_that_no_bucket_takes_run_as_they_are(model: Qwen3TTS) -> None:
    pieces = [*clips((12_000, 21_000)), *clips((31 * RATE,))[:1]]
    assert_plain(model, pieces, encode_together(model, TorchOps(DEVICE), 16, pieces))


def test_batches_are_no_larger_than_asked_for(model: Qwen3TTS) -> None:
    pieces = [clip(ENCODE_SPEAKER, RATE - 256 * n) for n in range(11)]
    for most, sizes in ((16, [8, 3]), (4, [4, 4, 3])):  # its encoder takes eight
        batches = list(padded_batches(model.padded_encoders, pieces, most))
        assert [len(batch.places) for batch in batches] == sizes
        assert [place for batch in batches for place in batch.places] == list(range(11))
    assert list(padded_batches({}, pieces, 16)) == []


def test_batches_of_long_clips_are_small(model: Qwen3TTS) -> None:
    """At most 64 s of audio: with captured steps a GPU keeps the memory that a batch takes."""
    for encoder in model.padded_encoders.values():
        assert [encoder.max_pieces(shape) for shape in encoder.shapes] == [8, 8, 8, 8, 4, 2]


# -- in an engine --------------------------------------------------------------------------------


def spoken(
    folder: Path, ops: TorchOps, graphs: bool = True
) -> tuple[dict[str, list[list[int]]], list[str]]:
    """Frames of cloned speech, and the kinds of clips that the model encoded as they are."""
    frontend: Any = FAMILY.load_frontend(folder)
    model, plain = load(folder, ops), list[str]()
    encode = model.encode

    def watched(inputs: Any) -> Any:
        plain.extend(piece.kind for piece in inputs)
        return encode(inputs)

    # keys and values in 8 bits: the steps themselves run without a graph
    config = EngineConfig(kv_bytes=1 << 22, kv_dtype="int8", graphs=graphs)
    engine = Engine({"tiny": model}, TorchBackend(ops), config)
    model.encode = watched  # type: ignore[method-assign]
    frames: dict[str, list[list[int]]] = {}
    for n, (samples, text) in enumerate(
        ((12_000, "so it is"), (23_456, None), (30_000, "in the rain"), (20_001, "one"))
    ):
        voice = ReferenceClip(waveform(samples / 16_000, n), text)
        ask = SpeechInput("Hello there.", voice=voice, temperature=0.0, max_new_tokens=8)
        engine.submit(frontend.prepare_speech(str(n), "tiny", ask))
        frames[str(n)] = []
    while engine.has_work:
        for chunk in engine.step():
            assert chunk.error is None, chunk.error
            frames[chunk.request_id] += chunk.entries.tolist()
    return frames, plain


def test_an_engine_that_captures_clones_the_same(folder: Path) -> None:
    frames, kinds = spoken(folder, TorchOps(DEVICE), graphs=False)
    assert all(len(part) == 7 for part in frames.values())
    if not GPU:  # there clips of a bucket go together
        assert (kinds.count(ENCODE_SPEAKER), kinds.count(ENCODE_CODES)) == (4, 3)
    assert spoken(folder, CapturingOps(DEVICE)) == (frames, [])


@pytest.mark.parametrize(("kind", "captured"), [("base", True), ("custom_voice", False)])
def test_only_cloning_models_capture_encoders(tmp_path: Path, kind: str, captured: bool) -> None:
    ops = CapturingOps(DEVICE)
    model = load(write_tiny_tts(tmp_path / kind, kind), ops)
    engine = Engine(
        {"tiny": model}, TorchBackend(ops), EngineConfig(kv_bytes=1 << 22, kv_dtype="int8")
    )
    graphs = engine._workers["tiny"].runner._graphs
    assert graphs is not None
    assert (graphs.encoders is not None) == captured


# -- on a GPU ------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="no CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_encoding_waits_for_nothing(model: Qwen3TTS) -> None:
    graphs, pieces = graphs_of(model), clips(SAMPLES)
    graphs.encode(pieces)
    torch.cuda.set_sync_debug_mode("error")
    try:
        graphs.encode(pieces)
    finally:
        torch.cuda.set_sync_debug_mode("default")
