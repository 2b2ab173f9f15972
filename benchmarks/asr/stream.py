"""Is the cost of live transcription constant over a long recording?

Audio is fed chunk by chunk, each as soon as the last one is transcribed. Every minute has the same
speech at the same times over different faint noise, so that minutes are equally hard and never
cached. The engine's caches are small enough to be full after the first minute. Reports, by minute,
processor and wall time per second of audio, and the memory of the process.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import soxr

from benchmarks.measure import TEXTS, arguments, write_result
from izwi.arrays import Float32
from izwi.audio.decode import decode_audio
from izwi.backends.torch.backend import TorchBackend, torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi.inputs.speech import SpeechInput
from izwi_api.services.models.served import ServedModels
from izwi_api.services.speech.synthesis import open_speech
from izwi_api.services.transcription.live import (
    LiveTranscription,
    SegmentText,
    open_live_transcription,
)

RATE = 16_000
MINUTE = 60 * RATE
PLACE = MINUTE // 8  # two sentences and a pause
NOISE = 10 ** (-60 / 20)


async def main(options: argparse.Namespace) -> None:
    """Stream one minute of speech repeatedly, and measure each time."""
    backend = torch_backend(options.device, options.dtype)
    minute = await one_minute(backend, options.audio)
    registry = Registry(backend)
    name = registry.load(options.model)
    config = EngineConfig(kv_bytes=options.kv_mib << 20, encoded_bytes=1 << 22, host_bytes=0)
    engine = AsyncEngine(Engine(registry.models, backend, config))
    engine.start()
    async with await open_live_transcription(
        ServedModels(engine, registry).transcription(name)
    ) as warm:
        await warm.feed(minute[: 20 * RATE])
        await warm.finish()
    rows = []
    async with await open_live_transcription(
        ServedModels(engine, registry).transcription(name), chunk_s=options.chunk_s
    ) as live:
        for number in range(1, options.minutes + 1):
            row = await one_row(live, noisy(minute, seed=number), options.chunk_s)
            rows.append({"minute": number, **row})
        await live.finish()
    await engine.stop()
    last_to_first = rows[-1]["cpu_ms_per_audio_s"] / rows[0]["cpu_ms_per_audio_s"]
    write_result(
        "asr_stream",
        rows,
        model=name,
        audio=options.audio or "izwi-tiny-tts",
        chunk_s=options.chunk_s,
        last_to_first=round(last_to_first, 3),
        rss_growth_mib=round(rows[-1]["rss_mib"] - rows[0]["rss_mib"], 1),
    )


async def one_row(live: LiveTranscription, minute: Float32, chunk_s: float) -> dict[str, Any]:
    """Stream one minute; return its cost."""
    size, words, segments = round(chunk_s * RATE), 0, 0
    slowest_s = 0.0
    began, cpu_began = time.perf_counter(), time.process_time()
    for start in range(0, len(minute), size):
        fed_s = time.perf_counter()
        await live.feed(minute[start : start + size])
        await live.caught_up()
        slowest_s = max(slowest_s, time.perf_counter() - fed_s)
        for event in live.unread():
            if isinstance(event, SegmentText):
                segments += 1
                words += len(event.text.split())
    audio_ms = len(minute) / RATE / 1000
    return {
        "cpu_ms_per_audio_s": round((time.process_time() - cpu_began) / audio_ms, 1),
        "wall_ms_per_audio_s": round((time.perf_counter() - began) / audio_ms, 1),
        "slowest_chunk_ms": round(slowest_s * 1000, 1),
        "rss_mib": round(resident_mib(), 1),
        "segments": segments,
        "words": words,
    }


async def one_minute(backend: TorchBackend, path: str | None) -> Float32:
    """Return a minute of speech at 16 kHz: a file repeated, or two embedded sentences repeated."""
    if path is not None:
        return np.resize(decode_audio(Path(path), RATE), MINUTE)
    registry = Registry(backend)
    voice = registry.load("izwi-tiny-tts")
    engine = AsyncEngine(Engine(registry.models, backend, EngineConfig(kv_bytes=1 << 26)))
    engine.start()
    minute = np.zeros(MINUTE, np.float32)
    for place in range(8):
        text = " ".join(TEXTS[2 * (place % 4) : 2 * (place % 4) + 2])
        speech = await open_speech(
            ServedModels(engine, registry).speech(voice), SpeechInput(text, seed=place)
        )
        pcm = [chunk.pcm async for chunk in speech.output() if chunk.pcm is not None]
        said = soxr.resample(np.concatenate(pcm), speech.sample_rate, RATE)[: PLACE - RATE // 2]
        minute[place * PLACE : place * PLACE + len(said)] = said
    await engine.stop()
    return minute


def noisy(minute: Float32, seed: int) -> Float32:
    """Return the same speech over different noise."""
    noise = np.random.default_rng(seed).standard_normal(len(minute), dtype=np.float32)
    mixed: Float32 = minute + np.float32(NOISE) * noise
    return mixed


def resident_mib() -> float:
    """Return the memory of the process in use; Linux only."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    kib = next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1]
    return int(kib) / 1024


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.set_defaults(model="izwi-tiny-asr")
    parser.add_argument("--audio", help="audio file; default: the embedded voice")
    parser.add_argument("--kv-mib", type=int, default=16, help="memory for keys and values")
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--chunk-s", type=float, default=2.0)
    asyncio.run(main(parser.parse_args()))
