"""Packed checkpoints stand for their numbers, and what is broken in others is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from izwi.checkpoints.formats.choice import layout_of
from izwi.checkpoints.linear_spec import LinearSpec
from izwi.checkpoints.weight_files import packed_forms, read_tensors, tensor_names
from izwi.errors import CheckpointError
from tests.checkpoints.formats import packing
from tests.checkpoints.formats.packing import FORMATS, packed_checkpoint, write
from tests.random_weights import random_weights

SHAPES: dict[str, tuple[int, ...]] = {
    "layers.0.one.weight": (64, 96),
    "layers.0.two.weight": (96, 64),
    "norm.weight": (64,),
    "head.weight": (32, 64),
}
EVERY = pytest.mark.parametrize("name", FORMATS)


def made(folder: Path, name: str) -> packing.Packed:
    packer, config = FORMATS[name]
    drawn = packed_checkpoint(random_weights(SHAPES, 5), packer, config)
    write(folder, drawn, {})
    return drawn


@EVERY
def test_a_packed_weight_stands_for_its_numbers(name: str, tmp_path: Path) -> None:
    expected = made(tmp_path, name).twin
    found = dict(read_tensors(tmp_path, SHAPES, "pt"))
    assert found.keys() == SHAPES.keys()
    forms = packed_forms(tmp_path, SHAPES)
    assert set(forms) == {n for n in SHAPES if "layers" in n}
    for tensor, weight in found.items():
        if tensor not in forms:
            assert np.array_equal(weight.numpy(), expected[tensor])
            continue
        assert isinstance(weight, LinearSpec)
        assert weight.form.shape == forms[tensor].shape == SHAPES[tensor]
        assert weight.codes.nbytes + weight.scales.nbytes <= forms[tensor].num_bytes
        assert np.array_equal(weight.wide(), expected[tensor])


def test_names_are_those_of_unpacked_weights(tmp_path: Path) -> None:
    made(tmp_path, "compressed-4-zeros-act-order")
    assert tensor_names(tmp_path) == set(SHAPES)


@EVERY
def test_shards_may_part_a_weight(name: str, tmp_path: Path) -> None:
    expected = made(tmp_path, name).twin
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    placed = {tensor: f"part-{n % 2}.safetensors" for n, tensor in enumerate(sorted(tensors))}
    for shard in set(placed.values()):
        save_file({n: t for n, t in tensors.items() if placed[n] == shard}, tmp_path / shard)
    packing.write_index(tmp_path, placed)
    for tensor, weight in read_tensors(tmp_path, SHAPES, "pt"):
        if isinstance(weight, LinearSpec):
            assert np.array_equal(weight.wide(), expected[tensor])


@EVERY
def test_a_part_of_another_shape_or_type_is_named(name: str, tmp_path: Path) -> None:
    made(tmp_path, name)
    whole = load_file(tmp_path / "model.safetensors")
    unused = ("weight_shape", "input_scale", "bitsandbytes__nf4")
    parts = [n for n in whole if "layers.0.one" in n and not n.endswith(unused)]
    assert len(parts) >= 2
    for one in parts:
        for other in (torch.ones(3, 5, 7), torch.ones(2, 2, dtype=torch.int64)):
            save_file({**whole, one: other}, tmp_path / "model.safetensors")
            with pytest.raises(CheckpointError, match=r"layers\.0\.one"):
                list(read_tensors(tmp_path, SHAPES, "pt"))


@EVERY
def test_a_missing_part_is_named(name: str, tmp_path: Path) -> None:
    made(tmp_path, name)
    whole = load_file(tmp_path / "model.safetensors")
    optional = ("g_idx", "weight_shape", "input_scale", "zero_point")
    optional += () if name == "nf4-nested" else ("bitsandbytes__nf4",)
    for one in (n for n in whole if "layers.0.one" in n and not n.endswith(optional)):
        save_file({n: t for n, t in whole.items() if n != one}, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=r"layers\.0\.one"):
            list(read_tensors(tmp_path, SHAPES, "pt"))


@EVERY
def test_a_file_that_is_cut_off_is_named(name: str, tmp_path: Path) -> None:
    made(tmp_path, name)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a safetensors file"):
        list(read_tensors(tmp_path, SHAPES, "pt"))


def test_unexpected_tensors_are_named(tmp_path: Path) -> None:
    made(tmp_path, "awq")
    shapes = {n: s for n, s in SHAPES.items() if n != "layers.0.two.weight"}
    with pytest.raises(CheckpointError, match=r"unexpected tensor 'layers\.0\.two\.weight'"):
        list(read_tensors(tmp_path, shapes, "pt"))


def test_groups_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    for name, order in (
        ("gptq-4-act-order", "layers.0.one.g_idx"),
        ("compressed-4-zeros-act-order", "layers.0.one.weight_g_idx"),
    ):
        made(tmp_path, name)
        whole = load_file(tmp_path / "model.safetensors")
        save_file({**whole, order: whole[order] + 1}, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=r"g_idx' names groups that do not exist"):
            list(read_tensors(tmp_path, SHAPES, "pt"))


def test_values_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    for name in ("fp8-blocks", "compressed-fp8"):
        made(tmp_path, name)
        whole = load_file(tmp_path / "model.safetensors")
        whole["layers.0.one.weight"].view(torch.uint8)[5, 7] = 0xFF
        save_file(whole, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=r"'layers\.0\.one\.weight' has values"):
            list(read_tensors(tmp_path, SHAPES, "pt"))


@pytest.mark.parametrize(
    "state", [b"{", b"{}", b'{"nested_blocksize": 0, "nested_offset": 0}', b"[]", b"[" * 9999]
)
def test_a_broken_state_of_nested_blocks_is_named(state: bytes, tmp_path: Path) -> None:
    made(tmp_path, "nf4-nested")
    whole = load_file(tmp_path / "model.safetensors")
    name = "layers.0.one.weight.quant_state.bitsandbytes__nf4"
    whole[name] = torch.frombuffer(bytearray(state), dtype=torch.uint8)
    save_file(whole, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="bitsandbytes__nf4' is not of the published form"):
        list(read_tensors(tmp_path, SHAPES, "pt"))


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
AWQ = {"quant_method": "awq", "bits": 4}
INT4 = {"type": "int", "num_bits": 4}
GROUPS = {"config_groups": {"a": {"weights": INT4}}}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "pack-quantized", **GROUPS}


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"quant_method": "quip"}, "quant_method 'quip' is not supported: awq"),
        (GPTQ | {"bits": 3}, "GPTQ with 3 bits is not supported: 4 or 8"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin' is not"),
        (GPTQ | {"group_size": 0}, "group_size must be -1 or above 0, got 0"),
        (AWQ | {"bits": 8}, "AWQ with 8 bits is not supported: 4 are"),
        (AWQ | {"version": "gemv"}, "AWQ of version 'gemv' is not supported: 'gemm' is"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "floats of 'e5m2' are not supported"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "must be two numbers, got"),
        ({"quant_method": "fp8", "weight_block_size": [0, 1]}, "two numbers above 0"),
        (COMPRESSED | {"format": "nvfp4-pack-quantized"}, "format 'nvfp4-pack-quantized' is not"),
        (COMPRESSED | {"sparsity_config": {"format": "sparse-24"}}, "sparsity_config is not"),
        (COMPRESSED | {"transform_config": {"config_groups": {"u": 1}}}, "transform_config is not"),
        (COMPRESSED | {"config_groups": {}}, "lacks the object 'config_groups'"),
        (
            COMPRESSED | {"config_groups": {"a": {"weights": INT4 | {"num_bits": 2}}}},
            "type 'int' with 2 bits are not supported",
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes with 8 bits is not"),
        ("awq", "quantization_config must be an object"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    described: object, message: str, tmp_path: Path
) -> None:
    packing.write_config(tmp_path, {"quantization_config": described})
    with pytest.raises(CheckpointError, match=message) as caught:
        layout_of(tmp_path)
    assert "config.json" in str(caught.value)


def test_mlx_modes_are_refused_by_name(tmp_path: Path) -> None:
    described = {"bits": 4, "group_size": 32, "mode": "mxfp4"}
    packing.write_config(tmp_path, {"quantization": described})
    with pytest.raises(CheckpointError, match="mode 'mxfp4' is not supported"):
        layout_of(tmp_path)


def test_older_checkpoints_have_a_file_of_their_own(tmp_path: Path) -> None:
    for name, other, key in (
        ("gptq-4", "quantize_config.json", "quantization_config"),
        ("awq", "quant_config.json", "quantization_config"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        drawn = made(folder, name)
        described = drawn.config[key]
        if name == "awq":
            described = {"w_bit": 4, "q_group_size": packing.GROUP, "version": "GEMM"}
        packing.write_config(folder, {})
        packing.write_config(folder, described, other)
        weight = dict(read_tensors(folder, SHAPES, "pt"))["layers.0.two.weight"]
        assert np.array_equal(weight.wide(), drawn.twin["layers.0.two.weight"])


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("gptq-8-act-order", "GPTQ, 8 bits in groups of 32, act-order"),
        ("awq", "AWQ, 4 bits in groups of 32"),
        ("compressed-4", "compressed-tensors, 4 bits in groups of 32 (pack-quantized)"),
        ("compressed-fp8", "compressed-tensors, FP8 by channel (float-quantized)"),
        ("fp8-blocks", "FP8 (e4m3) in blocks of 40 by 40"),
        ("fp8-tensor", "FP8 (e4m3)"),
        ("mlx-6", "MLX, 6 bits in groups of 32"),
        ("nf4", "bitsandbytes, NF4"),
    ],
)
def test_a_format_has_a_title(name: str, title: str, tmp_path: Path) -> None:
    made(tmp_path, name)
    layout = layout_of(tmp_path)
    assert layout is not None
    assert layout.title == title
