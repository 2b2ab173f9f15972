"""LFM2-Audio's encoder and codecs as the runner captures them: fixed shapes, no value read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from izwi.backends.torch.ops import TorchOps
from izwi.backends.torch.state import StateArena
from izwi.request.request import EncodeInput
from izwi_models.lfm2_audio.audio_config import MimiConfig, detokenizer_config, encoder_config
from izwi_models.lfm2_audio.audio_tensors import detokenizer_shapes, encoder_shapes, mimi_shapes
from izwi_models.lfm2_audio.codecs import FrameCodec, detokenizer_codec, mimi_codec
from izwi_models.lfm2_audio.prompt import SEGMENT
from izwi_models.lfm2_audio.segments import SegmentEncoder
from tests.random_weights import random_tensor, random_weights

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "lfm2_audio_codecs.npz")
CPU = torch.device("cpu")
OPS = TorchOps()
WIDTH = 48


@pytest.fixture(scope="module", autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def golden_json(name: str) -> Any:
    return json.loads(str(GOLDEN[name]))


def drawn(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    arrays = random_weights(shapes, 3, {"lin.weight": 0.2})
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def tiny_mimi() -> FrameCodec:
    config = MimiConfig(**golden_json("tiny_mimi"))
    return mimi_codec(OPS, drawn(mimi_shapes(config)), config)


def tiny_detokenizer() -> FrameCodec:
    values = {
        **golden_json("detokenizer"),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "block_multiple_of": 8,
        "layer_types": ["conv", "sliding_attention"],
    }
    config = detokenizer_config(values, "tiny")
    return detokenizer_codec(OPS, drawn(detokenizer_shapes(config)), config)


@pytest.fixture(scope="module", params=[tiny_mimi, tiny_detokenizer])
def codec(request: pytest.FixtureRequest) -> FrameCodec:
    made: FrameCodec = request.param()
    return made


@pytest.fixture(scope="module")
def encoder() -> SegmentEncoder:
    config = encoder_config(golden_json("tiny_encoder"), "tiny")
    return SegmentEncoder(OPS, drawn(encoder_shapes(config, WIDTH)), config)


def segment(frames: int) -> EncodeInput:
    return EncodeInput(SEGMENT, 20.0 * random_tensor(f"segment.{frames}", (128, frames), 3))


# -- encoder -------------------------------------------------------------------------------------


def test_segments_of_any_lengths_are_encoded_in_order(encoder: SegmentEncoder) -> None:
    lengths = (201, 9, 201, 3300, 1, 9)
    together = encoder.encode([segment(frames) for frames in lengths])
    for frames, encoded in zip(lengths, together, strict=True):
        (alone,) = encoder.encode([segment(frames)])
        assert encoded.shape == (encoder.num_tokens(frames), WIDTH)
        torch.testing.assert_close(encoded, alone, rtol=1e-5, atol=1e-5)
    assert not encoder.encode([])


def test_padded_segments_are_those_alone(encoder: SegmentEncoder) -> None:
    shape = encoder.shapes[1]
    lengths = (400, 399, 17, 8, 1, 250)
    values = torch.full((len(lengths), *shape), 5.0)
    for row, frames in zip(values, lengths, strict=True):
        row[:, :frames] = torch.from_numpy(segment(frames).values)
    out = encoder.encode_padded(values, torch.tensor(lengths))
    for row, frames in zip(out, lengths, strict=True):
        (alone,) = encoder.encode([segment(frames)])
        torch.testing.assert_close(encoder.unpadded(row, frames), alone, rtol=1e-4, atol=2e-5)


def test_the_padded_encoder_asks_for_no_value(encoder: SegmentEncoder) -> None:
    for shape in encoder.shapes:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
            lengths = torch.ones(2, dtype=torch.int64)
            encoded = encoder.encode_padded(torch.zeros(2, *shape), lengths)
        assert encoded.shape == (2, encoder.num_tokens(shape[1]), WIDTH)
        assert 1 <= encoder.max_pieces(shape) <= 64


# -- codecs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("frames", [1, 4])
def test_a_codec_asks_for_no_value(codec: FrameCodec, frames: int) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
        state = {
            name: torch.zeros(
                (3, *spec.shape), dtype=torch.int64 if spec.dtype == "int64" else torch.float32
            )
            for name, spec in codec.state.items()
        }
        pcm, after = codec.decode(torch.zeros(3, frames, 8, dtype=torch.int64), state)
    assert pcm.shape == (3, frames * codec.frame_samples)
    assert {name: array.shape for name, array in after.items()} == {
        name: array.shape for name, array in state.items()
    }


def test_state_in_rows_of_an_arena_is_the_streams(codec: FrameCodec) -> None:
    """Streams of an arena take turns in batches of other streams; rows are used again."""
    arena = StateArena(codec.state, 4, CPU, torch.float32)
    codes = torch.randint(0, 64, (3, 12, 8), generator=torch.Generator().manual_seed(1))
    heard: list[list[torch.Tensor]] = [[], [], []]
    done, rows = [0, 0, 0], [2, 0, 3]
    for streams, frames in (
        ((0,), 1),
        ((0, 1), 2),
        ((2, 0), 4),
        ((1, 2), 3),
        ((0, 2), 5),
        ((1,), 7),
    ):
        batch = torch.stack([codes[s, done[s] : done[s] + frames] for s in streams])
        taken = [rows[s] for s in streams]
        pcm, state = codec.decode(batch, arena.gather(taken))
        arena.scatter(taken, state)
        for s, samples in zip(streams, pcm, strict=True):
            heard[s].append(samples)
            done[s] += frames
    assert done == [12, 12, 12]
    fresh = StateArena(codec.state, 3, CPU, torch.float32)
    whole, _ = codec.decode(codes, fresh.gather([0, 1, 2]))
    for stream in range(3):
        torch.testing.assert_close(torch.cat(heard[stream]), whole[stream], rtol=0, atol=1e-5)
