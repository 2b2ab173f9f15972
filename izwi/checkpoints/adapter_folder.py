"""Adapters in PEFT's layout: `adapter_config.json` and `adapter_model.safetensors`.

Source: peft 0.17, `LoraConfig` and `LoraLayer`. What would change the result and is not known here
is refused by name.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from izwi.checkpoints.folder import read_json
from izwi.checkpoints.stored_tensor import StoredTensor, stored_tensors
from izwi.errors import CheckpointError
from izwi.model.adapters import MatrixUpdate
from izwi.request.adapter import AdapterRef

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"
# As many as the inputs and outputs of large models have; published adapters have at most 512.
_MOST_RANK = 4096
# Initial weights that are taken out of the base model, which then is another one.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq")
# Keys of the configuration, each with what it must be for the sum of two products to be exact.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "bias": ("none", None),
    "lora_bias": (False, None),
    "modules_to_save": (None, []),
    "trainable_token_indices": (None, [], {}),
    "layer_replication": (None, []),
    "target_parameters": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "fan_in_fan_out": (False, None),
    "use_qalora": (False, None),
    "alora_invocation_tokens": (None, []),
    "arrow_config": (None,),
    "use_bdlora": (None, False),
}


@dataclass(frozen=True, slots=True)
class _Config:
    rank: int
    scale: float


def is_adapter(folder: Path) -> bool:
    """Whether a folder is an adapter's."""
    return (folder / CONFIG).is_file()


def adapter_ref(name: str, folder: Path) -> AdapterRef:
    """Return what names an adapter and its files' contents. Raises CheckpointError."""
    digest = hashlib.sha256()
    try:
        for file in (CONFIG, WEIGHTS):
            with (folder / file).open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
    except OSError as error:
        raise CheckpointError(f"{folder} is not an adapter's folder: {error}") from error
    return AdapterRef(name, str(folder.absolute()), digest.hexdigest()[:32])


def read_adapter(folder: Path, adaptable: Mapping[str, tuple[int, ...]]) -> dict[str, MatrixUpdate]:
    """Read an adapter.

    Args:
        folder: Its folder.
        adaptable: Shapes (out, in) of the weights of its model that it may change, by name.

    Returns:
        The updates by name of the weight.

    Raises:
        CheckpointError: The adapter is of another kind, has unknown modules, or tensors of other
            shapes; the message names what.
    """
    found = check_adapter(folder, adaptable)
    config = _read_config(folder)
    return {
        name: MatrixUpdate(_floats(down), _floats(up, config.scale))
        for name, (down, up) in found.items()
    }


def check_adapter(
    folder: Path, adaptable: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[StoredTensor, StoredTensor]]:
    """Check an adapter without reading its numbers; raises as `read_adapter`.

    Returns:
        The tensors (rank, in) and (out, rank) by name of the weight.
    """
    config = _read_config(folder)
    path = folder / WEIGHTS
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: adapters are read from safetensors only")
    tensors = {tensor.name: tensor for tensor in stored_tensors(path)}
    modules = sorted({_module_of(path, name) for name in tensors})
    if not modules:
        raise CheckpointError(f"{path} has no tensors")
    return {f"{m}.weight": _pair(path, m, tensors, config, adaptable) for m in modules}


def _read_config(folder: Path) -> _Config:
    path = folder / CONFIG
    values = read_json(path)
    kind = values.get("peft_type")
    if kind != "LORA":
        raise CheckpointError(f"{path}: peft_type {kind!r:.80} is not supported: 'LORA' is")
    for key, allowed in _UNSUPPORTED.items():
        if values.get(key) not in allowed and key in values:
            raise CheckpointError(f"{path}: {key} = {values[key]!r:.80} is not supported")
    made = values.get("init_lora_weights", True)
    if isinstance(made, str) and made.lower().startswith(_CHANGES_BASE):
        raise CheckpointError(
            f"{path}: init_lora_weights = {made!r:.80} is not supported, because it changes the "
            "base model; convert the adapter to a plain one"
        )
    rank, alpha = values.get("r"), values.get("lora_alpha")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= _MOST_RANK:
        raise CheckpointError(
            f"{path}: r must be a positive integer, at most {_MOST_RANK}, got {rank!r:.80}"
        )
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not _is_float32(alpha):
        raise CheckpointError(f"{path}: lora_alpha must be a number, got {alpha!r:.80}")
    return _Config(rank, alpha / (math.sqrt(rank) if values.get("use_rslora") else rank))


def _is_float32(value: float) -> bool:
    """Whether a number is finite in float32; an integer may be too large for any float."""
    return abs(value) <= float(np.finfo(np.float32).max)  # false for NaN, too


def _module_of(path: Path, name: str) -> str:
    for suffix in (_DOWN, _UP):
        if name.startswith(_PREFIX) and name.endswith(suffix):
            return name[len(_PREFIX) : -len(suffix)]
    raise CheckpointError(
        f"{path}: tensor {name!r} is not supported: only {_PREFIX}MODULE{_DOWN} and {_UP} are"
    )


def _pair(
    path: Path,
    module: str,
    tensors: Mapping[str, StoredTensor],
    config: _Config,
    adaptable: Mapping[str, tuple[int, ...]],
) -> tuple[StoredTensor, StoredTensor]:
    shape = adaptable.get(f"{module}.weight")
    if shape is None:
        known = sorted({name.split(".")[-2] for name in adaptable})
        raise CheckpointError(
            f"{path}: module {module!r} cannot be adapted in this model, only "
            f"{', '.join(known)} of its decoder layers can"
        )
    pair = []
    for suffix, expected in ((_DOWN, (config.rank, shape[1])), (_UP, (shape[0], config.rank))):
        tensor = tensors.get(f"{_PREFIX}{module}{suffix}")
        if tensor is None:
            raise CheckpointError(f"{path}: tensor {_PREFIX + module + suffix!r} is missing")
        tensor.require(expected, "F32", "F16", "BF16")
        pair.append(tensor)
    return pair[0], pair[1]


def _floats(tensor: StoredTensor, scale: float = 1.0) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):  # refused below
        values = tensor.array().astype(np.float32) * np.float32(scale)
    if not np.isfinite(values).all():
        raise CheckpointError(
            f"{tensor.path}: tensor {tensor.name!r} has values that are no numbers"
        )
    return values
