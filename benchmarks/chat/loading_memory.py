"""How much memory does loading take beside the loaded weights, by format of the checkpoint?

    python -m benchmarks.chat.loading_memory

A Qwen3 chat checkpoint with random numbers that has 318 MB in bfloat16, in each format. Each is
loaded on the CPU in a process of its own, which watches its memory.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from benchmarks.chat.packed_weights import CONFIG, watched
from benchmarks.measure import write_result
from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.folder import parse_config
from izwi_models.qwen3_chat.config import ChatConfig, tensor_shapes
from izwi_models.qwen3_chat.model import load_model

_SHORT = CONFIG | {"num_hidden_layers": 8}
_GROUP, _BLOCK = 128, 128
# A block of 256 numbers in Q4_K: two scales, twelve bytes of finer ones, and codes of 4 bits.
_Q4_K_BYTES, _Q4_K_VALUES = 144, 256

Tensors = dict[str, torch.Tensor]


def words(rows: int, columns: int) -> torch.Tensor:
    """Return random bits as (rows, columns) int32."""
    low, high = -(2**31), 2**31
    return torch.randint(low, high, (rows, columns), dtype=torch.int64).to(torch.int32)


def gptq(layer: str, outputs: int, inputs: int) -> Tensors:
    """Codes of 4 bits in GPTQ's layout."""
    groups = inputs // _GROUP
    return {
        f"{layer}.qweight": words(inputs // 8, outputs),
        f"{layer}.qzeros": torch.full((groups, outputs // 8), 0x77777777, dtype=torch.int32),
        f"{layer}.scales": (0.004 * torch.rand(groups, outputs)).half(),
    }


def awq(layer: str, outputs: int, inputs: int) -> Tensors:
    """Codes of 4 bits in AWQ's layout."""
    groups = inputs // _GROUP
    return {
        f"{layer}.qweight": words(inputs, outputs // 8),
        f"{layer}.qzeros": words(groups, outputs // 8),
        f"{layer}.scales": (0.004 * torch.rand(groups, outputs)).half(),
    }


def fp8(layer: str, outputs: int, inputs: int) -> Tensors:
    """Floats of 8 bits, with a scale for each block."""
    blocks = outputs // _BLOCK, inputs // _BLOCK
    return {
        f"{layer}.weight": torch.randn(outputs, inputs).to(torch.float8_e4m3fn),
        f"{layer}.weight_scale_inv": 0.02 * torch.rand(blocks),
    }


def plain(layer: str, outputs: int, inputs: int) -> Tensors:
    """Numbers in bfloat16."""
    return {f"{layer}.weight": (0.02 * torch.randn(outputs, inputs)).bfloat16()}


_PACKERS: dict[str, tuple[Callable[[str, int, int], Tensors], dict[str, Any]]] = {
    "bfloat16": (plain, {}),
    "GPTQ, 4 bits": (
        gptq,
        {"quant_method": "gptq", "bits": 4, "group_size": _GROUP, "sym": True, "desc_act": False},
    ),
    "AWQ, 4 bits": (
        awq,
        {
            "quant_method": "awq",
            "bits": 4,
            "group_size": _GROUP,
            "version": "gemm",
            "zero_point": True,
        },
    ),
    "FP8 in blocks": (
        fp8,
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [_BLOCK, _BLOCK]},
    ),
}
_GGUF = "GGUF Q4_K"
FORMATS = (*_PACKERS, _GGUF)


def shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the tensors of the checkpoint."""
    yield from tensor_shapes(parse_config(ChatConfig, _SHORT, "config")).items()


def write_checkpoint(folder: Path, name: str) -> Path:
    """Write the checkpoint in a format; returns the path of its file."""
    torch.manual_seed(0)
    if name == _GGUF:
        return write_gguf(folder)
    pack, described = _PACKERS[name]
    tensors: Tensors = {}
    for tensor, shape in shapes():
        if "layers" in tensor and len(shape) == 2:
            tensors |= pack(tensor.removesuffix(".weight"), *shape)
        else:
            noise = 0.02 * torch.randn(shape) + (len(shape) == 1)
            tensors[tensor] = noise.bfloat16()
    path = folder / "model.safetensors"
    save_file(tensors, path)
    config = _SHORT | ({"quantization_config": described} if described else {})
    (folder / "config.json").write_text(json.dumps(config))
    return path


def write_gguf(folder: Path) -> Path:
    """Write the tensors as a GGUF file, with a configuration beside it."""
    import gguf

    from izwi.checkpoints.gguf_folder import INDEX

    path, rng = folder / "model.gguf", np.random.default_rng(0)
    names: dict[str, str] = {}
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, _SHORT["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, "qwen3")
    for tensor, shape in shapes():
        stored = f"{table.get_name(tensor.removesuffix('.weight'))}.weight"
        names[tensor] = stored
        if len(shape) == 1:
            writer.add_tensor(stored, np.ones(shape, np.float32))
            continue
        blocks = rng.integers(0, 256, (shape[0], shape[1] // _Q4_K_VALUES, _Q4_K_BYTES), np.uint8)
        blocks[..., :4] = np.array([0.002, 0.001], np.float16).view(np.uint8)
        data = blocks.reshape(shape[0], -1)
        writer.add_tensor(stored, data, raw_dtype=gguf.GGMLQuantizationType.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (folder / "config.json").write_text(json.dumps(_SHORT))
    (folder / INDEX).write_text(json.dumps({"file": str(path), "weight_map": names}))
    return path


def measured(folder: Path, name: str) -> dict[str, Any]:
    """Load the checkpoint in this process, watching its memory."""
    backend = torch_backend("cpu", "float32")
    model, found = watched(lambda: load_model(folder, backend))
    num_bytes = sum(weight.nbytes for weight in model._weights.values())
    return {"format": name, "weight_mb": round(num_bytes / 1e6, 1)} | found


def main() -> None:
    """Measure each format."""
    rows = []
    for name in FORMATS:
        with tempfile.TemporaryDirectory() as place:
            file = write_checkpoint(Path(place), name)
            context = multiprocessing.get_context("spawn")
            with context.Pool(1) as pool:
                row = pool.apply(measured, (Path(place), name))
            row["file_mb"] = round(file.stat().st_size / 1e6, 1)
        beside = row["peak_while_loading_mb"] - row["weight_mb"]
        rows.append(row | {"beside_weights_mb": round(beside, 1)})
    write_result("loading_memory", rows)


if __name__ == "__main__":
    main()
