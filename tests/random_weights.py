"""Make weights from a seed, so that parity tests need no stored checkpoint. Knows no model.

Each tensor is drawn by its own generator, keyed by the seed and its name, so it does not depend
on which other tensors exist or in which order they are made. The scales keep random networks
alive: activations neither vanish nor saturate over some tens of layers.

Needs numpy only (and safetensors to write), so the scripts in tests/golden can load this file
in an environment that holds the reference packages and nothing of ours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]


def random_tensor(name: str, shape: tuple[int, ...], seed: int, gain: float = 1.0) -> Float32:
    """Draw one tensor.

    Args:
        name: Checkpoint name; it fixes the draw and, by its words, the scale.
        shape: Any shape, () included.
        seed: Another seed gives other values everywhere.
        gain: Factor on matrices and convolutions, whose deviation is gain / sqrt(fan in).

    Returns:
        float32 array of `shape`.
    """
    rng = np.random.Generator(np.random.PCG64([seed, crc32(name.encode())]))
    if name.endswith("initialized"):  # Mimi's flag that its codebooks are in use
        return np.ones(shape, np.float32)
    if name.endswith(("cluster_usage", "running_var")):  # divisors
        return 1.0 + rng.random(shape, dtype=np.float32)
    noise = rng.standard_normal(shape, dtype=np.float32)
    scale, offset = _scale(name, shape, gain)
    return np.asarray(np.float32(offset) + np.float32(scale) * noise, np.float32)


def random_weights(
    shapes: Mapping[str, tuple[int, ...]], seed: int, gains: Mapping[str, float] | None = None
) -> dict[str, Float32]:
    """Draw every tensor of a checkpoint.

    Args:
        shapes: Shape by name.
        seed: See `random_tensor`.
        gains: Gain by name prefix; the first prefix that fits counts, 1 where none does.
    """
    return {
        name: random_tensor(name, shape, seed, _gain(name, gains)) for name, shape in shapes.items()
    }


def write_checkpoint(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    seed: int,
    *,
    gains: Mapping[str, float] | None = None,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Save `random_weights` as folder/model.safetensors and, if given, folder/config.json."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(random_weights(shapes, seed, gains), folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def _gain(name: str, gains: Mapping[str, float] | None) -> float:
    return next((gain for prefix, gain in (gains or {}).items() if name.startswith(prefix)), 1.0)


def _scale(name: str, shape: tuple[int, ...], gain: float) -> tuple[float, float]:
    """Standard deviation and mean."""
    if name.endswith((".alpha", ".beta")):  # exponents of a snake activation
        return 0.2, 0.0
    if "layer_scale" in name or name.endswith(".gamma"):  # large enough to matter
        return 0.1, 0.3
    if name.endswith(("embed_sum", "embedding_sum")):  # codebook entries before division by usage
        return 1.0, 0.0
    if len(shape) < 2:
        is_norm = name.endswith("weight") and ("norm" in name or ".ln_" in name)
        return (0.1, 1.0) if is_norm else (0.05, 0.0)
    if "embed" in name:  # rows are looked up, not multiplied: fan in does not apply
        return 0.5, 0.0
    return gain / math.sqrt(math.prod(shape[1:])), 0.0
