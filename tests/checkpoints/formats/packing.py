"""Write packed checkpoints by the formats' published definitions, plainly in numpy.

Each packer takes a layer's float weight, and adds the tensors of the file and the numbers that they
stand for: those of the widened twin.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from izwi.checkpoints.linear_spec import E4M3

Arrays = dict[str, Any]
GROUP = 32


@dataclass
class Packed:
    """A packed checkpoint.

    Attributes:
        tensors: What is in the file.
        twin: The numbers that it stands for, by the names of a checkpoint in float32.
        config: What config.json says beside the model's own keys.
    """

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    twin: Arrays = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


Packer = Callable[[str, np.ndarray, Packed], None]


def is_layer(name: str) -> bool:
    return "layers" in name


def packed_checkpoint(
    weights: Mapping[str, np.ndarray],
    packer: Packer,
    config: Any,
    packs: Callable[[str], bool] = is_layer,
) -> Packed:
    """Pack the matrices that `packs` names; the rest stays float32."""
    made = Packed(config=config)
    for name, weight in weights.items():
        if weight.ndim == 2 and packs(name):
            packer(name.removesuffix(".weight"), weight, made)
        else:
            made.tensors[name] = torch.from_numpy(weight)
            made.twin[name] = weight
    return made


def write(folder: Path, made: Packed, config: Mapping[str, Any]) -> Path:
    """Write model.safetensors and config.json over a folder that has the rest."""
    save_file({n: t.contiguous() for n, t in made.tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**config, **made.config}))
    return folder


def write_twin(folder: Path, made: Packed) -> Path:
    """Write the same numbers in float32."""
    twin = {name: torch.from_numpy(np.array(weight)) for name, weight in made.twin.items()}
    save_file(twin, folder / "model.safetensors")
    return folder


def rounded(
    weight: np.ndarray, bits: int, group: int, *, symmetric: bool, order: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Round to unsigned codes in groups of inputs.

    Returns:
        codes (out, in), scales (out, groups) float16, zeros (out, groups), group of each input.
    """
    outputs, inputs = weight.shape
    most = (1 << bits) - 1
    group_of = np.arange(inputs) // group if order is None else order
    groups = int(group_of.max()) + 1
    scales = np.zeros((outputs, groups), np.float16)
    zeros = np.zeros((outputs, groups), np.int64)
    for g in range(groups):
        part = weight[:, group_of == g]
        if symmetric:
            scales[:, g] = np.abs(part).max(1) / (most / 2)
            zeros[:, g] = 1 << bits - 1
        else:
            low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            scales[:, g] = (high - low) / most
            zeros[:, g] = np.clip(np.round(-low / scales[:, g].astype(np.float32)), 0, most)
    steps = weight / scales.astype(np.float32)[:, group_of] + zeros[:, group_of]
    return np.clip(np.round(steps), 0, most).astype(np.int64), scales, zeros, group_of


def words(codes: np.ndarray, bits: int, nibbles: tuple[int, ...] | None = None) -> np.ndarray:
    """Pack the last axis into 32-bit words: code i of a word is at bit i * bits.

    With `nibbles`, code nibbles[i] is there.
    """
    each = 32 // bits
    parts = codes.reshape(*codes.shape[:-1], -1, each).astype(np.uint64)
    word = np.zeros(parts.shape[:-1], np.uint64)
    for place in range(each):
        word |= parts[..., nibbles[place] if nibbles else place] << np.uint64(place * bits)
    return word.astype(np.uint32).view(np.int32)


def gptq(bits: int, *, symmetric: bool, act_order: bool = False, version: str = "gptq") -> Packer:
    def pack(layer: str, weight: np.ndarray, made: Packed) -> None:
        inputs, order = weight.shape[1], None
        if act_order:
            places = np.random.default_rng(inputs).permutation(inputs)
            order = np.empty(inputs, np.int64)
            order[places] = np.arange(inputs) // GROUP
        codes, scales, zeros, group_of = rounded(
            weight, bits, GROUP, symmetric=symmetric, order=order
        )
        stored = (zeros - (version == "gptq")) & (1 << bits) - 1
        made.tensors[f"{layer}.qweight"] = torch.from_numpy(words(codes, bits).T.copy())
        made.tensors[f"{layer}.qzeros"] = torch.from_numpy(words(stored.T, bits))
        made.tensors[f"{layer}.scales"] = torch.from_numpy(scales.T.copy())
        made.tensors[f"{layer}.g_idx"] = torch.from_numpy(group_of.astype(np.int32))
        made.twin[f"{layer}.weight"] = numbers(codes, scales, zeros, group_of)

    return pack


def gptq_config(bits: int, *, symmetric: bool, act_order: bool = False, version: str = "gptq"):
    described = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "sym": symmetric}
    described |= {"desc_act": act_order, "checkpoint_format": version}
    return {"quantization_config": described}


def numbers(codes: Any, scales: Any, zeros: Any, group_of: Any) -> np.ndarray:
    """(code - zero) * scale, in float32."""
    whole = (codes - zeros[:, group_of]).astype(np.float32)
    return whole * scales.astype(np.float32)[:, group_of]


def awq(layer: str, weight: np.ndarray, made: Packed) -> None:
    codes, scales, zeros, group_of = rounded(weight, 4, GROUP, symmetric=False)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    made.tensors[f"{layer}.qweight"] = torch.from_numpy(words(codes.T, 4, order))
    made.tensors[f"{layer}.qzeros"] = torch.from_numpy(words(zeros.T, 4, order))
    made.tensors[f"{layer}.scales"] = torch.from_numpy(scales.T.copy())
    made.twin[f"{layer}.weight"] = numbers(codes, scales, zeros, group_of)


AWQ_CONFIG = {
    "quantization_config": {
        "quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm",
        "zero_point": True, "modules_to_not_convert": None,
    }
}  # fmt: skip


def compressed_integers(bits: int, *, symmetric: bool, act_order: bool = False) -> Packer:
    def pack(layer: str, weight: np.ndarray, made: Packed) -> None:
        inputs, order = weight.shape[1], None
        if act_order:
            places = np.random.default_rng(inputs).permutation(inputs)
            order = np.empty(inputs, np.int64)
            order[places] = np.arange(inputs) // GROUP
        codes, scales, zeros, group_of = rounded(
            weight, bits, GROUP, symmetric=symmetric, order=order
        )
        brain = torch.from_numpy(scales).bfloat16()
        made.tensors[f"{layer}.weight_packed"] = torch.from_numpy(words(codes, bits))
        made.tensors[f"{layer}.weight_scale"] = brain
        made.tensors[f"{layer}.weight_shape"] = torch.tensor(weight.shape)
        if not symmetric:
            made.tensors[f"{layer}.weight_zero_point"] = torch.from_numpy(words(zeros.T, bits).T)
        if act_order:
            made.tensors[f"{layer}.weight_g_idx"] = torch.from_numpy(group_of.astype(np.int32))
        made.twin[f"{layer}.weight"] = numbers(codes, brain.float().numpy(), zeros, group_of)

    return pack


def compressed_plain(layer: str, weight: np.ndarray, made: Packed) -> None:
    """int8, one scale for each output."""
    codes, scales, zeros, group_of = rounded(weight, 8, weight.shape[1], symmetric=True)
    made.tensors[f"{layer}.weight"] = torch.from_numpy((codes - 128).astype(np.int8))
    made.tensors[f"{layer}.weight_scale"] = torch.from_numpy(scales)
    made.twin[f"{layer}.weight"] = numbers(codes, scales, zeros, group_of)


def compressed_config(kind: str, **weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    described = {"quant_method": "compressed-tensors", "format": kind, "config_groups": groups}
    return {"quantization_config": described | {"ignore": ["lm_head"], "sparsity_config": {}}}


def fp8(block: tuple[int, int] | None, scale_name: str = "weight_scale") -> Packer:
    """8-bit floats with a scale for each block, each output (block (1, 0)), or each weight."""

    def pack(layer: str, weight: np.ndarray, made: Packed) -> None:
        outputs, inputs = weight.shape
        rows, columns = block or (outputs, inputs)
        columns = columns or inputs
        scales = np.zeros((-(-outputs // rows), -(-inputs // columns)), np.float32)
        codes = np.zeros(weight.shape, np.uint8)
        twin = np.zeros(weight.shape, np.float32)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                at = (slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns))
                scales[i, j] = np.abs(weight[at]).max() / 448
                scaled = torch.from_numpy(weight[at] / scales[i, j]).to(torch.float8_e4m3fn)
                codes[at] = scaled.view(torch.uint8).numpy()
                twin[at] = E4M3[codes[at]] * scales[i, j]
        stored = torch.from_numpy(scales if block else scales.reshape(1))
        made.tensors[f"{layer}.weight"] = torch.from_numpy(codes).view(torch.float8_e4m3fn)
        made.tensors[f"{layer}.{scale_name}"] = stored
        if scale_name == "weight_scale":
            made.tensors[f"{layer}.input_scale"] = torch.ones(1)
        made.twin[f"{layer}.weight"] = twin

    return pack


def fp8_config(block: tuple[int, int] | None) -> dict[str, Any]:
    described: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    if block:
        described |= {"fmt": "e4m3", "weight_block_size": list(block)}
    return {"quantization_config": described}


def mlx(bits: int) -> Packer:
    """Words of codes, lowest bits first, which may cross words; scales and offsets of groups."""

    def pack(layer: str, weight: np.ndarray, made: Packed) -> None:
        outputs, inputs = weight.shape
        groups = weight.reshape(outputs, -1, GROUP)
        low, high = groups.min(-1), groups.max(-1)
        scales = ((high - low) / ((1 << bits) - 1)).astype(np.float16)
        offsets = low.astype(np.float16)
        wide, low = scales.astype(np.float32)[..., None], offsets.astype(np.float32)[..., None]
        codes = np.clip(np.round((groups - low) / wide), 0, (1 << bits) - 1)
        flat = codes.astype(np.uint8).reshape(outputs, inputs, 1)
        stream = np.unpackbits(flat, axis=2, bitorder="little")[..., :bits].reshape(outputs, -1)
        packed = np.packbits(stream, axis=1, bitorder="little").view(np.uint32)
        made.tensors[f"{layer}.weight"] = torch.from_numpy(packed)
        made.tensors[f"{layer}.scales"] = torch.from_numpy(scales)
        made.tensors[f"{layer}.biases"] = torch.from_numpy(offsets)
        values = codes.astype(np.float32) * wide + low
        made.twin[f"{layer}.weight"] = values.reshape(weight.shape)

    return pack


def mlx_config(bits: int) -> dict[str, Any]:
    return {"quantization": {"group_size": GROUP, "bits": bits}}


NF4 = np.linspace(-1, 1, 16, dtype=np.float32)


def nf4(*, nested: bool) -> Packer:
    def pack(layer: str, weight: np.ndarray, made: Packed) -> None:
        blocks = weight.reshape(-1, GROUP)
        largest = np.abs(blocks).max(1).astype(np.float32)
        state: dict[str, Any] = {"quant_type": "nf4", "blocksize": GROUP, "dtype": "float32"}
        state |= {"shape": list(weight.shape)}
        if nested:
            table = np.linspace(-1, 1, 256, dtype=np.float32)
            offset = np.float32(largest.mean())
            outer = np.array([np.abs(part - offset).max() for part in _cut(largest, 32)])
            outer = outer.astype(np.float32)
            scale = np.repeat(outer, 32)[: len(largest)]
            away = np.abs((largest - offset)[:, None] / scale[:, None] - table)
            inner = away.argmin(1).astype(np.uint8)
            made.tensors[f"{layer}.weight.nested_absmax"] = torch.from_numpy(outer)
            made.tensors[f"{layer}.weight.nested_quant_map"] = torch.from_numpy(table)
            state |= {"nested_blocksize": 32, "nested_offset": float(offset)}
            largest = table[inner] * scale + offset
            made.tensors[f"{layer}.weight.absmax"] = torch.from_numpy(inner)
        else:
            made.tensors[f"{layer}.weight.absmax"] = torch.from_numpy(largest)
        codes = np.abs(blocks[..., None] / largest[:, None, None] - NF4).argmin(-1)
        flat = codes.astype(np.uint8).reshape(-1)
        made.tensors[f"{layer}.weight"] = torch.from_numpy(flat[::2] << 4 | flat[1::2])[:, None]
        made.tensors[f"{layer}.weight.quant_map"] = torch.from_numpy(NF4.copy())
        blob = torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)
        made.tensors[f"{layer}.weight.quant_state.bitsandbytes__nf4"] = blob
        made.twin[f"{layer}.weight"] = (NF4[codes] * largest[:, None]).reshape(weight.shape)

    return pack


NF4_CONFIG = {
    "quantization_config": {
        "quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_quant_storage": "uint8",
    }
}  # fmt: skip


def _cut(values: np.ndarray, size: int) -> list[np.ndarray]:
    return [values[start : start + size] for start in range(0, len(values), size)]


# Each format, as packer and configuration.
Format = tuple[Packer, dict[str, Any]]
FORMATS: dict[str, Format] = {
    "gptq-4": (gptq(4, symmetric=True), gptq_config(4, symmetric=True)),
    "gptq-4-zeros-v2": (
        gptq(4, symmetric=False, version="gptq_v2"),
        gptq_config(4, symmetric=False, version="gptq_v2"),
    ),
    "gptq-8-act-order": (
        gptq(8, symmetric=False, act_order=True),
        gptq_config(8, symmetric=False, act_order=True),
    ),
    "gptq-4-act-order": (
        gptq(4, symmetric=True, act_order=True),
        gptq_config(4, symmetric=True, act_order=True),
    ),
    "awq": (awq, AWQ_CONFIG),
    "compressed-4": (
        compressed_integers(4, symmetric=True),
        compressed_config(
            "pack-quantized", num_bits=4, type="int", strategy="group", group_size=GROUP
        ),
    ),
    "compressed-4-zeros-act-order": (
        compressed_integers(4, symmetric=False, act_order=True),
        compressed_config(
            "pack-quantized", num_bits=4, type="int", strategy="group", group_size=GROUP
        ),
    ),
    "compressed-8": (
        compressed_integers(8, symmetric=True),
        compressed_config(
            "pack-quantized", num_bits=8, type="int", strategy="group", group_size=GROUP
        ),
    ),
    "compressed-int8": (
        compressed_plain,
        compressed_config("int-quantized", num_bits=8, type="int", strategy="channel"),
    ),
    "compressed-fp8": (
        fp8((1, 0)),
        compressed_config("float-quantized", num_bits=8, type="float", strategy="channel"),
    ),
    "fp8-blocks": (fp8((40, 40), "weight_scale_inv"), fp8_config((40, 40))),
    "fp8-tensor": (fp8(None), fp8_config(None)),
    "mlx-4": (mlx(4), mlx_config(4)),
    "mlx-6": (mlx(6), mlx_config(6)),
    "mlx-8": (mlx(8), mlx_config(8)),
    "nf4": (nf4(nested=False), NF4_CONFIG),
    "nf4-nested": (nf4(nested=True), NF4_CONFIG),
}


def write_config(folder: Path, values: Mapping[str, Any], name: str = "config.json") -> None:
    (folder / name).write_text(json.dumps(values))


def write_index(folder: Path, placed: Mapping[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
