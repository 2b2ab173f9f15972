"""Measure many transcriptions from the server's start on, and speech beside them.

    python -m benchmarks.serving.in_company

One server has a voice and a transcriber. As soon as it is ready, 32 clients transcribe clips of
8 s, then again. Then short texts arrive at random, alone and beside 8 and 32 such clients. Use an
empty TRITON_CACHE_DIR to measure the first requests on a new machine. Each row reports how many
kernels were compiled and how many graphs were captured.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import aiohttp
import httpx
import torch

from benchmarks.asr.random_audio import random_audio
from benchmarks.measure import write_result
from benchmarks.random_checkpoint import EMBEDDED, EMBEDDED_LISTENER, NAMES
from benchmarks.serving.by_length import Asker
from benchmarks.serving.http_server import served
from benchmarks.serving.listeners import connect, figures, listen_at, milliseconds
from benchmarks.serving.uploads import post_upload, upload_of
from benchmarks.simulation.arrivals import poisson_within
from izwi.audio.mel import WHISPER_RATE

_SHORT_CHARS = 50
_POOL_S = 120.0


def drawn_clips(model: str, count: int, clip_s: float, seed: int) -> list[httpx.Request]:
    """Return uploads of different clips, cut from one long recording at different places."""
    size = round(clip_s * WHISPER_RATE)
    pool = random_audio(_POOL_S, WHISPER_RATE, seed)
    starts = random.Random(seed).sample(range(len(pool) - size), count)
    return [upload_of(model, pool[start : start + size]) for start in starts]


async def transcribe_for(
    client: aiohttp.ClientSession, uploads: Iterator[httpx.Request], clients: int, seconds: float
) -> list[float]:
    """Run clients that transcribe one clip after another until the time is over.

    Returns:
        Seconds that each clip took.
    """
    taken_s: list[float] = []
    until = time.perf_counter() + seconds

    async def transcribe() -> None:
        for upload in uploads:
            began = time.perf_counter()
            await post_upload(client, upload)
            taken_s.append(time.perf_counter() - began)
            if time.perf_counter() >= until:
                return

    await asyncio.gather(*(transcribe() for _ in range(clients)))
    return taken_s


async def measure(url: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all rows."""
    async with connect(url, 256) as client:
        asker = Asker(url, client, options.voice, options.frames)

        def clips() -> Iterator[httpx.Request]:
            made = drawn_clips(
                options.transcriber, options.clips, options.clip_s, asker.next_seed()
            )
            return iter(made)

        for turn in ("first", "again"):
            uploads = clips()
            before, began_s = await asker.delays(), time.time()
            clients = options.clients[-1]
            taken_s = await transcribe_for(client, uploads, clients, options.seconds)
            row = _transcribed(taken_s, clients, time.time() - began_s, options.clip_s)
            await asker.add("transcriptions", before, began_s, turn=turn, **row)
        for clients in (0, *options.clients):
            uploads = clips()
            before, began_s = await asker.delays(), time.time()
            times_s = poisson_within(options.per_second, options.seconds, asker.next_seed())
            heard, taken_s = await asyncio.gather(
                listen_at(times_s, lambda: asker.say(_SHORT_CHARS)),
                transcribe_for(client, uploads, clients, options.seconds),
            )
            row = _transcribed(taken_s, clients, time.time() - began_s, options.clip_s)
            await asker.add("speech", before, began_s, **figures(heard), **row)
    return asker.rows


def _transcribed(
    taken_s: Sequence[float], clients: int, wall_s: float, clip_s: float
) -> dict[str, Any]:
    """Return a row: clips of a given length, and their throughput."""
    if not taken_s:
        return {"clients": clients}
    return {
        "clients": clients,
        "clips": len(taken_s),
        "x_real_time": round(len(taken_s) * clip_s / wall_s, 1),
        "clip_ms_p50": milliseconds(taken_s, 50),
        "clip_ms_p95": milliseconds(taken_s, 95),
    }


def main() -> None:
    """Start a server with both models, and measure."""
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--voice", choices=NAMES, default="tts-1.7b" if on_gpu else EMBEDDED)
    parser.add_argument(
        "--transcriber", choices=NAMES, default="asr-1.7b" if on_gpu else EMBEDDED_LISTENER
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--clips", type=int, default=1000, help="most clips for each row")
    parser.add_argument("--clip-s", type=float, default=8.0)
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each row")
    parser.add_argument("--per-second", type=float, default=10.0, help="short texts a second")
    parser.add_argument("--frames", type=int, default=52, help="frames of an utterance")
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--api-servers", type=int, default=2)
    options = parser.parse_args()
    sizes = f"{options.voice},{options.transcriber}"
    with served(
        *(sizes, options.frames, 64, options.port, options.device), options.api_servers
    ) as url:
        rows = asyncio.run(measure(url, options))
    write_result("in_company", rows, models=sizes, api_servers=options.api_servers)


if __name__ == "__main__":
    main()
