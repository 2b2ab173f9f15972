"""Does loading a model stop the streams of another one?

`izwi serve --manage-models` speaks with an engine process of its own on this machine's CPU. Streams
of the embedded voice run all the time. In turns, nothing else happens for some seconds, and other
embedded models are loaded and unloaded again and again. What counts is the time between two chunks
of a stream as a client receives them, and the latest a stream gets ready with the audio that plays.
The other engine needs processor time while it reads weights and makes its first step, so on few
cores streams get slower; a stop would be a gap far above that.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import numpy as np

from benchmarks.measure import write_result
from benchmarks.random_checkpoint import EMBEDDED
from benchmarks.serving.http_server import running
from benchmarks.serving.listeners import connect, request_body

_TEXT = "The house is near the river and the road is long. " * 4
_OTHERS = ("izwi-tiny-asr", "izwi-tiny-chat", "izwi-tiny-aligner")


class Gaps:
    """Times between two chunks of streams, by what happens meanwhile."""

    def __init__(self) -> None:
        self.now = ""  # what happens; empty: nothing is noted
        self.seconds: dict[str, list[float]] = {}

    async def listen(self, client: aiohttp.ClientSession, number: int) -> None:
        """Read one stream after the other for ever."""
        while True:
            body = request_body(EMBEDDED, number, _TEXT, None)
            async with client.post("/v1/audio/speech", json=body) as answer:
                answer.raise_for_status()
                last_s: float | None = None
                async for _ in answer.content.iter_any():
                    now_s = time.perf_counter()
                    if last_s is not None and self.now:
                        self.seconds.setdefault(self.now, []).append(now_s - last_s)
                    last_s = now_s

    def row(self, name: str) -> dict[str, Any]:
        """Return the percentiles of one kind."""
        gaps_ms = 1e3 * np.array(self.seconds[name])
        named = {f"gap_ms_p{q}": round(float(np.percentile(gaps_ms, q)), 1) for q in (50, 99)}
        return {"chunks": len(gaps_ms), **named, "gap_ms_longest": round(float(gaps_ms.max()), 1)}


@asynccontextmanager
async def streaming(url: str, gaps: Gaps, count: int) -> AsyncIterator[None]:
    """Read streams while the block runs."""
    async with connect(url, count) as client:
        tasks = [asyncio.create_task(gaps.listen(client, number)) for number in range(count)]
        try:
            await asyncio.sleep(5.0)
            yield
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if not isinstance(result, asyncio.CancelledError):
            raise RuntimeError(f"a stream has failed: {result!r}")


async def load_and_unload(url: str, until_s: float) -> list[float]:
    """Load and unload other models until a time; return the seconds that each load took."""
    took_s: list[float] = []
    async with connect(url, 1) as client:
        while time.perf_counter() < until_s:
            name = _OTHERS[len(took_s) % len(_OTHERS)]
            began_s = time.perf_counter()
            for verb in ("load", "unload"):
                async with client.post(f"/v1/models/{name}/{verb}", json={}) as answer:
                    answer.raise_for_status()
                    await answer.read()
                if verb == "load":
                    took_s.append(time.perf_counter() - began_s)
    return took_s


async def measure(url: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure quiet times and times of loads in turns."""
    gaps, loads_s = Gaps(), list[float]()
    async with streaming(url, gaps, options.streams):
        for _ in range(options.rounds):
            gaps.now = "quiet"
            await asyncio.sleep(options.seconds)
            gaps.now = "loading"
            loads_s += await load_and_unload(url, time.perf_counter() + options.seconds)
            gaps.now = ""
            await asyncio.sleep(1.0)
    loading = {"loads": len(loads_s), "load_s_longest": round(max(loads_s), 2)}
    return [
        {"measured": "quiet", "streams": options.streams, **gaps.row("quiet")},
        {"measured": "loading", "streams": options.streams, **gaps.row("loading"), **loading},
    ]


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--port", type=int, default=8150)
    parser.add_argument("--note", default="", help="what else ran on the machine")
    options = parser.parse_args()
    url = f"http://127.0.0.1:{options.port}"
    with tempfile.TemporaryDirectory() as home:
        os.environ["IZWI_HOME"] = home
        command = [sys.executable, "-c", "from izwi_api.cli.run import main; main()", "serve"]
        command += ["--model", EMBEDDED, "--manage-models", "--max-models", "2", "--device", "cpu"]
        with running([*command, "--port", str(options.port)], url):
            rows = asyncio.run(measure(url, options))
    for row in rows:
        print(row)
    write_result("model_loading", rows, note=options.note)


if __name__ == "__main__":
    main()
