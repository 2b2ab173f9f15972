"""Which format a checkpoint's folder is in, from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from izwi.checkpoints.folder import read_json
from izwi.checkpoints.formats.awq import Awq
from izwi.checkpoints.formats.bitsandbytes import Bitsandbytes
from izwi.checkpoints.formats.compressed_tensors import CompressedTensors
from izwi.checkpoints.formats.fp8 import Fp8
from izwi.checkpoints.formats.gptq import Gptq
from izwi.checkpoints.formats.layout import Layout
from izwi.checkpoints.formats.mlx_folder import MlxFolder
from izwi.errors import CheckpointError

_BY_METHOD: dict[str, Callable[[Mapping[str, Any], str], Layout]] = {
    "awq": Awq.from_settings,
    "bitsandbytes": Bitsandbytes.from_settings,
    "compressed-tensors": CompressedTensors.from_settings,
    "fp8": Fp8.from_settings,
    "gptq": Gptq.from_settings,
}
# Files of older versions of AutoGPTQ and AutoAWQ, whose config.json says nothing.
_OLDER = {"quantize_config.json": "gptq", "quant_config.json": "awq"}


def layout_of(folder: Path) -> Layout | None:
    """Return how a checkpoint's weights are packed; None if they are plain numbers.

    Args:
        folder: A checkpoint's folder, or one file of weights, which is never packed.

    Raises:
        CheckpointError: The format is unknown or not supported; it is named.
    """
    path = folder / "config.json"
    values = read_json(path) if path.is_file() else {}
    described = values.get("quantization_config")
    where = f"{path}: quantization_config"
    if isinstance(mlx := values.get("quantization"), Mapping):
        return MlxFolder.from_settings(mlx, f"{path}: quantization")
    if described is None:
        for name, method in _OLDER.items():
            if (folder / name).is_file():
                return _BY_METHOD[method](read_json(folder / name), str(folder / name))
        return None
    if not isinstance(described, Mapping):
        raise CheckpointError(f"{where} must be an object, got {described!r:.80}")
    method = str(described.get("quant_method"))
    if method not in _BY_METHOD:
        raise CheckpointError(
            f"{where}: quant_method {method!r} is not supported: {', '.join(_BY_METHOD)} are"
        )
    return _BY_METHOD[method](described, where)
