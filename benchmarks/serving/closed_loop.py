"""Measure throughput and time to first audio of c clients in a closed loop.

The server runs in its own process: a published size with random weights on a GPU, the embedded
voice elsewhere. Each client requests the next utterance when the last one has ended; all
utterances have the same number of frames.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch

from benchmarks.serving.listeners import (
    Listened,
    arguments,
    connect,
    figures,
    listen,
    measure_server,
    open_connections,
)

# Processes of clients import torch before they can begin, all at once.
_START_S = 10.0


async def run_level(
    url: str, model: str, streams: int, rounds: int, clients: int = 1
) -> dict[str, Any]:
    """Keep a number of listeners busy until each has received a number of utterances.

    Args:
        url: Base URL of the server.
        model: Name of the model.
        streams: Number of listeners.
        rounds: Utterances of each.
        clients: Processes that share the listeners; 1: this one.
    """
    if clients == 1:
        played, began, ended = await _play(url, model, range(streams), streams, rounds)
    else:
        loop, places = asyncio.get_running_loop(), range(streams)
        begins_s = time.time() + _START_S
        with ProcessPoolExecutor(clients, get_context("spawn")) as pool:
            parts = await asyncio.gather(
                *(
                    loop.run_in_executor(
                        pool, _play_apart, begins_s, (url, model, mine, streams, rounds)
                    )
                    for mine in (places[number::clients] for number in range(clients))
                )
            )
        played = [one for part, _, _ in parts for one in part]
        began, ended = min(part[1] for part in parts), max(part[2] for part in parts)
    return {
        "loop": "closed",
        "streams": streams,
        **figures(played),
        "rtf_p50": round(float(np.median([one.total_s / one.audio_s for one in played])), 4),
        "audio_s_per_s": round(sum(one.audio_s for one in played) / (ended - began), 1),
    }


def _play_apart(
    begins_s: float, level: tuple[str, str, range, int, int]
) -> tuple[list[Listened], float, float]:
    return asyncio.run(_play(*level, begins_s=begins_s))


async def _play(
    url: str, model: str, places: range, streams: int, rounds: int, *, begins_s: float = 0.0
) -> tuple[list[Listened], float, float]:
    """Return what listeners heard, and when the first began and the last ended (system clock)."""
    played: list[Listened] = []
    async with connect(url, len(places)) as client:

        async def slot(place: int) -> None:
            for turn in range(rounds):
                one = await listen(client, model, turn * streams + place)
                played.append(one)

        await open_connections(client, len(places))  # before the clock starts
        await asyncio.sleep(max(0.0, begins_s - time.time()))
        began_s = time.time()
        await asyncio.gather(*(slot(place) for place in places))
        return played, began_s, time.time()


async def measure(url: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure each level, after one that warms the server up."""
    rows = []
    await run_level(url, options.size, min(4, max(options.streams)), 2)
    for streams in options.streams:
        rows.append(await run_level(url, options.size, streams, options.rounds))
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = arguments(__doc__)
    levels = [1, 8, 16, 32, 64, 128] if on_gpu else [1, 2, 4, 8]
    parser.add_argument("--streams", type=int, nargs="+", default=levels)
    rounds = 16 if on_gpu else 4
    parser.add_argument("--rounds", type=int, default=rounds, help="utterances of each client")
    options = parser.parse_args()
    most = max(options.streams)
    measure_server("closed_loop", measure, options, most)


if __name__ == "__main__":
    main()
