"""What is the time to first audio of short requests beside long texts?

The server runs in its own process: a published size with random weights on a GPU, the embedded
voice elsewhere. Each level keeps a number of long texts in flight, replaces each when it ends, and
reads them as fast as they arrive. Once all of them stream, short requests arrive by a Poisson
process at a fixed rate, at the same times in each level. Texts are generated from a seed and never
repeat, so that the prefix cache does not help.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

import aiohttp
import torch

from benchmarks.random_checkpoint import EMBEDDED
from benchmarks.serving.fairness_texts import Texts
from benchmarks.serving.listeners import (
    Listened,
    arguments,
    connect,
    figures,
    listen,
    listen_at,
    measure_server,
    request_body,
)
from benchmarks.simulation.arrivals import poisson

LONG_CHARS = 4_000
# For a model that accepts a long text as one piece, at 14.5 characters and 12.5 frames a second of
# English speech. The embedded model gets pieces, each as long as a short text.
_LONG_FRAMES = 3_450
_BEGIN_S = 300.0  # time limit for all long texts to begin
_BYTES_PER_S = 2 * 24_000
_WARM_UP = 8


@dataclass(slots=True, eq=False)
class LongReader:
    """A client that requests one long text after the other, and reads as fast as it can.

    Attributes:
        speaks: Set when the first audio of the first text has arrived.
        num_bytes: Bytes read so far.
    """

    client: aiohttp.ClientSession
    model: str
    texts: Texts
    seeds: Iterator[int]
    speaks: asyncio.Event = field(default_factory=asyncio.Event)
    num_bytes: int = 0

    async def run(self) -> None:
        """Read until cancelled. Raises RuntimeError if the server answers with an error."""
        frames = None if self.model == EMBEDDED else _LONG_FRAMES
        while True:
            text = self.texts.long(LONG_CHARS)
            body = request_body(self.model, next(self.seeds), text, frames)
            forever = aiohttp.ClientTimeout(total=None)
            async with self.client.post("/v1/audio/speech", json=body, timeout=forever) as answer:
                if answer.status != 200:
                    raise RuntimeError(f"{answer.status}: {await answer.text()}")
                async for part in answer.content.iter_any():
                    self.num_bytes += len(part)
                    self.speaks.set()


async def run_level(url: str, options: argparse.Namespace, num_long: int) -> dict[str, Any]:
    """Run short requests at Poisson arrivals beside a number of long texts."""
    texts, seeds = Texts(random.Random(num_long)), count(1_000 * (num_long + 1))
    async with connect(url, num_long + options.requests) as client:
        readers = [LongReader(client, options.size, texts, seeds) for _ in range(num_long)]
        reading = [asyncio.create_task(reader.run()) for reader in readers]
        try:
            async with asyncio.timeout(_BEGIN_S):
                await asyncio.gather(*(reader.speaks.wait() for reader in readers))
            await asyncio.sleep(options.settle_s if readers else 0.0)
            began_s, num_bytes = time.perf_counter(), sum(r.num_bytes for r in readers)
            heard = await _short_requests(client, options, texts, seeds)
            seconds = time.perf_counter() - began_s
            num_bytes = sum(reader.num_bytes for reader in readers) - num_bytes
            failed = [task for task in reading if task.done()]
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
    if failed:
        failed[0].result()
    return {
        "long_texts": num_long,
        **figures(heard),
        "long_audio_s_per_s": round(num_bytes / _BYTES_PER_S / seconds, 1),
    }


async def _short_requests(
    client: aiohttp.ClientSession, options: argparse.Namespace, texts: Texts, seeds: Iterator[int]
) -> list[Listened]:
    return await listen_at(
        islice(poisson(options.rate, seed=0), options.requests),
        lambda: listen(client, options.size, next(seeds), text=texts.sentence()),
    )


async def measure(url: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure each level, after some requests that warm the server up."""
    async with connect(url, _WARM_UP) as client:
        await asyncio.gather(*(listen(client, options.size, n) for n in range(_WARM_UP)))
    rows: list[dict[str, Any]] = []
    for num_long in options.long:
        row = await run_level(url, options, num_long)
        if rows:
            row["ttfa_p95_ratio"] = round(row["ttfa_ms_p95"] / rows[0]["ttfa_ms_p95"], 2)
        rows.append(row)
        print(row, flush=True)
        await asyncio.sleep(1.0)  # let the remaining requests end
    return rows


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = arguments(__doc__)
    parser.add_argument("--long", type=int, nargs="+", default=[0, 1, 4, 8, 16], metavar="TEXTS")
    parser.add_argument(
        "--rate", type=float, default=5.0 if on_gpu else 1.0, help="short requests a second"
    )
    parser.add_argument(
        "--requests", type=int, default=100 if on_gpu else 40, help="number of short requests"
    )
    parser.add_argument(
        "--settle-s", type=float, default=5.0, help="wait before the short requests"
    )
    parser.add_argument("--max-running", type=int, default=64)
    options = parser.parse_args()
    measure_server("fairness", measure, options, options.max_running, rate=options.rate)


if __name__ == "__main__":
    main()
