"""Formats of JSON schemas that describe a value to people and do not restrict its text. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Those of OpenAPI, of pydantic's types (Path, SecretStr, bytes, Pattern), and JSON Schema's regex.
DESCRIBING_FORMATS = frozenset(
    (
        *("byte", "binary", "password", "int32", "int64", "float", "double", "decimal"),
        *("path", "file-path", "directory-path", "regex", "base64url", "json-string"),
    )
)
_ONE = frozenset(
    (
        *("items", "additionalItems", "additionalProperties", "unevaluatedItems"),
        *("unevaluatedProperties", "contains", "propertyNames", "not", "if", "then", "else"),
        "contentSchema",
    )
)
_SEVERAL = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))


def without_describing_formats(schema: Any) -> Any:
    """Return a schema without those formats, at any depth; values and names stay as they are.

    Raises:
        RecursionError: It is nested too deeply.
    """
    if not isinstance(schema, dict):
        return schema
    made = {}
    for key, value in schema.items():
        if key == "format" and isinstance(value, str) and value in DESCRIBING_FORMATS:
            continue
        made[key] = _inside(key, value, without_describing_formats)
    return made


def _inside(key: str, value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a keyword's value with its schemas changed."""
    if key in _NAMED and isinstance(value, dict):
        return {name: change(schema) for name, schema in value.items()}
    if key in _SEVERAL and isinstance(value, list):
        return [change(schema) for schema in value]
    return change(value) if key in _ONE else value
