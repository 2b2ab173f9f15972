"""How soon and how smoothly does a server on one GPU speak: closed loops, and Poisson arrivals?

The server is a process of its own with a published size and random weights, and every utterance
lasts the same number of frames. Listeners read 16-bit PCM over loopback. Sound counts from the
first sample above -50 dBFS; a stream underruns if a sample comes later than its place in the
playback that started there.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import httpx
import numpy as np

from benchmarks.http_server import served
from benchmarks.measure import AUDIBLE, TEXTS, write_result
from benchmarks.random_checkpoint import EMBEDDED, NAMES
from benchmarks.simulation.arrivals import poisson

_RATE = 24_000
_VOICES = {EMBEDDED: "amber"}


@dataclass(frozen=True, slots=True)
class Listened:
    """One stream as it arrived; seconds after the request was sent.

    Attributes:
        audible_s: The chunk with the first audible sample.
        total_s: The end.
        audio_s: Sound received.
        gap_s: Playback that had to wait, in all.
    """

    audible_s: float
    total_s: float
    audio_s: float
    gap_s: float


async def listen(client: httpx.AsyncClient, model: str, number: int) -> Listened:
    """Ask for one utterance and read it as it comes."""
    body = {
        "model": model,
        "input": TEXTS[number % len(TEXTS)],
        "voice": _VOICES.get(model, "vivian"),
        "response_format": "pcm",
        "seed": number,
    }
    began = time.perf_counter()
    audible, received, rest, late = 0.0, 0, b"", 0.0
    async with client.stream("POST", "/v1/audio/speech", json=body) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.status_code}: {(await answer.aread()).decode()}")
        async for part in answer.aiter_raw():
            now = time.perf_counter() - began
            data = rest + part
            whole = len(data) & ~1
            samples, rest = np.frombuffer(data[:whole], "<i2"), data[whole:]
            if not audible:
                loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > AUDIBLE * 32768)
                if len(loud):
                    audible, start = now, received + int(loud[0])
            elif len(samples):  # what had come before lasts until here
                late = max(late, now - audible - (received - start) / _RATE)
            received += len(samples)
    total = time.perf_counter() - began
    return Listened(audible or total, total, received / _RATE, max(0.0, late))


async def closed(url: str, model: str, streams: int, rounds: int) -> dict[str, Any]:
    """Keep so many listeners busy."""
    async with _client(url, streams) as client:
        heard: list[Listened] = []

        async def slot(place: int) -> None:
            for turn in range(rounds):
                one = await listen(client, model, turn * streams + place)
                heard.append(one)

        # connections are opened before the clock runs, as callers keep theirs
        await asyncio.gather(*(client.get("/livez") for _ in range(streams)))
        began = time.perf_counter()
        await asyncio.gather(*(slot(place) for place in range(streams)))
        wall = time.perf_counter() - began
    audio = sum(one.audio_s for one in heard)
    return {
        "loop": "closed",
        "streams": streams,
        "requests": len(heard),
        **_figures(heard),
        "rtf_p50": round(float(np.median([one.total_s / one.audio_s for one in heard])), 4),
        "audio_s_per_s": round(audio / wall, 1),
    }


async def opened(url: str, model: str, rate: float, seconds: float) -> dict[str, Any]:
    """Let listeners arrive at random at a fixed rate."""
    tasks: list[asyncio.Task[Listened]] = []
    async with _client(url, 512) as client:
        began, most = time.perf_counter(), 0
        for due in takewhile(lambda at_s: at_s < seconds, poisson(rate, seed=0)):
            await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
            tasks.append(asyncio.create_task(listen(client, model, len(tasks))))
            most = max(most, sum(not task.done() for task in tasks))
        heard = await asyncio.gather(*tasks)
        wall = time.perf_counter() - began
    return {
        "loop": "open",
        "per_second": rate,
        "requests": len(heard),
        **_figures(heard),
        "end_to_end_ms_p95": _ms([one.total_s for one in heard], 95),
        "most_in_flight": most,
        "audio_s_per_s": round(sum(one.audio_s for one in heard) / wall, 1),
    }


def _figures(heard: list[Listened]) -> dict[str, Any]:
    return {
        "ttfa_ms_p50": _ms([one.audible_s for one in heard], 50),
        "ttfa_ms_p95": _ms([one.audible_s for one in heard], 95),
        "underruns": sum(one.gap_s > 0.001 for one in heard),
    }


def _ms(seconds: list[float], percent: float) -> float:
    return round(float(np.percentile(seconds, percent)) * 1e3, 2)


def _client(url: str, connections: int) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    return httpx.AsyncClient(base_url=url, limits=limits, timeout=120)


async def measure(url: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every level, after one that warms the server up."""
    rows = []
    await closed(url, options.size, 4, 2)
    for streams in options.closed:
        rows.append(await closed(url, options.size, streams, options.rounds))
        print(rows[-1], flush=True)
    for rate in options.open:
        rows.append(await opened(url, options.size, rate, options.seconds))
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=NAMES, default="tts-1.7b")
    parser.add_argument("--frames", type=int, default=52)
    parser.add_argument("--closed", type=int, nargs="*", default=[1, 8, 16, 32, 64])
    parser.add_argument("--open", type=float, nargs="*", default=[1, 10, 20])
    parser.add_argument("--rounds", type=int, default=16, help="utterances of each listener")
    parser.add_argument("--seconds", type=float, default=15, help="of arrivals per open level")
    parser.add_argument("--max-running", type=int, default=64)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--doors", type=int, default=1, help="processes; 0: all in one")
    options = parser.parse_args()
    with served(
        *(options.size, options.frames, options.max_running, options.port, options.device),
        doors=options.doors,
    ) as url:
        rows = asyncio.run(measure(url, options))
    write_result(
        f"http_load_{options.size}",
        rows,
        device_kind=options.device,
        frames=options.frames,
        doors=options.doors,
    )


if __name__ == "__main__":
    main()
