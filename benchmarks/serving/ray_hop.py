"""What does Ray's proxy cost: first audio and processor time of a request, beside `izwi serve`?

Both serve the embedded voice with one API server and one engine on this machine's CPU, one after
the other. One listener at a time asks for the same sentences. Processor time is that of all
processes of a server, by what they are, less what they take while nobody asks. It needs
`izwi[ray]`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.measure import write_result
from benchmarks.random_checkpoint import EMBEDDED
from benchmarks.serving.http_server import wait_ready
from benchmarks.serving.listeners import connect, listen, milliseconds

_START_S = 240.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_FILE = """
models: [{model}]
engine_gpus: 0
engine_cpus: 0.1
api_server_cpus: 0.1
port: {port}
"""
# What a process is, by what its command line contains, in this order.
_KINDS = (
    ("engine_process", "engine"),
    ("api_server_process", "api_server"),
    ("ServeReplica:izwi:ApiServer", "api_server"),
    ("ServeReplica:izwi:Engine", "engine_actor"),
    ("ProxyActor", "proxy"),
)


@contextmanager
def started(command: Sequence[str], home: Path, url: str) -> Iterator[None]:
    """Run a server whose processes all have a folder in their environment."""
    environ = os.environ | {"IZWI_HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0"}
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
    try:
        wait_ready(process, url, _START_S)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def cpu_s(home: Path) -> Counter[str]:
    """Return the seconds of processor time of a server's processes so far, by kind."""
    seconds: Counter[str] = Counter()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(home).encode() not in (folder / "environ").read_bytes():
                continue
            command = (folder / "cmdline").read_bytes().decode(errors="replace")
            kind = next((kind for word, kind in _KINDS if word in command), "rest")
            times = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
            seconds[kind] += sum(map(int, times)) * _TICK_S
    return seconds


async def measure(url: str, home: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one listener after the other, and the time of an idle server before."""
    async with connect(url, 1) as client:
        for number in range(4):
            await listen(client, EMBEDDED, number, frames=options.frames)
        before, at_s = cpu_s(home), time.monotonic()
        await asyncio.sleep(options.idle_s)
        idle = cpu_s(home) - before
        idle_s = time.monotonic() - at_s
        before, at_s = cpu_s(home), time.monotonic()
        first_s = [
            (await listen(client, EMBEDDED, number)).audible_s
            for number in range(options.listeners)
        ]
        lasted_s = time.monotonic() - at_s
        spent = cpu_s(home) - before
    each_ms = {
        kind: round(1e3 * (spent[kind] - idle[kind] * lasted_s / idle_s) / options.listeners, 2)
        for kind in sorted(spent)
    }
    return {
        "requests": options.listeners,
        **{f"ttfa_ms_p{percent}": milliseconds(first_s, percent) for percent in (50, 95)},
        "cpu_ms_per_request": each_ms,
        "idle_cpu_percent": {
            kind: round(100 * idle[kind] / idle_s, 1) for kind in sorted(idle) if idle[kind]
        },
    }


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--listeners", type=int, default=40)
    parser.add_argument("--frames", type=int, default=8, help="frames of an utterance")
    parser.add_argument("--idle-s", type=float, default=10.0)
    parser.add_argument("--servers", nargs="+", choices=("plain", "ray"), default=["plain", "ray"])
    parser.add_argument("--port", type=int, default=8140)
    parser.add_argument("--note", default="", help="what else ran on the machine")
    options = parser.parse_args()
    url, rows = f"http://127.0.0.1:{options.port}", []
    izwi = [sys.executable, "-c", "from izwi_api.cli.run import main; main()"]
    serve = [*izwi, "serve", "--model", EMBEDDED, "--device", "cpu", "--port", str(options.port)]
    for kind in options.servers:
        with tempfile.TemporaryDirectory(prefix="izwi-hop-") as folder:
            home, command = Path(folder), serve
            if kind == "ray":
                file = home / "app.yaml"
                file.write_text(_FILE.format(model=EMBEDDED, port=options.port), encoding="utf-8")
                command = [*izwi, "ray", "deploy", str(file), "--address", "local"]
            with started(command, home, url):
                rows.append({"server": kind, **asyncio.run(measure(url, home, options))})
            print(rows[-1])
    write_result("ray_hop", rows, ray=version("ray"), frames=options.frames, note=options.note)


if __name__ == "__main__":
    main()
