"""Serve a published size with random weights over HTTP, for benchmarks of a whole server."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.fixed_length import FRAMES
from benchmarks.random_checkpoint import NAMES, folder_of, load
from izwi.config import EngineConfig
from izwi.router.options import RouterOptions
from izwi_api.environment import read_settings
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.serve.options import ReplicaOptions, ServeOptions

# Set-up captures graphs and compiles kernels.
_START_S = 240.0


@contextmanager
def served_by_replicas(
    size: str,
    frames: int,
    streams: int,
    port: int,
    devices: Sequence[str],
    api_servers: int = 1,
    *,
    max_wait_ms: float = 0.0,
) -> Iterator[str]:
    """Run the server with an engine on each device; yield its base URL once all are ready.

    Each engine takes at most twice the number of sequences that it runs at the same time. The
    limit of the predicted wait is that of `izwi serve --max-wait-ms`.

    Raises:
        RuntimeError: It ended before it was ready, or was not ready in time.
    """
    command = [sys.executable, "-m", "benchmarks.serving.http_server", "--size", *size.split(",")]
    command += ["--frames", str(frames), "--streams", str(streams), "--port", str(port)]
    command += ["--devices", ",".join(devices), "--api-servers", str(api_servers)]
    command += ["--max-wait-ms", str(max_wait_ms)]
    url = f"http://127.0.0.1:{port}"
    with running(command, url):
        yield url


@contextmanager
def served(
    size: str, frames: int, streams: int, port: int, device: str, api_servers: int = 1
) -> Iterator[str]:
    """Run the server in its own process; yield its base URL once it is ready.

    Args:
        size: Name of the model, or of several, separated by commas.
        frames: Frames of each utterance.
        streams: Number of sequences that run at the same time.
        port: Port of the server.
        device: Device of the models.
        api_servers: Number of processes; 0 runs all in one process with one model.

    Raises:
        RuntimeError: It ended before it was ready, or was not ready in time.
    """
    command = [sys.executable, "-m", "benchmarks.serving.http_server", "--size", *size.split(",")]
    command += ["--frames", str(frames), "--streams", str(streams), "--port", str(port)]
    command += ["--device", device, "--api-servers", str(api_servers)]
    url = f"http://127.0.0.1:{port}"
    with running(command, url):
        yield url


@contextmanager
def running(
    command: Sequence[str], url: str, limit_s: float = _START_S
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in a process of its own; yield the process once `url` answers.

    Raises:
        RuntimeError: It ended before it was ready, or was not ready in time.
    """
    process = subprocess.Popen(command)
    try:
        wait_ready(process, url, limit_s)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def wait_ready(process: subprocess.Popen[bytes], url: str, limit_s: float = _START_S) -> None:
    """Wait until a server answers. Raises RuntimeError if it ended, or was not ready in time."""
    until = time.monotonic() + limit_s
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=NAMES, nargs="+", default=["tts-1.7b"])
    parser.add_argument("--frames", type=int, default=52)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--api-servers", type=int, default=1, help="API-server processes; 0: one in all"
    )
    parser.add_argument("--devices", default="", help="device of each engine, with commas")
    parser.add_argument("--max-wait-ms", type=float, default=0.0)
    options = parser.parse_args()
    devices = tuple(options.devices.split(",")) if options.devices else ()
    router = RouterOptions(
        max_in_flight_each=2 * options.streams if devices else 0,
        max_wait_s=options.max_wait_ms / 1e3,
    )
    replicas = ReplicaOptions(devices, router, min_ready=max(1, len(devices)))
    with tempfile.TemporaryDirectory() as home:
        settings = read_settings({**os.environ, "IZWI_HOME": home})
        runtime, config = RuntimeOptions(options.device), EngineConfig(max_running=options.streams)
        serve_options = ServeOptions(
            *((), runtime, config, settings),
            drain_s=0.0,
            num_api_servers=options.api_servers,
            replicas=replicas,
        )
        serve = _serve_in_processes if options.api_servers else _serve_in_process
        serve(serve_options, options)


def _serve_in_process(serve_options: ServeOptions, options: argparse.Namespace) -> None:
    from izwi.engine.async_engine import AsyncEngine
    from izwi.engine.engine import Engine
    from izwi.host.allocator import settle
    from izwi_api.http.server import Server, server_config
    from izwi_api.serve.app import create_app

    registry, backend = load(options.size[0], options.device, "auto", options.frames)
    engine = AsyncEngine(Engine(registry.models, backend, serve_options.config))
    app = create_app(engine, registry, serve_options.settings)
    settle()
    max_head_s = serve_options.settings.pace.max_head_s
    served = server_config(app, "127.0.0.1", options.port, max_head_s)
    Server(served, app.state.izwi.drain, serve_options.drain_s).run()


def _serve_in_processes(serve_options: ServeOptions, options: argparse.Namespace) -> None:
    from izwi_api.serve.listen_sockets import open_listen_sockets, url_of
    from izwi_api.serve.supervisor import Supervisor

    # its processes find this package where this one found it
    os.environ |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    os.environ[FRAMES] = str(options.frames)
    listen_sockets = open_listen_sockets("127.0.0.1", options.port)
    with tempfile.TemporaryDirectory() as parent:
        programs = ("benchmarks.serving.http_engine", "benchmarks.serving.http_api_server")
        models = {size: folder_of(size, Path(parent)) for size in options.size}
        Supervisor(
            serve_options, models, listen_sockets, url_of("127.0.0.1", listen_sockets), programs
        ).run()


if __name__ == "__main__":
    main()
