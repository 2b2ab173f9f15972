"""What is the time to first audio of one stream, and is playback free of gaps?"""

from __future__ import annotations

import argparse
import asyncio

import numpy as np

from benchmarks.measure import TEXTS, arguments, speak, start, write_result
from izwi.inputs.speech import TextMode


async def main(options: argparse.Namespace) -> None:
    """Time single streams, one after the other, in both text modes."""
    bench = start(options)
    await speak(bench, TEXTS[0], 0, "warm-up")
    rows = []
    for mode in TextMode:
        spoken = [
            await speak(bench, text, seed, f"{mode}-{seed}-{turn}", text_mode=mode)
            for turn in range(options.rounds)
            for seed, text in enumerate(TEXTS)
        ]
        first = np.array([one.first_s for one in spoken]) * 1e3
        audible = np.array([one.audible_s for one in spoken]) * 1e3
        rows.append(
            {
                "text_mode": str(mode),
                "requests": len(spoken),
                "first_audio_ms_p50": round(float(np.median(first)), 1),
                "first_audio_ms_p95": round(float(np.percentile(first, 95)), 1),
                "audible_ms_p50": round(float(np.median(audible)), 1),
                "rtf": round(sum(o.total_s for o in spoken) / sum(o.audio_s for o in spoken), 3),
            }
        )
    await bench.engine.stop()
    write_result("first_audio", rows, model=bench.name)


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    asyncio.run(main(parser.parse_args()))
