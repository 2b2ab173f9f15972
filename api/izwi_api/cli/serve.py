"""`izwi serve`: the HTTP server."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, runtime_checkable

import typer

from izwi.errors import InvalidRequest
from izwi_api.cli.options import Device, Dtype, Offline, failures_told
from izwi_api.keys import KeyRing
from izwi_api.settings import DEFAULT_MODELS, Access, check_origin, key_digest, read_access

if TYPE_CHECKING:
    from fastapi import FastAPI

    from izwi.trace import Observer, TraceRecorder
    from izwi_api.door import Door

logger = logging.getLogger(__name__)

# Streams that still run at SIGTERM may finish within this time.
_DRAIN_S = 30

PolicyOption = Annotated[str, typer.Option(help="Who runs first: deadline, priority or fcfs.")]
ShadowPolicyOption = Annotated[
    str | None, typer.Option(help="Plan by this one too, count what differs, run none of it.")
]
KvMibOption = Annotated[
    int, typer.Option(min=0, help="Memory for keys and values; 0: most of what is free.")
]
HostMibOption = Annotated[
    int, typer.Option(min=0, help="Host memory for what had to leave the device.")
]
DiskMibOption = Annotated[
    int, typer.Option(min=0, help="Disk for what had to leave the host memory.")
]
ApiKeyOption = Annotated[
    str | None,
    typer.Option(help="Ask everybody for this key; others see it in `ps`: better IZWI_API_KEY."),
]
ApiKeysOption = Annotated[
    Path | None, typer.Option(help="Ask for a key of this file; `izwi keys add` makes them.")
]
CorsOriginOption = Annotated[
    list[str] | None,
    typer.Option(help="Let web pages of this origin call, like https://a.example; again for more."),
]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Listen at a public address without asking for a key.")
]
AuditLogOption = Annotated[
    Path | None, typer.Option(help="Append a JSON line about each call; never what was said.")
]


def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(help="Folder, hub id or embedded name; again for more. Default: embedded."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen at.")] = 8000,
    record_trace: Annotated[
        Path | None,
        typer.Option(help="Append what is asked and what it gives, for `izwi replay`; private."),
    ] = None,
    policy: PolicyOption = "deadline",
    shadow_policy: ShadowPolicyOption = None,
    kv_mib: KvMibOption = 0,
    kv_dtype: Annotated[str, typer.Option(help="auto, or 8 bits: int8 or fp8.")] = "auto",
    host_mib: HostMibOption = 256,
    disk_mib: DiskMibOption = 0,
    api_key: ApiKeyOption = None,
    api_keys: ApiKeysOption = None,
    cors_origin: CorsOriginOption = None,
    insecure: InsecureOption = False,
    audit_log: AuditLogOption = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
) -> None:
    """Serve speech and transcription over HTTP, as OpenAI's clients expect it."""
    from izwi.config import EngineConfig
    from izwi_api.app import create_app
    from izwi_api.cli.runtime import Where, open_door

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    with failures_told():
        access = _access(api_key, api_keys, cors_origin, audit_log)
        check_exposure(host, access, insecure=insecure)
        config = EngineConfig(
            policy=policy,
            shadow_policy=shadow_policy,
            kv_bytes=kv_mib << 20,
            kv_dtype=kv_dtype,
            host_bytes=host_mib << 20,
            disk_bytes=disk_mib << 20,
        )
        door = open_door(model or DEFAULT_MODELS, Where(device, dtype, offline), config)
        recorder = _recorder(door, record_trace, device, dtype) if record_trace else None
        app = create_app(door.engine, door.registry, replace(door.settings, access=access))
    _show_memory(door)
    try:
        _listen(app, host, port)
    finally:
        if recorder is not None:
            recorder.close()


def check_exposure(host: str, access: Access, *, insecure: bool) -> None:
    """Refuse to work for whoever can reach an address.

    Raises:
        InvalidRequest: Others than this machine can, nobody asks for a key, and nobody said that
            this is meant.
    """
    if access.asks_for_key or insecure or _is_loopback(host):
        return
    raise InvalidRequest(
        f"refusing to listen at {host or 'all addresses'} without a key: give --api-key or "
        "--api-keys, or say --insecure",
        param="host",
    )


class WithoutQueries(logging.Filter):
    """Cuts queries off logged paths: some clients put a key or a text there."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, its paths cut at the question mark."""
        if isinstance(record.args, tuple):
            record.args = tuple(
                value.partition("?")[0] if isinstance(value, str) and value[:1] == "/" else value
                for value in record.args
            )
        return True


def _access(
    api_key: str | None,
    api_keys: Path | None,
    cors_origin: list[str] | None,
    audit_log: Path | None,
) -> Access:
    """What the environment says of access, where the command line does not say otherwise."""
    access = read_access(os.environ)
    if api_key is not None:
        access = replace(access, api_key_digest=key_digest(api_key, "--api-key"))
    if cors_origin:
        origins = tuple(check_origin(origin, "--cors-origin") for origin in cors_origin)
        access = replace(access, cors_origins=origins)
    access = replace(
        access,
        api_keys_file=api_keys or access.api_keys_file,
        audit_log=audit_log or access.audit_log,
    )
    KeyRing(access.api_keys_file)  # a broken file is told now, not after the models have loaded
    return access


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(app: FastAPI, host: str, port: int) -> None:
    """Serve until somebody asks to leave."""
    import signal

    import uvicorn

    # When it has drained, uvicorn raises the signal once more at whoever handled it before itself:
    # a server that was asked to leave and left has not failed.
    signal.signal(signal.SIGTERM, lambda *_: None)
    for name in ("uvicorn.access", "uvicorn.error"):
        logging.getLogger(name).addFilter(WithoutQueries())
    uvicorn.run(
        app,
        host=host,
        port=port,
        server_header=False,
        timeout_graceful_shutdown=_DRAIN_S,
        # the answer of a client that is slowed down waits behind its own text; our doors have
        # time limits of their own
        ws_ping_timeout=None,
        ws_per_message_deflate=False,  # sound does not shrink
    )


def _show_memory(door: Door) -> None:
    """Say what each model's keys and values may take."""
    for name, load in door.engine.load.items():
        pages, page_bytes = int(load["pages"]), int(load["page_bytes"])
        logger.info(
            "%s: %d pages of %d KiB for keys and values, %.0f MiB",
            *(name, pages, page_bytes >> 10, pages * page_bytes / (1 << 20)),
        )


@runtime_checkable
class _Observable(Protocol):
    """An engine that tells somebody what it does."""

    def observe(self, observer: Observer) -> None:
        """Tell an observer from now on; before the engine starts."""
        ...


def _recorder(door: Door, path: Path, device: str, dtype: str) -> TraceRecorder:
    """Record what the door's engine does. Raises OSError if the file cannot be written."""
    from izwi.runner.device import torch_backend
    from izwi.trace import TraceRecorder, platform_of

    ops = torch_backend(device, dtype).ops
    recorder = TraceRecorder(path, door.registry, platform_of(ops.device, ops.dtype))
    assert isinstance(door.engine, _Observable)
    door.engine.observe(recorder)
    return recorder
