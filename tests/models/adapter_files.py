"""Adapters in PEFT's layout, drawn from a seed, and checkpoints with them merged by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from izwi.arrays import Float32

CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 6.0,
    "bias": "none",
    "modules_to_save": None,
    "use_dora": False,
    "use_rslora": False,
    "target_modules": ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"],
}


def draw_adapter(
    shapes: dict[str, tuple[int, ...]], seed: int, rank: int = 4
) -> dict[str, Float32]:
    """Draw the tensors of an adapter for weights (out, in), by their names in the checkpoint."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, Float32] = {}
    for name, (outputs, inputs) in shapes.items():
        module = f"base_model.model.{name.removesuffix('.weight')}"
        down = rng.normal(0, inputs**-0.5, (rank, inputs))
        tensors[f"{module}.lora_A.weight"] = down.astype(np.float32)
        tensors[f"{module}.lora_B.weight"] = rng.normal(0, 0.4, (outputs, rank)).astype(np.float32)
    return tensors


def write_adapter(folder: Path, tensors: dict[str, Float32], **config: Any) -> Path:
    """Write an adapter's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | config), encoding="utf-8")
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def merge(base: Path, merged: Path, tensors: dict[str, Float32], scale: float) -> Path:
    """Write a checkpoint whose weights have an adapter added: W + scale * B A."""
    shutil.copytree(base, merged)
    weights = load_file(base / "model.safetensors")
    for name, up in tensors.items():
        if name.endswith(".lora_B.weight"):
            down = tensors[name.replace("lora_B", "lora_A")]
            weight = name.removeprefix("base_model.model.").replace(".lora_B", "")
            weights[weight] = weights[weight] + np.float32(scale) * (up @ down)
    save_file(weights, merged / "model.safetensors", metadata={"format": "pt"})
    return merged
