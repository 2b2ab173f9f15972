"""The codec against the reference's numbers in tests/golden/codec.npz, and against itself."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from izwi.backends.torch.ops import TorchOps
from izwi.backends.torch.weights import load_weights
from izwi.errors import CheckpointError
from izwi_models.qwen3_codec import (
    CodecConfig,
    codec_config,
    decode,
    decode_latents,
    dequantise,
    encode,
    encode_latents,
    prepare,
    quantise,
    state_shapes,
    tensor_shapes,
    zero_state,
)
from tests.random_weights import random_tensor, random_weights, write_checkpoint

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "codec.npz")
SEED = int(GOLDEN["seed"])
GAINS = {"decoder.": 0.6}
FRAME = 1920
PCM_STEP = 29
TOLERANCE = 1e-5
OPS = TorchOps()

Weights = dict[str, torch.Tensor]
State = dict[str, torch.Tensor]


def golden_json(name: str) -> Any:
    return json.loads(str(GOLDEN[name]))


def noise(samples: int) -> torch.Tensor:
    return torch.from_numpy(4.0 * random_tensor(f"noise.{samples}", (samples,), SEED))[None]


def load(size: str) -> tuple[CodecConfig, Weights]:
    config = codec_config(golden_json(f"{size}_config"), size)
    drawn = random_weights(tensor_shapes(config), SEED, GAINS)
    return config, {name: torch.from_numpy(array) for name, array in drawn.items()}


@pytest.fixture(scope="module", autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def config() -> CodecConfig:
    return codec_config(golden_json("tiny_config"), "tiny")


@pytest.fixture(scope="module")
def plain() -> Weights:
    return load("tiny")[1]


@pytest.fixture(scope="module")
def weights(plain: Weights, config: CodecConfig) -> Weights:
    return prepare(OPS, plain, config)


@pytest.fixture(scope="module")
def codes() -> torch.Tensor:
    return torch.from_numpy(GOLDEN["tiny_codes"].astype(np.int64))[None]


@pytest.fixture(scope="module")
def one_shot(weights: Weights, config: CodecConfig, codes: torch.Tensor) -> torch.Tensor:
    return decode(OPS, weights, config, codes, zero_state(OPS, config, 1))[0]


def stream(
    weights: Weights, config: CodecConfig, codes: torch.Tensor, sizes: list[int]
) -> tuple[torch.Tensor, State]:
    """Decode chunk by chunk, the sizes over and over."""
    state, start, index = zero_state(OPS, config, codes.shape[0]), 0, 0
    pcm = []
    while start < codes.shape[1]:
        chunk = codes[:, start : start + sizes[index % len(sizes)]]
        samples, state = decode(OPS, weights, config, chunk, state)
        pcm.append(samples)
        start, index = start + chunk.shape[1], index + 1
    return torch.cat(pcm, dim=-1), state


def worst(a: torch.Tensor, b: torch.Tensor | np.ndarray) -> float:
    assert a.shape == tuple(b.shape)
    return float((a - torch.as_tensor(b)).abs().max())


# -- decoding ------------------------------------------------------------------------------------


def test_one_shot_decode_is_the_references(one_shot: torch.Tensor) -> None:
    assert one_shot.shape == (1, 330 * FRAME)
    assert worst(one_shot[0, ::PCM_STEP], GOLDEN["tiny_pcm"]) < TOLERANCE
    assert worst(one_shot[0, -FRAME:], GOLDEN["tiny_tail"]) < TOLERANCE


@pytest.mark.parametrize(
    "sizes",
    [*(pytest.param([n], marks=pytest.mark.slow) for n in (1, 2)), [5], [25], [3, 1, 7, 2, 12, 80]],
    ids=str,
)
def test_a_stream_is_the_one_shot_decode(
    weights: Weights,
    config: CodecConfig,
    codes: torch.Tensor,
    one_shot: torch.Tensor,
    sizes: list[int],
) -> None:
    pcm, state = stream(weights, config, codes, sizes)
    assert worst(pcm, one_shot) < TOLERANCE
    assert state["start"].tolist() == [330]


def test_state_has_the_declared_shapes(
    weights: Weights, config: CodecConfig, codes: torch.Tensor
) -> None:
    _, state = stream(weights, config, codes[:, :3].expand(2, -1, -1), [2])
    specs = state_shapes(config)
    assert {name: tuple(array.shape[1:]) for name, array in state.items()} == {
        name: spec.shape for name, spec in specs.items()
    }
    for name, spec in specs.items():
        assert state[name].dtype == (torch.int64 if spec.dtype == "int64" else torch.float32)


def test_rows_at_different_frames_decode_as_alone(
    weights: Weights, config: CodecConfig, codes: torch.Tensor
) -> None:
    heard = (0, 3, 40)
    states = [stream(weights, config, codes[:, :n], [25])[1] if n else None for n in heard]
    states = [zero_state(OPS, config, 1) if state is None else state for state in states]
    ahead = [codes[:, 100 + n : 105 + n] for n in heard]
    together, after = decode(
        OPS,
        weights,
        config,
        torch.cat(ahead),
        {name: torch.cat([state[name] for state in states]) for name in states[0]},
    )
    assert after["start"].tolist() == [n + 5 for n in heard]
    for row, (state, chunk) in enumerate(zip(states, ahead, strict=True)):
        alone, alone_after = decode(OPS, weights, config, chunk, state)
        assert worst(together[row : row + 1], alone) < TOLERANCE
        for name, array in alone_after.items():
            assert torch.allclose(after[name][row : row + 1], array, atol=TOLERANCE), name


@pytest.mark.parametrize("name", sorted(state_shapes(codec_config(golden_json("tiny_config"), ""))))
def test_every_part_of_the_state_matters(
    weights: Weights, config: CodecConfig, codes: torch.Tensor, one_shot: torch.Tensor, name: str
) -> None:
    _, state = stream(weights, config, codes[:, :10], [10])
    state[name] = torch.zeros_like(state[name])
    pcm, _ = decode(OPS, weights, config, codes[:, 10:12], state)
    assert worst(pcm, one_shot[:, 10 * FRAME : 12 * FRAME]) > 10 * TOLERANCE


def test_padding_codes_count_as_zero(
    weights: Weights, config: CodecConfig, codes: torch.Tensor
) -> None:
    padded, zeroed = codes[:, :2].clone(), codes[:, :2].clone()
    padded[:, 1], zeroed[:, 1] = -1, 0
    latents = dequantise(OPS, weights, config, padded)
    assert torch.equal(latents, dequantise(OPS, weights, config, zeroed))


def test_plain_weights_are_as_good_as_prepared_ones(
    plain: Weights, weights: Weights, config: CodecConfig, codes: torch.Tensor
) -> None:
    state = zero_state(OPS, config, 1)
    first = decode(OPS, plain, config, codes[:, :3], state)[0]
    assert torch.equal(first, decode(OPS, weights, config, codes[:, :3], state)[0])
    audio = noise(9600)
    assert torch.equal(encode(OPS, plain, config, audio), encode(OPS, weights, config, audio))


# -- encoding ------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [24000, 24001, 9600, 9599, 50000, 252000])
def test_codes_are_the_references(weights: Weights, config: CodecConfig, samples: int) -> None:
    expected = GOLDEN[f"tiny_encoded_{samples}"]
    assert expected.shape == (math.ceil(samples / FRAME), 16)
    assert np.array_equal(encode(OPS, weights, config, noise(samples))[0].numpy(), expected)


def test_latents_are_the_references(weights: Weights, config: CodecConfig) -> None:
    latents = encode_latents(OPS, weights, config, noise(24001))
    assert worst(latents[0], GOLDEN["tiny_latents"]) < TOLERANCE


def test_a_batch_encodes_as_its_rows_alone(weights: Weights, config: CodecConfig) -> None:
    clips = torch.stack([noise(50000)[0, :9000], noise(24000)[0, :9000]])
    together = encode(OPS, weights, config, clips)
    for row in range(2):
        alone = encode(OPS, weights, config, clips[row : row + 1])
        assert torch.equal(together[row : row + 1], alone)


# -- training ------------------------------------------------------------------------------------


def test_gradients_reach_every_weight_that_is_read(plain: Weights, config: CodecConfig) -> None:
    with torch.enable_grad():
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in plain.items()}
        latents = encode_latents(OPS, leaves, config, noise(9600))
        codes = quantise(OPS, leaves, config, latents)
        state = zero_state(OPS, config, 1)
        pcm, _ = decode_latents(OPS, leaves, config, dequantise(OPS, leaves, config, codes), state)
        (latents.square().mean() + pcm.square().mean()).backward()
    still = {name for name, leaf in leaves.items() if leaf.grad is None or not leaf.grad.any()}
    unread = {
        name
        for name in leaves
        if name.startswith("encoder.quantizer.")  # codes have no gradient
        or (name.startswith("decoder.quantizer.") and ".input_proj." in name)
    }
    assert still == unread


# -- checkpoints ---------------------------------------------------------------------------------


def test_tensors_of_the_real_config_are_the_references() -> None:
    config = codec_config(golden_json("real_config"), "real")
    published = {name: tuple(shape) for name, shape in golden_json("real_tensors")}
    assert tensor_shapes(config) == published
    mimi_buffers = (".codebook.initialized", ".codebook.cluster_usage", ".codebook.embed_sum")
    parameters = {n: shape for n, shape in published.items() if not n.endswith(mimi_buffers)}
    assert sum(math.prod(shape) for shape in parameters.values()) == 153_714_657


def test_real_size_is_the_references() -> None:
    config, weights = load("real")
    codes = torch.from_numpy(GOLDEN["real_codes"])[None]
    pcm, _ = stream(prepare(OPS, weights, config), config, codes, [1, 3])
    assert worst(pcm[0], GOLDEN["real_pcm"]) < TOLERANCE
    encoded = encode(OPS, weights, config, noise(9600))[0]
    assert np.array_equal(encoded.numpy(), GOLDEN["real_encoded"])


def read(folder: Path, config: CodecConfig) -> Weights:
    shapes = tensor_shapes(config)
    return load_weights(folder, shapes, device=torch.device("cpu"), dtype=torch.float32)


def test_a_checkpoint_loads_as_drawn(tmp_path: Path, config: CodecConfig, plain: Weights) -> None:
    write_checkpoint(tmp_path, tensor_shapes(config), SEED, gains=GAINS)
    loaded = read(tmp_path, config)
    assert loaded.keys() == plain.keys()
    assert all(torch.equal(loaded[name], plain[name]) for name in plain)


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("missing", "decoder.quantizer.rvq_rest.input_proj.weight"),
        ("shape", "decoder.decoder.6.conv.weight"),
        ("extra", "decoder.decoder.7.conv.weight"),
    ],
)
def test_the_error_names_a_wrong_tensor(
    tmp_path: Path, config: CodecConfig, fault: str, name: str
) -> None:
    shapes = tensor_shapes(config)
    if fault == "missing":
        del shapes[name]
    else:
        shapes[name] = (1, 2, 3)
    write_checkpoint(tmp_path, shapes, SEED)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        read(tmp_path, config)


@pytest.mark.parametrize(
    ("part", "key"),
    [
        (None, "decode_upsample_rate"),
        ("decoder_config", "codebook_dim"),
        ("encoder_config", "norm_eps"),
    ],
)
def test_the_error_names_a_missing_key(part: str | None, key: str) -> None:
    values = golden_json("tiny_config")
    del (values[part] if part else values)[key]
    with pytest.raises(CheckpointError, match=f"{part or ''}.*{key}"):
        codec_config(values, "config.json")


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        (None, "decode_upsample_rate", 2000),
        (None, "encode_downsample_rate", 1900),
        ("decoder_config", "num_quantizers", 8),
        ("decoder_config", "hidden_act", "relu"),
        ("encoder_config", "use_causal_conv", False),
        ("encoder_config", "num_quantizers", 8),
        ("encoder_config", "vector_quantization_hidden_dimension", 32),
    ],
)
def test_the_error_names_what_is_not_supported(part: str | None, key: str, value: object) -> None:
    values = golden_json("tiny_config")
    (values[part] if part else values)[key] = value
    with pytest.raises(CheckpointError, match=f"{key}|codebook_dim"):
        codec_config(values, "config.json")
