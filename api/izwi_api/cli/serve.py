"""`izwi serve`: the HTTP server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, runtime_checkable

import typer

from izwi_api.cli.options import Device, Dtype, Offline, failures_told
from izwi_api.settings import DEFAULT_MODELS

if TYPE_CHECKING:
    from izwi.trace import Observer, TraceRecorder
    from izwi_api.door import Door

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
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
) -> None:
    """Serve speech and transcription over HTTP, as OpenAI's clients expect it."""
    import logging
    import signal

    import uvicorn

    from izwi_api.app import create_app
    from izwi_api.cli.runtime import Where, open_door

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    with failures_told():
        door = open_door(model or DEFAULT_MODELS, Where(device, dtype, offline))
        recorder = _recorder(door, record_trace, device, dtype) if record_trace else None
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
