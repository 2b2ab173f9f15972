"""Packed weights stand for the numbers that the formats' own packages read, where these run."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from izwi.checkpoints.weight_files import read_tensors
from tests.checkpoints.formats.packing import compressed_config, fp8, fp8_config, write_config

SHAPE = (96, 128)
SHAPES = {"layers.0.one.weight": SHAPE}


def drawn() -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(2)) / 11


def read(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> np.ndarray:
    """Write one layer's tensors, and return the numbers that we read."""
    named = {f"layers.0.one.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    save_file(named, folder / "model.safetensors")
    write_config(folder, config)
    weight = dict(read_tensors(folder, SHAPES, "pt"))["layers.0.one.weight"]
    return np.asarray(weight.wide())


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_mlx_reads_the_same(bits: int, group: int, tmp_path: Path) -> None:
    mx = pytest.importorskip("mlx.core")
    weight = mx.array(drawn().numpy())
    packed, scales, offsets = mx.quantize(weight, group_size=group, bits=bits)
    expected = mx.dequantize(packed, scales, offsets, group_size=group, bits=bits)
    arrays = {"weight": packed, "scales": scales, "biases": offsets}
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    config = {"quantization": {"bits": bits, "group_size": group}}
    found = read(tmp_path, tensors, config)
    np.testing.assert_allclose(found, np.array(expected), rtol=1e-6, atol=1e-7)


needs_compressed_tensors = pytest.mark.skipif(
    find_spec("compressed_tensors") is None, reason="compressed-tensors is not installed"
)


@needs_compressed_tensors
@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32}),
        ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 64, "symmetric": 0}),
        ("pack-quantized", {"num_bits": 4, "strategy": "channel"}),
        ("pack-quantized", {"num_bits": 8, "strategy": "group", "group_size": 32}),
        ("int-quantized", {"num_bits": 8, "strategy": "channel"}),
        ("int-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": 0}),
        ("float-quantized", {"num_bits": 8, "strategy": "channel", "type": "float"}),
        ("float-quantized", {"num_bits": 8, "strategy": "tensor", "type": "float"}),
    ],
    ids=str,
)
def test_compressed_tensors_reads_the_same(
    kind: str, weights: dict[str, Any], tmp_path: Path
) -> None:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    weights = {"type": "int", "symmetric": True, **weights}
    weights["symmetric"] = bool(weights["symmetric"])
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    weight = drawn()
    columns = weights.get("group_size", SHAPE[1])
    groups = weight if weights["strategy"] == "tensor" else weight.view(SHAPE[0], -1, columns)
    low, high = (
        (groups.min(), groups.max())
        if weights["strategy"] == "tensor"
        else (groups.amin(-1), groups.amax(-1))
    )
    scale, zero = calculate_qparams(low, high, scheme.weights)
    scale, zero = scale.reshape(-1, *scale.shape[1:]), zero.reshape(-1, *zero.shape[1:])
    state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
    compressor = BaseCompressor.get_value_from_registry(kind)
    tensors = compressor.compress(state, scheme)
    expected = compressor.decompress(tensors, scheme)["weight"]
    found = read(tmp_path, tensors, compressed_config(kind, **weights))
    assert np.array_equal(found, expected.float().numpy())
    assert np.abs(found - weight.numpy()).max() < 0.05


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
def test_bitsandbytes_reads_the_same(kind: str, nested: bool, tmp_path: Path) -> None:
    import bitsandbytes.functional as bnb

    packed, state = bnb.quantize_4bit(
        drawn(), blocksize=64, quant_type=kind, compress_statistics=nested
    )
    expected = bnb.dequantize_4bit(packed, state)
    tensors = {"weight": packed} | {
        f"weight.{name}": part for name, part in state.as_dict(packed=True).items()
    }
    described = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}
    found = read(tmp_path, tensors, {"quantization_config": described})
    np.testing.assert_allclose(found, expected.float().numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_transformers_answers_with_the_logits_of_fp8_blocks(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from izwi.backends.torch.backend import torch_backend
    from izwi_models.qwen3_chat import FAMILY
    from tests.models.test_published_formats import write_pair

    # a size that divides all shapes, as published checkpoints have it
    packed, _ = write_pair(tmp_path, (fp8((32, 32), "weight_scale_inv"), fp8_config((32, 32))))
    config = transformers.FineGrainedFP8Config(dequantize=True, weight_block_size=(32, 32))
    theirs = transformers.Qwen3ForCausalLM.from_pretrained(
        packed, dtype=torch.float32, quantization_config=config
    )
    ids = torch.tensor([[1, 5, 200, 77, 13]])
    backend = torch_backend("cpu", "float32")
    with torch.inference_mode():
        expected = theirs(ids).logits[0]
        ours: Any = FAMILY.load_model(packed, backend)
        hidden = ours.run(ours.embed_inputs(ids[0, :, None])[None], backend.ops.dense_context(1, 5))
        logits: list[torch.Tensor] = []
        ours.draw(hidden[0], lambda found, _: logits.append(found) or found.argmax(-1))
    torch.testing.assert_close(logits[0], expected, rtol=1e-4, atol=1e-4)
