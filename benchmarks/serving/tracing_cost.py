"""How much processor time do traces cost, per request, at 64 concurrent streams of speech?

Three kinds of tracing: off, 1 in 10 calls, all calls. Spans go over OTLP to a collector in this
process, whose time does not count; metrics are not exported. Needs izwi[otel].

1. The API server alone, with the engine of `api_server_cost`, which has its audio ready at once.
2. Whole servers (`izwi serve`) with the embedded voice: processor time of the API server and of the
   engine. They take turns, and are idle between.

The kinds take turns in each round. A round's difference to `off` is that of the same round; the
median of all rounds counts. Processor time is the kernel's, so that other load disturbs little.

    python -m benchmarks.serving.tracing_cost
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.measure import TEXTS, write_result
from benchmarks.serving.api_server_cost import Served, ask, one_round
from benchmarks.serving.http_server import running
from benchmarks.serving.soak_processes import sample

KINDS: dict[str, dict[str, str]] = {
    "off": {"OTEL_TRACES_EXPORTER": "none"},
    "1 in 10": {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"},
    "all": {"OTEL_TRACES_SAMPLER": "always_on"},
}
_WARMING = 640


class Collector(BaseHTTPRequestHandler):
    """Accepts spans, and counts their bytes."""

    num_bytes = 0

    def do_POST(self) -> None:
        """Take a batch."""
        content = self.rfile.read(int(self.headers["content-length"]))
        Collector.num_bytes += len(content)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def collector() -> Generator[str]:
    """Run a collector; yields its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


@contextmanager
def tracing(kind: str, address: str) -> Generator[None]:
    """Let processes that start here trace in one way."""
    environ = KINDS[kind] | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": address,
        "OTEL_METRICS_EXPORTER": "none",
    }
    os.environ.update(environ)
    try:
        yield
    finally:
        for name in environ:
            del os.environ[name]


@contextmanager
def served(home: Path, kind: str, address: str) -> Generator[Served]:
    """Start an API server with an instant engine, and traces of one kind."""
    with tracing(kind, address):
        server = Served(home, False, None)
    try:
        yield server
    finally:
        server.stop()


class Whole:
    """A running server with the embedded voice.

    Args:
        pid: Of its supervisor.
        port: Where it listens.
    """

    def __init__(self, pid: int, port: int):
        self._pid, self._port = pid, port

    def cpu_ms(self) -> tuple[float, float]:
        """Return processor time so far in ms: of API servers, and of engines."""
        used = sample(self._pid, self._port, "none is needed").used
        parts = ("API server", "engine")
        api, engine = (
            1e3 * sum(use.cpu_s for (name, _), use in used.items() if name.startswith(part))
            for part in parts
        )
        return api, engine

    async def speak(self, count: int, streams: int) -> None:
        """Read a number of streams of speech, some at the same time."""
        gate = asyncio.Semaphore(streams)
        connector = aiohttp.TCPConnector(limit=streams)
        url = f"http://127.0.0.1:{self._port}/v1/audio/speech"

        async def one(client: aiohttp.ClientSession, number: int) -> None:
            body = {
                "model": "izwi-tiny-tts",
                "input": TEXTS[number % len(TEXTS)],
                "voice": "amber",
                "response_format": "pcm",
                "seed": number,
            }
            async with gate, client.post(url, json=body) as answer:
                answer.raise_for_status()
                async for _ in answer.content.iter_any():
                    pass

        timeout = aiohttp.ClientTimeout(total=600)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client:
            await asyncio.gather(*(one(client, number) for number in range(count)))

    def one_round(self, count: int, streams: int) -> dict[str, float]:
        """Return milliseconds per request: of the API server, and of the engine."""
        before = self.cpu_ms()
        asyncio.run(self.speak(count, streams))
        api_ms, engine_ms = (
            (after - was) / count for after, was in zip(self.cpu_ms(), before, strict=True)
        )
        return {"api_ms": api_ms, "engine_ms": engine_ms}


@contextmanager
def whole(kind: str, address: str, port: int) -> Iterator[Whole]:
    """Run a server with the embedded voice, and traces of one kind."""
    command = [sys.executable, "-c", "from izwi_api.cli.run import main; main()", "serve"]
    command += ["--model", "izwi-tiny-tts", "--port", str(port), "--ctl"]
    with ExitStack() as stack:
        with tracing(kind, address):  # the next server traces in another way
            process = stack.enter_context(running(command, f"http://127.0.0.1:{port}"))
        server = Whole(process.pid, port)
        asyncio.run(server.speak(16, 16))
        yield server


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def in_turn(number: int) -> list[str]:
    """Return all kinds of tracing; another one is first in the next round."""
    kinds, first = list(KINDS), number % len(KINDS)
    return kinds[first:] + kinds[:first]


def rows_of(
    rounds: dict[str, list[dict[str, float]]], cost: str, total: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a row for each kind of tracing: medians, and what it costs more than none.

    Args:
        rounds: Of each kind, in the same order.
        cost: The value that has the cost of tracing.
        total: The values whose sum, without tracing, is the whole.
    """
    whole_ms = statistics.median([sum(one[name] for name in total) for one in rounds["off"]])
    rows = []
    for kind, measured in rounds.items():
        more = [one[cost] - off[cost] for one, off in zip(measured, rounds["off"], strict=True)]
        more_ms = statistics.median(more)
        medians = {name: statistics.median([one[name] for one in measured]) for name in measured[0]}
        row = {name: round(value, 3) for name, value in medians.items()}
        percent = round(100 * more_ms / whole_ms, 2)
        rows.append({"traces": kind, **row, "more_ms": round(more_ms, 3), "percent": percent})
    return rows


def measure_alone(options: argparse.Namespace, home: Path, address: str) -> list[dict[str, Any]]:
    """Return a row for each kind of tracing and number of chunks, of the API server alone."""
    rows = []
    with ExitStack() as stack:
        servers = {kind: stack.enter_context(served(home, kind, address)) for kind in KINDS}
        for server in servers.values():
            asyncio.run(ask(server.port, 9, None, _WARMING, 8))
        for chunks in options.chunks:
            rounds: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
            for number in range(options.rounds):
                for kind in in_turn(number):
                    rounds[kind].append(one_round(servers[kind], chunks, None, options))
            found = rows_of(rounds, "all_ms", ["all_ms"])
            rows += [{"server": "API server alone", "chunks": chunks, **row} for row in found]
    return rows


def measure_whole(options: argparse.Namespace, address: str) -> list[dict[str, Any]]:
    """Return a row for each kind of tracing, of a server with the embedded voice."""
    rounds: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    with ExitStack() as stack:
        servers = {kind: stack.enter_context(whole(kind, address, free_port())) for kind in KINDS}
        for number in range(options.whole_rounds):
            for kind in in_turn(number):
                measured = servers[kind].one_round(options.whole_requests, options.streams)
                rounds[kind].append(measured)
    found = rows_of(rounds, "api_ms", ["api_ms", "engine_ms"])
    return [{"server": "API server and engine", **row} for row in found]


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of both parts."""
    with tempfile.TemporaryDirectory() as home, collector() as address:
        rows = measure_alone(options, Path(home), address) if options.rounds else []
        if options.whole_rounds:
            rows += measure_whole(options, address)
    assert Collector.num_bytes, "no span arrived"
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, nargs="*", default=[9])
    parser.add_argument("--requests", type=int, default=192, help="in each round")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--streams", type=int, default=64, help="concurrent connections")
    parser.add_argument("--whole-requests", type=int, default=64, help="the same, of whole servers")
    parser.add_argument("--whole-rounds", type=int, default=3)
    write_result("tracing_cost", measure(parser.parse_args()))


if __name__ == "__main__":
    main()
