"""Read a checkpoint folder in the published Hugging Face layout. Knows no model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from izwi.errors import CheckpointError

T = TypeVar("T")

# An index of 100,000 tensors, or a tokenizer's configuration, has less.
_MOST_JSON_BYTES = 64 << 20
# Of one stack, or codebooks of one codec; published ones have at most 126 and 32.
_MOST_LAYERS = 1024
_COUNTED = re.compile(r".*(layers|quantizers|codebooks|code_groups)")
_POSITIVE = re.compile(
    r"compress|(?!.*context_size).*_(heads|size|dim|rates?|ratios|strides?|filters|channels)"
    r"|(kernel|stride|hop)\w*"
)


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        CheckpointError: The file is missing or is not a JSON object; the path is in the message.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    if path.stat().st_size > _MOST_JSON_BYTES:
        raise CheckpointError(f"{path} is larger than {_MOST_JSON_BYTES} bytes")
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text)
        if "\\u" in text:  # an escape may be half a character, which nothing can encode
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error!s:.200}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return value


def parse_config(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Fill a frozen dataclass from a mapping: each field is a key, and must be there.

    Fields that are dataclasses are filled from the mapping of the same key. A field with a default
    may be absent: define one only if published files really omit the key. Other keys are ignored,
    because published files have many. Only integers are converted to floats, and lists to tuples.

    Raises:
        CheckpointError: A key is missing, has a value of the wrong kind, or a number of layers or
            heads that no model has; it is named.
    """
    if not isinstance(values, Mapping):
        raise CheckpointError(f"{where} must be an object, got {values!r}")
    try:
        config = msgspec.convert(values, cls)
    except msgspec.ValidationError as error:
        raise CheckpointError(_explained(str(error), values, where)) from error
    _check_counts(config, where)
    return config


def _check_counts(config: Any, where: str) -> None:
    """Refuse numbers of layers that would be counted for ever, and sizes that divide by zero."""
    if not is_dataclass(config):
        return
    for field in fields(config):
        value, name = getattr(config, field.name), f"{where}.{field.name}"
        for one in value if isinstance(value, tuple) else (value,):
            if not isinstance(one, int) or isinstance(one, bool):
                continue
            if _COUNTED.fullmatch(field.name) and not 0 <= one <= _MOST_LAYERS:
                raise CheckpointError(f"{name} must be between 0 and {_MOST_LAYERS}, got {one}")
            if _POSITIVE.fullmatch(field.name) and one < 1:
                raise CheckpointError(f"{name} must be at least 1, got {one}")
        _check_counts(value, name)


def _explained(message: str, values: Mapping[str, Any], where: str) -> str:
    """Say what msgspec found, with the place in the file and the value there."""
    what, _, place = message.partition(" - at `$")
    place = place.removesuffix("`")
    if missing := re.fullmatch(r"Object missing required field `(.+)`", what):
        return f"{where}{place} lacks the key {missing[1]!r}"
    if expected := re.fullmatch(r"Expected `(.+)`, got `.+`", what):
        return f"{where}{place} must be {expected[1]}, got {_value_at(values, place)!r:.80}"
    return f"{where}{place}: {what}"


def _value_at(values: Any, place: str) -> Any:
    """Return the value at a place such as `.a.b[1]`; at `[...]`, all values of a mapping."""
    known = place.partition("[...]")[0]
    for name, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", known):
        values = values[name] if name else values[int(index)]
    return values
