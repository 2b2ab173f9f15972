"""Read a checkpoint folder in the published Hugging Face layout. Knows no model."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open

from izwi.errors import CheckpointError

T = TypeVar("T")


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        CheckpointError: The file is missing or is not a JSON object; the path is in the message.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return value


def tensor_names(folder: Path) -> set[str]:
    """Names in a folder's weight files, or in one file; empty where they cannot be read.

    What is wrong with them is told by loading.
    """
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    single = folder if folder.is_file() else single
    try:
        if single.is_file():
            with safe_open(single, framework="numpy") as handle:
                return set(handle.keys())
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    except (SafetensorError, OSError, ValueError, KeyError):
        return set()


def parse_config(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Fill a frozen dataclass from a mapping: each field is a key, and must be there.

    Fields that are dataclasses are filled from the mapping of the same key. A field with a
    default may be absent: give one only where the published files really leave the key out.
    Keys that no field names are left alone, since published files carry many.

    Raises:
        CheckpointError: A key is missing or has a value of the wrong kind; it is named.
    """
    if not isinstance(values, Mapping):
        raise CheckpointError(f"{where} must be an object, got {values!r}")
    hints = typing.get_type_hints(cls)
    filled: dict[str, Any] = {}
    for field in fields(cls):  # type: ignore[arg-type]
        if field.name not in values:
            if field.default is MISSING and field.default_factory is MISSING:
                raise CheckpointError(f"{where} lacks the key {field.name!r}")
            continue
        filled[field.name] = _convert(
            hints[field.name], values[field.name], f"{where}.{field.name}"
        )
    return cls(**filled)


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _convert(next(a for a in args if a is not type(None)), value, where)
    if hasattr(hint, "__dataclass_fields__"):
        return parse_config(hint, value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_convert(args[0], item, where) for item in value)
    if origin in (dict, Mapping) or origin is typing.get_origin(Mapping[str, int]):
        if isinstance(value, Mapping):
            return {key: _convert(args[1], item, where) for key, item in value.items()}
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif hint is Any or (isinstance(value, hint) and not (hint is int and value is True)):
        return value
    raise CheckpointError(f"{where} must be {getattr(hint, '__name__', hint)}, got {value!r}")
