"""`izwi serve`: the HTTP server."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, runtime_checkable

import typer

from izwi_api.cli.options import Device, Dtype, Offline, failures_told
from izwi_api.settings import DEFAULT_MODELS

if TYPE_CHECKING:
    from izwi.trace import Observer, TraceRecorder
    from izwi_api.door import Door

logger = logging.getLogger(__name__)

# Streams that still run at SIGTERM may finish within this time.
_DRAIN_S = 30


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
    policy: Annotated[
        str, typer.Option(help="Who runs first: deadline, priority or fcfs.")
    ] = "deadline",
    shadow_policy: Annotated[
        str | None, typer.Option(help="Plan by this one too, count what differs, run none of it.")
    ] = None,
    kv_mib: Annotated[
        int, typer.Option(min=0, help="Memory for keys and values; 0: most of what is free.")
    ] = 0,
    kv_dtype: Annotated[str, typer.Option(help="auto, or 8 bits: int8 or fp8.")] = "auto",
    host_mib: Annotated[
        int, typer.Option(min=0, help="Host memory for what had to leave the device.")
    ] = 256,
    disk_mib: Annotated[
        int, typer.Option(min=0, help="Disk for what had to leave the host memory.")
    ] = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
) -> None:
    """Serve speech and transcription over HTTP, as OpenAI's clients expect it."""
    import signal

    import uvicorn

    from izwi.config import EngineConfig
    from izwi_api.app import create_app
    from izwi_api.cli.runtime import Where, open_door

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    with failures_told():
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
    _show_memory(door)
    # When it has drained, uvicorn raises the signal once more at whoever handled it before itself:
    # a server that was asked to leave and left has not failed.
    signal.signal(signal.SIGTERM, lambda *_: None)
    app = create_app(door.engine, door.registry, door.settings)
    try:
        uvicorn.run(
            app, host=host, port=port, server_header=False, timeout_graceful_shutdown=_DRAIN_S
        )
    finally:
        if recorder is not None:
            recorder.close()


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
