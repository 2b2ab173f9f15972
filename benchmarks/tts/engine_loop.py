"""Measure the engine's throughput for c streams, and check that batching changes no output.

Uses the embedded voice without HTTP. Codes of equal seeds are compared between the first and the
last level. `closed_loop` measures a whole server.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

import numpy as np

from benchmarks.measure import TEXTS, Bench, Spoken, arguments, speak, start, write_result


async def run_level(
    bench: Bench, concurrency: int, rounds: int
) -> tuple[dict[str, Any], list[Spoken]]:
    """Keep `concurrency` requests in flight until each slot has run its rounds."""
    spoken: dict[int, Spoken] = {}

    async def slot(place: int) -> None:
        for turn in range(rounds):
            number = turn * concurrency + place
            text = TEXTS[number % len(TEXTS)]
            spoken[number] = await speak(bench, text, number, f"{concurrency}-{number}")

    began = time.perf_counter()
    await asyncio.gather(*(slot(place) for place in range(concurrency)))
    wall_s = time.perf_counter() - began
    done = [spoken[number] for number in sorted(spoken)]
    audio_s = sum(one.audio_s for one in done)
    row = {
        "concurrency": concurrency,
        "requests": len(done),
        "audio_s_per_s": round(audio_s / wall_s, 3),
        "rtf_per_stream_p50": round(float(np.median([o.total_s / o.audio_s for o in done])), 3),
        "first_audio_ms_p50": round(float(np.median([o.first_s for o in done])) * 1e3, 1),
        "first_audio_ms_p95": round(float(np.percentile([o.first_s for o in done], 95)) * 1e3, 1),
    }
    return row, done


async def main(options: argparse.Namespace) -> None:
    """Measure every level; compare the codes of equal seeds between the first and the last."""
    bench = start(options)
    await speak(bench, TEXTS[0], 0, "warm-up")
    rows, codes = [], {}
    for concurrency in options.concurrency:
        row, done = await run_level(bench, concurrency, max(1, options.requests // concurrency))
        rows.append(row)
        codes[concurrency] = [one.codes for one in done]
    first, last = codes[options.concurrency[0]], codes[options.concurrency[-1]]
    pairs = list(zip(first, last, strict=False))
    same = sum(np.array_equal(a, b) for a, b in pairs)
    await bench.engine.stop()
    write_result(
        "engine_loop",
        rows,
        model=bench.name,
        speedup=round(rows[-1]["audio_s_per_s"] / rows[0]["audio_s_per_s"], 2),
        same_codes=f"{same} of {len(pairs)}",
    )


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--requests", type=int, default=16, help="requests per level")
    asyncio.run(main(parser.parse_args()))
