"""How much processor time do traces cost the API server, per request?

The server of `api_server_cost` runs with tracing off, with 1 in 10 calls traced, and with all calls
traced; spans go over OTLP to a collector in this process, whose time does not count. Rounds take
turns, and of each the cheapest counts, because other load only adds to it. Needs izwi[otel].

    python -m benchmarks.serving.tracing_cost
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.measure import write_result
from benchmarks.serving.api_server_cost import Served, ask, one_round

KINDS: dict[str, dict[str, str]] = {
    "off": {},
    "1 in 10": {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"},
    "all": {},
}


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
def served(home: Path, kind: str, address: str) -> Generator[Served]:
    """Start a server with traces of one kind."""
    environ = KINDS[kind] | ({} if kind == "off" else {"OTEL_EXPORTER_OTLP_ENDPOINT": address})
    os.environ.update(environ)
    try:
        server = Served(home, False, None)
    finally:
        for name in environ:
            del os.environ[name]
    try:
        yield server
    finally:
        server.stop()


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each kind of tracing and number of chunks."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        address = stack.enter_context(collector())
        servers = {kind: stack.enter_context(served(home, kind, address)) for kind in KINDS}
        for server in servers.values():
            asyncio.run(ask(server.port, 9, None, 200, options.streams))
        rows = []
        for chunks in options.chunks:
            rounds: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
            for _ in range(options.rounds):
                for kind, server in servers.items():
                    rounds[kind].append(one_round(server, chunks, None, options))
            off_ms = min(row["all_ms"] for row in rounds["off"])
            for kind, measured in rounds.items():
                best = min(measured, key=lambda row: row["all_ms"])
                more = {"more_ms": round(best["all_ms"] - off_ms, 3)}
                rows.append({"traces": kind, "chunks": chunks, **best, **more})
    assert Collector.num_bytes, "no span arrived"
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, nargs="*", default=[9, 33])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--streams", type=int, default=8, help="concurrent connections")
    write_result("tracing_cost", measure(parser.parse_args()))


if __name__ == "__main__":
    main()
