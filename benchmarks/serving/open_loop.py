"""What are time to first audio and gaps of streams with Poisson arrivals?

The server runs in its own process: a published size with random weights on a GPU, the embedded
voice elsewhere. Requests arrive by a Poisson process at a fixed rate for a fixed time, whether or
not earlier ones have ended. Texts and lengths are from a seeded list, the same for every rate.
With `--clone-s` each request has a different clip of about that length to clone.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from benchmarks.measure import TEXTS
from benchmarks.serving.by_length import random_voice
from benchmarks.serving.listeners import (
    Listened,
    arguments,
    connect,
    figures,
    listen,
    measure_server,
    milliseconds,
)
from benchmarks.simulation.arrivals import poisson_within

# Factors of the usual length, drawn for each request; 1 on average.
_LENGTHS = (0.5, 0.75, 1.0, 1.25, 1.5)
_CONNECTIONS = 512
_WARM_UP = 8


class Ask(NamedTuple):
    """A listener's request and its arrival time, seconds after the start."""

    at_s: float
    text: str
    frames: int


def asks(per_second: float, seconds: float, frames: int, seed: int) -> Iterator[Ask]:
    """Yield the requests of one level.

    Args:
        per_second: Arrival rate.
        seconds: Duration of arrivals.
        frames: Mean frames of an utterance.
        seed: Seed of times, texts and lengths.
    """
    rng = random.Random(seed)
    for at_s in poisson_within(per_second, seconds, seed):
        yield Ask(at_s, rng.choice(TEXTS), max(1, round(frames * rng.choice(_LENGTHS))))


def clips(clone_s: float, count: int, first_seed: int) -> list[dict[str, str] | None]:
    """Return a clip for each request, within 10 % of a length; none for a length of 0."""
    if not clone_s:
        return [None] * count
    rng = random.Random(first_seed)
    lengths = [clone_s * rng.uniform(0.9, 1.1) for _ in range(count)]
    return [random_voice(length, first_seed + n) for n, length in enumerate(lengths)]


async def run_level(
    url: str, model: str, per_second: float, seconds: float, frames: int, clone_s: float = 0.0
) -> dict[str, Any]:
    """Run listeners with Poisson arrivals at a fixed rate, and wait until all have finished."""
    tasks: list[asyncio.Task[Listened]] = []
    asked = list(asks(per_second, seconds, frames, seed=0))
    # made before the clock starts; other rates have other clips
    voices = clips(clone_s, len(asked), 1_000_000 * (1 + round(100 * per_second)))
    async with connect(url, _CONNECTIONS) as client:
        began, most = time.perf_counter(), 0
        for (at_s, text, length), clip in zip(asked, voices, strict=True):
            await asyncio.sleep(max(0.0, began + at_s - time.perf_counter()))
            listener = listen(client, model, len(tasks), text=text, frames=length, clip=clip)
            tasks.append(asyncio.create_task(listener))
            most = max(most, sum(not task.done() for task in tasks))
        played = await asyncio.gather(*tasks)
        wall_s = time.perf_counter() - began
    total_s = [one.total_s for one in played]
    return {
        "loop": "open",
        "per_second": per_second,
        **figures(played),
        **{f"end_to_end_ms_p{percent}": milliseconds(total_s, percent) for percent in (50, 95, 99)},
        "most_in_flight": most,
        "audio_s_per_s": round(sum(one.audio_s for one in played) / wall_s, 1),
    }


async def measure(url: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure each rate, after some requests that warm the server up."""
    async with connect(url, _WARM_UP) as client:
        warming = enumerate(clips(options.clone_s, _WARM_UP, 1))
        await asyncio.gather(*(listen(client, options.size, n, clip=one) for n, one in warming))
    rows = []
    for per_second in options.rates:
        level = per_second, options.seconds, options.frames, options.clone_s
        row = await run_level(url, options.size, *level)
        rows.append(row)
        print(row, flush=True)
    return rows


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = arguments(__doc__)
    rates = [1.0, 10.0, 20.0] if on_gpu else [0.5, 1.0, 2.0]
    parser.add_argument("--rates", type=float, nargs="+", default=rates, help="arrivals a second")
    parser.add_argument("--seconds", type=float, default=15, help="duration of each rate")
    parser.add_argument(
        "--clone-s", type=float, default=0.0, help="length of reference clips; 0: no cloning"
    )
    parser.add_argument("--max-running", type=int, default=64)
    options = parser.parse_args()
    name = "open_loop_clones" if options.clone_s else "open_loop"
    how = {"seconds": options.seconds} | ({"clone_s": options.clone_s} if options.clone_s else {})
    measure_server(name, measure, options, options.max_running, **how)


if __name__ == "__main__":
    main()
