"""`izwi serve`: the HTTP server."""

from __future__ import annotations

from typing import Annotated

import typer

from izwi_api.cli.options import Device, Dtype, Offline, failures_told
from izwi_api.settings import DEFAULT_MODELS

# Streams that still run at SIGTERM may finish within this time.
_DRAIN_S = 30


def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(help="Folder, hub id or embedded name; again for more. Default: embedded."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen at.")] = 8000,
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
    # When it has drained, uvicorn raises the signal once more at whoever handled it before itself:
    # a server that was asked to leave and left has not failed.
    signal.signal(signal.SIGTERM, lambda *_: None)
    app = create_app(door.engine, door.registry, door.settings)
    uvicorn.run(app, host=host, port=port, server_header=False, timeout_graceful_shutdown=_DRAIN_S)
