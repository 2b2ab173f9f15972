"""Choose the server of a command: the one given, else one running on this machine, else none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import httpx

from izwi.model.capability import Capability
from izwi_api.client.streams import tasks_of
from izwi_api.console import messages
from izwi_api.settings import DEFAULT_MODELS

if TYPE_CHECKING:
    from izwi_api.client import AsyncClient, RuntimeOptions

# Where `izwi serve` listens by default.
DEFAULT_URL = "http://127.0.0.1:8000"
NONE = "none"  # instead of an address: use this process
# A healthy local server responds faster than this.
_PATIENCE_S = 0.5
_UNAUTHORIZED = 401
# Another program may respond with anything.
_MAX_ANSWER_BYTES = 1 << 20

ListedModels = list[dict[str, Any]]


def running_server(
    named: str | None,
    api_key: str | None,
    *,
    local_only: bool = False,
    serves: Mapping[Capability, str | None] | None = None,
) -> str | None:
    """Return the address of the server to use, or None for this process.

    Args:
        named: The given address, which is not checked, or NONE.
        api_key: The key for the server.
        local_only: The command needs this process, unless a server is given.
        serves: What a local server must serve to be used: capabilities, each with the
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
    if console.is_terminal:  # not in pipes and logs
        console.print(
            f"using the server at {DEFAULT_URL}; --server none runs in this process", style="dim"
        )
    return DEFAULT_URL


def speech_client(
    named: str | None, api_key: str | None, models: list[str] | None, runtime: RuntimeOptions
) -> AsyncClient:
    """Return a client of a server that speaks and transcribes, or of this process.

    Args:
        named: As for `running_server`.
        api_key: The key for the server.
        models: Models of this process, which exclude a server that was not named; None: embedded
            ones that speak and transcribe.
        runtime: The options of this process, which exclude such a server, too.
    """
    from izwi_api.client import AsyncClient, RuntimeOptions

    server = running_server(
        named,
        api_key,
        local_only=bool(models) or runtime != RuntimeOptions(),
        serves={Capability.SPEAK: None, Capability.TRANSCRIBE: None},
    )
    used = models or DEFAULT_MODELS[:2]
    return AsyncClient(server, api_key=api_key, models=used, runtime=runtime)


def _entries(api_key: str | None) -> ListedModels | None:
    """Return the capabilities of a server of ours that is ready; None if there is none."""
    # a proxy's "localhost" would be another machine
    with httpx.Client(timeout=_PATIENCE_S, trust_env=False, follow_redirects=True) as http:
        try:
            _answer(http, "/readyz", None)  # raises for a 503, while it starts or drains
            try:
                content = _answer(http, "/v1/models", None)
            except httpx.HTTPStatusError as error:
                if error.response.status_code != _UNAUTHORIZED or api_key is None:
                    raise
                # sent only to a server that requires it
                content = _answer(http, "/v1/models", api_key)
            found = json.loads(content)["data"]
            entries: ListedModels = [entry for entry in found if entry["owned_by"] == "izwi"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None
    return entries or None


def _answer(http: httpx.Client, path: str, api_key: str | None) -> bytes:
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    content = b""
    with http.stream("GET", DEFAULT_URL + path, headers=headers) as response:
        response.raise_for_status()
        for piece in response.iter_bytes():
            content += piece
            if len(content) > _MAX_ANSWER_BYTES:
                break
    return content


def _serves(entries: ListedModels, wanted: Mapping[Capability, str | None]) -> bool:
    return all(
        any(task.value in tasks_of(e) and model in (None, e.get("id")) for e in entries)
        for task, model in wanted.items()
    )
