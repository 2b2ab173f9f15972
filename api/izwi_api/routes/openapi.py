"""OpenAPI entries that cannot be inferred from the routes: forms, non-JSON bodies, errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel


class ErrorDetail(BaseModel):
    """The details of an error; all four keys are always present."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """The body of every error response."""

    error: ErrorDetail


REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "The request cannot be fulfilled as sent", "model": ErrorAnswer},
    "5XX": {"description": "The server cannot fulfil the request now", "model": ErrorAnswer},
}


# A header of speech and transcriptions.
IGNORED = "x-izwi-ignored"
_IGNORED_SCHEMA = {
    "description": "Fields of the request that this model cannot follow, separated by a comma",
    "schema": {"type": "string"},
}


def answers(*content_types: str, names_ignored: bool = False) -> dict[int | str, dict[str, Any]]:
    """Return `responses` for a route with these content types on success.

    Args:
        content_types: The types.
        names_ignored: The response may have the header `IGNORED`.
    """
    content: dict[str, dict[str, Any]] = {name: {} for name in content_types}
    headers = {"headers": {IGNORED: _IGNORED_SCHEMA}} if names_ignored else {}
    return {200: {"description": "As asked", "content": content, **headers}}


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """Return the header that names ignored fields; none without them."""
    return {IGNORED: ", ".join(names)} if names else {}


def json_body(body: type[BaseModel], hints: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return `openapi_extra` for a JSON body.

    Args:
        body: Its model; null selects the default of an optional key.
        hints: Additions to some keys, for limits that are settings and alternative spellings.
    """
    schema = body.model_json_schema()
    schema = _inlined(schema, schema.pop("$defs", {}))
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        field |= hints.get(name, {})
        if name not in required and {"type": "null"} not in field.get("anyOf", ()):
            reported = {key: field.pop(key) for key in ("title", "default") if key in field}
            schema["properties"][name] = reported | {"anyOf": [field, {"type": "null"}]}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def form_body(form: type[BaseModel], *files: str, optional: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return `openapi_extra` for a multipart form.

    Args:
        form: Its model; a field that may be None can be omitted, because forms have no null.
        files: Names of its files, all required.
        optional: Names of files that can be omitted.
    """
    schema = form.model_json_schema()
    known = schema.get("$defs", {})
    properties = {
        name: _limited(_without_null(field, known)) for name, field in schema["properties"].items()
    }
    properties |= {name: {"type": "string", "format": "binary"} for name in (*files, *optional)}
    body = {
        "type": "object",
        "title": form.__name__,
        "properties": properties,
        "required": [*schema.get("required", ()), *files],
        "additionalProperties": False,
    }
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": body}}}}


def _inlined(value: Any, known: Mapping[str, Any]) -> Any:
    """Inline definitions, because references resolve relative to the whole document."""
    if isinstance(value, dict):
        if "$ref" in value:
            return _inlined(known[value["$ref"].rpartition("/")[2]], known)
        return {key: _inlined(item, known) for key, item in value.items()}
    return [_inlined(item, known) for item in value] if isinstance(value, list) else value


def _without_null(field: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    kinds = [
        known[kind["$ref"].rpartition("/")[2]] if "$ref" in kind else kind
        for kind in field.get("anyOf", ())
        if kind.get("type") != "null"
    ]
    if not kinds:
        return field
    rest = {key: value for key, value in field.items() if key not in ("anyOf", "default")}
    return rest | (kinds[0] if len(kinds) == 1 else {"anyOf": kinds})


def _limited(field: dict[str, Any]) -> dict[str, Any]:
    """Write limits as JSON Schema does; pydantic does not for numbers parsed from text."""
    names = {"ge": "minimum", "le": "maximum"}
    return {names.get(key, key): value for key, value in field.items()}
