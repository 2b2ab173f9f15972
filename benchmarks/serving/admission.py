"""Does a limit of the predicted wait keep first audio short when four times too much arrives?

Two engines are measured idle, with one listener at a time, and in a closed loop, whose rate is what
they sustain. Then Poisson arrivals come at a multiple of this rate, first without a limit, then to
a server with `--max-wait-ms`, a multiple of the 95th percentile of the idle engines. The first
arrivals teach the router what the engines take, so the second half is listed by itself, too.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from typing import Any

from benchmarks.measure import write_result
from benchmarks.random_checkpoint import EMBEDDED, SPEAKING
from benchmarks.serving.closed_loop import run_level
from benchmarks.serving.http_server import served_by_replicas
from benchmarks.serving.listeners import connect, listen, milliseconds

FRAME_S, MS = 0.08, 1e3


async def idle(url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one listener after the other."""
    async with connect(url, 1) as client:
        for number in range(4):  # warms both engines up
            await listen(client, options.size, number)
        first_s = [
            (await listen(client, options.size, number)).audible_s
            for number in range(options.listeners)
        ]
    return {"measured": "idle", "accepted": len(first_s), **_percentiles(first_s)}


async def overload(url: str, options: argparse.Namespace, per_s: float) -> dict[str, Any]:
    """Send Poisson arrivals; some are refused."""
    times, at_s = random.Random(1), 0.0
    first_s: dict[int, float] = {}
    refusals: list[str] = []
    failures: list[str] = []
    gaps = 0
    async with connect(url, 2048) as client:

        async def one(number: int, at_s: float) -> None:
            nonlocal gaps
            await asyncio.sleep(at_s)
            try:
                played = await listen(client, options.size, number)
            except (RuntimeError, TimeoutError) as error:  # after 120 s a listener gives up
                is_refusal = str(error).startswith(("503", "429"))
                (refusals if is_refusal else failures).append(str(error))
            else:
                first_s[number] = played.audible_s
                gaps += played.gap_s > 0

        tasks = []
        for number in range(options.arrivals):
            at_s += times.expovariate(per_s)
            tasks.append(asyncio.create_task(one(number, at_s)))
        await asyncio.gather(*tasks)
    later = [first_s[number] for number in first_s if number >= options.arrivals // 2]
    return {
        "measured": "overload",
        "per_s": round(per_s, 2),
        "accepted": len(first_s),
        "refused": len(refusals),
        "failed": len(failures),
        "with_underruns": gaps,
        **_percentiles(list(first_s.values())),
        "second_half": {"accepted": len(later), **_percentiles(later)},
    }


def _percentiles(first_s: list[float]) -> dict[str, Any]:
    return {f"ttfa_ms_p{percent}": milliseconds(first_s, percent) for percent in (50, 95)}


async def unlimited(url: str, options: argparse.Namespace) -> tuple[list[dict[str, Any]], float]:
    """Return the rows without a limit, and the rate of the overload."""
    alone = await idle(url, options)
    closed = await run_level(url, options.size, options.streams, options.rounds)
    per_s = options.times * closed["audio_s_per_s"] / (options.frames * FRAME_S)
    rows = [alone, {"measured": "closed", **closed}]
    return [*rows, {"max_wait_ms": 0, **await overload(url, options, per_s)}], per_s


async def limited(
    url: str, options: argparse.Namespace, per_s: float, max_wait_ms: float
) -> list[dict[str, Any]]:
    """Return the rows with a limit; idle again, because other work may have come or gone."""
    again = await idle(url, options)
    row = await overload(url, options, per_s)
    ratio = row["second_half"]["ttfa_ms_p95"] / again["ttfa_ms_p95"]
    return [again, {"max_wait_ms": round(max_wait_ms, 1), **row, "p95_of_idle": round(ratio, 2)}]


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SPEAKING, default=EMBEDDED)
    parser.add_argument("--devices", default="cpu,cpu")
    parser.add_argument("--frames", type=int, default=52, help="frames of an utterance")
    parser.add_argument("--streams", type=int, default=8, help="of the closed loop")
    parser.add_argument("--running", type=int, default=64, help="sequences of each device at most")
    parser.add_argument("--rounds", type=int, default=2, help="of each listener of the closed loop")
    parser.add_argument("--listeners", type=int, default=40, help="of the idle engines")
    parser.add_argument("--arrivals", type=int, default=400)
    parser.add_argument("--times", type=float, default=4.0, help="of what the engines sustain")
    parser.add_argument("--limit", type=float, default=1.3, help="of the idle p95")
    parser.add_argument("--api-servers", type=int, default=1, help="processes for HTTP")
    parser.add_argument("--note", default="", help="what else ran on the machine")
    parser.add_argument("--port", type=int, default=8100)
    options = parser.parse_args()
    shape = options.size, options.frames, options.running, options.port
    devices = options.devices.split(",")
    num_servers = options.api_servers
    with served_by_replicas(*shape, devices, num_servers) as url:
        rows, per_s = asyncio.run(unlimited(url, options))
    max_wait_ms = options.limit * rows[0]["ttfa_ms_p95"]
    with served_by_replicas(*shape, devices, num_servers, max_wait_ms=max_wait_ms) as url:
        rows += asyncio.run(limited(url, options, per_s, max_wait_ms))
    write_result(f"admission_{options.size}", rows, devices=devices, note=options.note)


if __name__ == "__main__":
    main()
