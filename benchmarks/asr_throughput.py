"""How many seconds of sound does a published size write down in a second, so many clips at a time?

Random weights; every clip gets as many tokens as speech of its length usually does. Features are
computed on the host, and everything between the samples and the last token counts.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.measure import write_result
from benchmarks.random_checkpoint import LISTENING, load_listening
from izwi.async_engine import AsyncEngine
from izwi.config import EngineConfig
from izwi.engine import Engine
from izwi.model import TranscriptionModel
from izwi.request import TranscriptionInput

_TOKENS_PER_S = 3.5  # of English speech, and the prefix of an answer
_RATE = 16_000


async def transcribe(
    engine: AsyncEngine, model: TranscriptionModel, name: str, seconds: float, number: int
) -> float:
    """Write one clip down; seconds that it took."""
    noise = np.random.default_rng(number).standard_normal(round(seconds * _RATE))
    ask = TranscriptionInput((0.1 * noise).astype(np.float32))
    began = time.perf_counter()
    request = await asyncio.to_thread(model.prepare_transcription, f"c{number}", name, ask)
    tokens = round(_TOKENS_PER_S * seconds) + 4
    request = replace(request, min_entries=tokens + 1, max_entries=tokens)
    async for chunk in engine.submit(request):
        if chunk.error is not None:
            raise chunk.error
    return time.perf_counter() - began


async def run_level(
    engine: AsyncEngine, model: TranscriptionModel, name: str, clips: int, options: Any
) -> dict[str, Any]:
    """Keep so many clips in work."""
    taken: list[float] = []
    rounds = max(2, options.clips // clips)

    async def slot(place: int) -> None:
        for turn in range(rounds):
            number = clips * 10_000 + turn * clips + place
            one = await transcribe(engine, model, name, options.seconds, number)
            taken.append(one)

    began = time.perf_counter()
    await asyncio.gather(*(slot(place) for place in range(clips)))
    wall = time.perf_counter() - began
    return {
        "loop": "closed",
        "streams": clips,
        "clips": len(taken),
        "x_real_time": round(len(taken) * options.seconds / wall, 1),
        "clip_ms_p50": round(float(np.median(taken)) * 1e3, 1),
        "clip_ms_p95": round(float(np.percentile(taken, 95)) * 1e3, 1),
    }


async def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    registry, backend = load_listening(options.size, options.device, options.dtype)
    config = EngineConfig(max_running=max(options.streams))
    engine = AsyncEngine(Engine(registry.models, backend.ops, config))
    engine.start()
    model, rows = registry.transcription(options.size), []
    for clips in options.streams:
        warm_up = argparse.Namespace(seconds=options.seconds, clips=0)
        await run_level(engine, model, options.size, clips, warm_up)
        rows.append(await run_level(engine, model, options.size, clips, options))
    await engine.stop()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=LISTENING, default="asr-1.7b")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--clips", type=int, default=256, help="per level, at least")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each clip")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    rows = asyncio.run(measure(options))
    name = "asr_throughput" if options.size == "asr-1.7b" else f"asr_throughput_{options.size}"
    write_result(name, rows, size=options.size, seconds=options.seconds)


if __name__ == "__main__":
    main()
