"""Captured encoders give what plain ones give.

Without a GPU a capture is run again each time, over the same staged buffers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from izwi.audio.mel import whisper_log_mel
from izwi.backends.torch.backend import TorchBackend
from izwi.backends.torch.ops import TorchOps
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.speech import AlignmentInput, TranscriptionInput
from izwi.model.encoders import EncodesPadded
from izwi.request.request import EncodeInput
from izwi_models.qwen3_aligner import FAMILY as ALIGNER
from izwi_models.qwen3_asr import FAMILY
from izwi_models.qwen3_asr.model import Qwen3ASR
from izwi_models.qwen3_asr.prompt import CLIP, cut_windows
from tests.models.tiny_aligner import write_tiny_aligner
from tests.models.tiny_asr import waveform, write_tiny_asr

pytest.importorskip("triton")  # which staging knows the limits of
from izwi.backends.torch.captured.capturer import GraphCapturer
from izwi.backends.torch.captured.encoder_graphs import EncoderGraphs

SECONDS = (8.0, 1.0, 3.7, 2.0, 2.01, 8.04, 5.55, 1.3, 4.0, 7.99, 12.6)
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
NEAR = 1e-4 if GPU else 1e-5  # there a product's order depends on its rows


class CapturingOps(TorchOps):
    """The plain operations, captured."""

    captures = True


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    torch.set_num_threads(1)  # larger is slower at this size
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return write_tiny_asr(tmp_path_factory.mktemp("tiny") / "asr")


def load(folder: Path, ops: TorchOps) -> Qwen3ASR:
    loaded = FAMILY.load_model(folder, TorchBackend(ops))
    assert isinstance(loaded, Qwen3ASR)
    return loaded


@pytest.fixture(scope="module")
def model(folder) -> Qwen3ASR:
    return load(folder, TorchOps(DEVICE))


def windows(model: Qwen3ASR, seconds: float, seed: int = 0) -> tuple[EncodeInput, ...]:
    return cut_windows(model._config.audio, whisper_log_mel(waveform(seconds, seed)))


def graphs_of(model: Qwen3ASR, max_pieces: int = 4) -> EncoderGraphs:
    encoders = model.padded_encoders
    return EncoderGraphs(encoders, GraphCapturer(DEVICE), max_pieces, DEVICE, torch.float32)


def assert_plain(model: Qwen3ASR, pieces: list[EncodeInput], encoded: list[Any]) -> None:
    """Every result is what its piece gives alone, without a graph."""
    assert len(encoded) == len(pieces)
    for piece, result in zip(pieces, encoded, strict=True):
        (alone,) = model.encode([piece])
        torch.testing.assert_close(result, alone, rtol=NEAR, atol=NEAR)


def test_pieces_of_mixed_lengths_are_encoded_as_each_alone(model):
    pieces = [window for seconds in SECONDS for window in windows(model, seconds)]
    lengths = {piece.values.shape[1] for piece in pieces}
    assert {
        800,
        100,
        200,
        201,
        400,
        4,
    } <= lengths  # whole, at the buckets' edges, less than a chunk
    graphs = graphs_of(model)
    graphs.warm_up()
    assert all(graphs.takes(piece) for piece in pieces)
    assert_plain(model, pieces, graphs.encode(pieces))


def test_audio_below_a_second_is_encoded_as_each_alone(model):
    """A clip keeps its length in the model; what pads it here must not reach its last tokens."""
    pieces = [window for n in range(3, 100, 7) for window in windows(model, n / 100, n)]
    assert {piece.kind for piece in pieces} == {CLIP}
    graphs = graphs_of(model)
    graphs.warm_up()
    assert all(graphs.takes(piece) for piece in pieces)
    assert_plain(model, pieces, graphs.encode(pieces))
    assert_plain(model, pieces[:1], graphs.encode(pieces[:1]))


def test_nothing_is_left_of_what_ran_before(model):
    graphs = graphs_of(model)
    long = [windows(model, 8.0, seed)[0] for seed in range(4)]
    short = [windows(model, 4.3, seed)[0] for seed in range(3)]
    kept = graphs.encode(long)
    assert_plain(model, short, graphs.encode(short))
    assert_plain(model, short[:1], graphs.encode(short[:1]))
    assert_plain(model, long, kept)  # later launches leave results alone


def test_encoder_graphs_refuse_shapes_that_were_not_captured(model):
    graphs = graphs_of(model)
    (whole,) = windows(model, 8.0)
    assert not graphs.takes(EncodeInput(whole.kind, whole.values.repeat(2, axis=1)))
    assert not graphs.takes(EncodeInput(whole.kind, whole.values[:64]))


def test_the_padded_encoder_asks_for_no_value(model):
    """A capture cannot: shapes and launches are the same whatever the arrays hold."""
    encoders = model.padded_encoders.values()
    for encoder, shape in [(one, shape) for one in encoders for shape in one.shapes]:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
            lengths = torch.ones(2, dtype=torch.int64, device=DEVICE)
            encoded = encoder.encode_padded(torch.zeros(2, *shape, device=DEVICE), lengths)
        assert encoded.shape == (2, model._config.audio.num_tokens(shape[1]), 48)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="no CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_encoding_waits_for_nothing(model):
    graphs = graphs_of(model)
    pieces = [window for seconds in SECONDS for window in windows(model, seconds)]
    graphs.warm_up()
    graphs.encode(pieces)
    torch.cuda.set_sync_debug_mode("error")
    try:
        graphs.encode(pieces)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def written(folder: Path, ops: TorchOps) -> tuple[dict[str, list[int]], list[str]]:
    """Tokens of seven clips, and the kinds of windows that ran without a graph."""
    frontend: Any = FAMILY.load_frontend(folder)
    model, plain = load(folder, ops), list[str]()
    encode = model.encode

    def watched(inputs: Any) -> Any:
        plain.extend(piece.kind for piece in inputs)
        return encode(inputs)

    # keys and values in 8 bits: the steps themselves run without a graph
    config = EngineConfig(kv_bytes=1 << 22, kv_dtype="int8", max_step_encodes=3)
    engine = Engine({"tiny": model}, TorchBackend(ops), config)
    model.encode = watched  # type: ignore[method-assign]
    ids: dict[str, list[int]] = {}
    for n, seconds in enumerate((8.0, 0.6, 3.2, 8.0, 20.0, 5.0, 1.0)):
        ask = TranscriptionInput(waveform(seconds, n % 5), max_new_tokens=12)
        engine.submit(frontend.prepare_transcription(str(n), "tiny", ask))
        ids[str(n)] = []
    while engine.has_work:
        for chunk in engine.step():
            assert chunk.error is None, chunk.error
            ids[chunk.request_id] += chunk.entries[:, 0].tolist()
    return ids, plain


def test_an_engine_that_captures_writes_the_same(folder):
    ids, kinds = written(folder, TorchOps(DEVICE))
    assert all(len(tokens) > 2 for tokens in ids.values())
    # on a GPU windows of unequal lengths go together, by the padded encoder
    assert kinds.count("window") == 8 or GPU
    assert written(folder, CapturingOps(DEVICE)) == (ids, [])


def test_encoders_are_captured_for_models_with_output_positions(tmp_path):
    folder = write_tiny_aligner(tmp_path / "aligner")
    heard: list[Any] = []
    for ops in (TorchOps(DEVICE), CapturingOps(DEVICE)):
        aligner: Any = ALIGNER.load_model(folder, TorchBackend(ops))
        assert isinstance(aligner, EncodesPadded)
        engine = Engine({"tiny": aligner}, TorchBackend(ops), EngineConfig(kv_bytes=1 << 22))
        ask = AlignmentInput(waveform(9.3), "the quick brown fox", "English")
        engine.submit(ALIGNER.load_frontend(folder).prepare_alignment("a", "tiny", ask))
        classes: list[int] = []
        while engine.has_work:
            for chunk in engine.step():
                assert chunk.error is None, chunk.error
                classes += chunk.entries[:, 0].tolist()
        graphs = engine._workers["tiny"].runner._graphs
        assert graphs is None or (graphs.encoders is not None and graphs.decodes is None)
        heard.append((graphs is None, classes))
    assert heard == [(True, heard[0][1]), (False, heard[0][1])]
    assert len(heard[0][1]) == 8
