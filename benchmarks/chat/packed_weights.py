"""What do weights that stay packed save on a CPU, and what do they cost in time?

A Qwen3 chat checkpoint of the size of 0.6B (with a small vocabulary) in GPTQ's layout, 4 bits in
groups of 128, with random codes. It is loaded twice: packed as it is, and widened. Times are of the
processor, with one thread, so that other programs matter little.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors.numpy import save_file

from benchmarks.measure import write_result
from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.folder import parse_config
from izwi_models.qwen3_chat.config import ChatConfig, tensor_shapes
from izwi_models.qwen3_chat.model import load_model

CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 32_000,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "attention_bias": False,
    "tie_word_embeddings": True,
}
_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
T = TypeVar("T")
_GROUP, _ROWS, _STEPS = 128, (1, 4, 16), 6


def write_checkpoint(folder: Path) -> Path:
    """Write random codes and scales of every layer, and the rest in float16."""
    rng = np.random.default_rng(0)
    tensors: dict[str, Any] = {}
    for name, shape in tensor_shapes(parse_config(ChatConfig, CONFIG, "config")).items():
        if "layers" not in name or len(shape) != 2:
            noise = 0.02 * rng.standard_normal(shape)
            tensors[name] = (noise + (len(shape) == 1)).astype(np.float16)
            continue
        (outputs, inputs), layer = shape, name.removesuffix(".weight")
        codes = rng.integers(-(2**31), 2**31, (inputs // 8, outputs), np.int32)
        groups = inputs // _GROUP
        tensors[f"{layer}.qweight"] = codes
        tensors[f"{layer}.qzeros"] = np.full((groups, outputs // 8), 0x77777777, np.int32)
        tensors[f"{layer}.scales"] = (0.004 * rng.random((groups, outputs))).astype(np.float16)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": _GPTQ}))
    return folder


def private_mb() -> float:
    """Return the memory of this process that is no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1e3


def watched(load: Callable[[], T]) -> tuple[T, dict[str, float]]:
    """Return what loading gives, and what it takes of memory and of the processor."""
    before, most, is_loaded = private_mb(), [0.0], threading.Event()

    def watch() -> None:
        while not is_loaded.wait(0.005):
            most[0] = max(most[0], private_mb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.process_time()
    model = load()
    load_s = time.process_time() - began
    is_loaded.set()
    watcher.join()
    return model, {
        "peak_while_loading_mb": round(most[0] - before, 1),
        "after_loading_mb": round(private_mb() - before, 1),
        "load_processor_s": round(load_s, 2),
    }


def measured(folder: Path, weights: str) -> dict[str, Any]:
    """Load the checkpoint, watching the memory, and time steps."""
    backend = torch_backend("cpu", "float32", weights)
    model, found = watched(lambda: load_model(folder, backend))
    torch.set_num_threads(1)
    num_bytes = sum(weight.nbytes for weight in model._weights.values())
    return {
        "weights": weights,
        "weight_mb": round(num_bytes / 1e6, 1),
        **found,
        "step_processor_ms": {rows: round(step_ms(model, backend, rows), 1) for rows in _ROWS},
    }


@torch.inference_mode()
def step_ms(model: Any, backend: Any, rows: int) -> float:
    """Return the least processor time of a step of some rows, at their first position."""
    ids, times_s = torch.arange(rows)[:, None], []
    for _ in range(_STEPS):
        began = time.process_time()
        hidden = model.run(model.embed_inputs(ids)[:, None], backend.ops.dense_context(rows, 1))
        model.draw(hidden[:, 0], lambda logits, _: logits.argmax(-1))
        times_s.append(time.process_time() - began)
    return 1e3 * min(times_s)


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = write_checkpoint(Path(place))
        rows = [measured(folder, weights) for weights in ("auto", "float")]
        size_mb = round((folder / "model.safetensors").stat().st_size / 1e6, 1)
    write_result("packed_weights", rows, file_mb=size_mb)


if __name__ == "__main__":
    main()
