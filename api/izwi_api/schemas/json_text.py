"""Checks of received JSON that its parser does not make."""

from __future__ import annotations

import json
from collections.abc import Mapping

from izwi.errors import InvalidRequest

# Deep enough for any schema, and far from the interpreter's limit of recursion.
MAX_DEPTH = 256


def refuse_constant(name: str) -> float:
    """Refuse NaN and infinities, as `parse_constant` of `json.loads`. Raises ValueError."""
    raise ValueError(f"{name} is not JSON")


def check_depth(values: Mapping[str, object], most: int) -> None:
    """Check that arrays and objects are nested at most `most` deep, the outermost one included.

    Raises:
        InvalidRequest: They are nested more deeply.
    """
    level: list[object] = [values]
    for _ in range(most + 1):
        containers = [value for value in level if isinstance(value, dict | list)]
        if not containers:
            return
        level = [
            item
            for value in containers
            for item in (value.values() if isinstance(value, dict) else value)
        ]
    raise InvalidRequest(f"the body is nested too deeply: at most {most} levels are allowed")


def check_unicode(values: Mapping[str, object]) -> None:
    """Check that all text can be encoded: an escape may name half a surrogate pair.

    Raises:
        InvalidRequest: Some text has an unpaired surrogate, or is nested too deeply to be checked.
    """
    for key, value in values.items():
        try:
            json.dumps((key, value), ensure_ascii=False).encode()
        except RecursionError as error:
            raise InvalidRequest("the body is nested too deeply") from error
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"{key!r} has an unpaired surrogate ({error.object[error.start]!r}), which no text "
                "can contain",
                param=key if key.isprintable() else None,
            ) from error
