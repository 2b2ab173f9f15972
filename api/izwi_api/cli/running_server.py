"""Choose the server of a command: the one named, else one running on this machine, else none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError

from izwi.request import Task
from izwi_api.cli.remote import Server
from izwi_api.console import messages

# Where `izwi serve` listens if it is told nothing else.
DEFAULT_URL = "http://127.0.0.1:8000"
NONE = "none"  # instead of an address: this process does it
# A healthy local server answers faster; one that does not is not used.
_PATIENCE_S = 0.5
_UNAUTHORIZED = 401

Entries = list[dict[str, Any]]


def running_server(
    named: str | None,
    api_key: str | None,
    *,
    local_only: bool = False,
    serves: Mapping[Task, str | None] | None = None,
) -> str | None:
    """Return the address of the server that is to do the work, or None for this process.

    Args:
        named: The address that was given, which is taken as it is, or NONE.
        api_key: What the server asks for.
        local_only: What is wished for only this process can do, if no server is named.
        serves: What a server found on this machine must serve to be used: tasks, each with the
            model's name if that matters.
    """
    if named == NONE:
        return None
    if named or local_only:
        return named
    found = _entries(api_key)
    if found is None or not _serves(found, serves or {}):
        return None
    console = messages()
    if console.is_terminal:  # a pipe or a log need not be told each time
        console.print(
            f"the server at {DEFAULT_URL} does it; --server none: this process", style="dim"
        )
    return DEFAULT_URL


def _entries(api_key: str | None) -> Entries | None:
    """What a server of ours that runs here and takes work serves; None if there is none."""
    try:
        _answer("/readyz", None)  # 503, which raises, while it starts or drains
        try:
            content = _answer("/v1/models", None)
        except HTTPError as error:
            if error.code != _UNAUTHORIZED or api_key is None:
                raise
            content = _answer("/v1/models", api_key)  # sent only to a server that requires it
        entries: Entries = [e for e in json.loads(content)["data"] if e["owned_by"] == "izwi"]
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return None
    return entries or None


def _answer(path: str, api_key: str | None) -> bytes:
    return Server(DEFAULT_URL, api_key).ask_once(path, _PATIENCE_S)


def _serves(entries: Entries, wanted: Mapping[Task, str | None]) -> bool:
    return all(
        any(e.get("task") == task.value and model in (None, e.get("id")) for e in entries)
        for task, model in wanted.items()
    )
