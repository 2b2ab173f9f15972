"""Serve a published size with random weights over HTTP, for what measures a whole server."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import httpx

from benchmarks.random_checkpoint import NAMES, load

# Set-up records graphs and compiles kernels.
_START_S = 240.0


@contextmanager
def served(size: str, frames: int, streams: int, port: int, device: str) -> Iterator[str]:
    """Run the server in a process of its own; its base URL, once it is ready.

    Raises:
        RuntimeError: It ended before it was ready, or was not ready in time.
    """
    command = [sys.executable, "-m", "benchmarks.http_server", "--size", size]
    command += ["--frames", str(frames), "--streams", str(streams), "--port", str(port)]
    process = subprocess.Popen([*command, "--device", device])
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(process, url)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}")
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise RuntimeError("the server was not ready in time")


def main() -> None:
    from izwi.allocator import settle
    from izwi.async_engine import AsyncEngine
    from izwi.config import EngineConfig
    from izwi.engine import Engine
    from izwi_api.app import create_app
    from izwi_api.http_server import Server, server_config
    from izwi_api.settings import read_settings

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=NAMES, default="tts-1.7b")
    parser.add_argument("--frames", type=int, default=52)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    registry, backend = load(options.size, options.device, "auto", options.frames)
    engine = Engine(registry.models, backend.ops, EngineConfig(max_running=options.streams))
    with tempfile.TemporaryDirectory() as home:
        settings = read_settings({**os.environ, "IZWI_HOME": home})
        settings = replace(settings, decode_workers=0)  # nothing is uploaded here
        app = create_app(AsyncEngine(engine), registry, settings)
        settle()
        state = app.state.izwi
        served = server_config(app, "127.0.0.1", options.port, settings.pace.max_head_s)
        Server(served, state.drain, drain_s=0.0).run()


if __name__ == "__main__":
    main()
