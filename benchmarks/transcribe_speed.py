"""How much faster than real time does one transcription run?"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

import numpy as np

from benchmarks.measure import arguments, write_result
from izwi.async_engine import AsyncEngine
from izwi.audio.decode import decode_audio
from izwi.config import EngineConfig
from izwi.engine import Engine
from izwi.registry import Registry
from izwi.request import TranscriptionInput
from izwi.runner.device import torch_backend


async def main(options: argparse.Namespace) -> None:
    """Transcribe a file (or noise) again and again, alone."""
    backend = torch_backend(options.device, options.dtype)
    registry = Registry(backend)
    name = registry.load(options.model)
    model = registry.transcription(name)
    engine = AsyncEngine(Engine(registry.models, backend.ops, EngineConfig()))
    engine.start()
    if options.audio:
        samples = decode_audio(Path(options.audio), 16000)
    else:
        samples = (np.random.default_rng(0).standard_normal(16000 * 6) * 0.1).astype(np.float32)
    times = []
    for turn in range(options.rounds + 1):
        began = time.perf_counter()
        for start, stop in model.split_audio(samples):
            ask = TranscriptionInput(samples[start:stop])
            request = model.prepare_transcription(f"{turn}-{start}", name, ask)
            async for _ in engine.submit(request):
                pass
        times.append(time.perf_counter() - began)
    await engine.stop()
    audio_s = len(samples) / 16000
    median = float(np.median(times[1:]))  # the first one warms up
    row = {
        "audio_s": round(audio_s, 2),
        "median_s": round(median, 3),
        "rtf": round(median / audio_s, 4),
    }
    write_result("transcribe_speed", [row], model=name, audio=str(options.audio or "noise"))


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.set_defaults(model="izwi-tiny-asr")
    parser.add_argument("--audio", help="a sound file; noise if none is given")
    parser.add_argument("--rounds", type=int, default=5)
    asyncio.run(main(parser.parse_args()))
