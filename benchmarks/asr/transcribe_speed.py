"""How much faster than real time does one transcription run?"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

import numpy as np
import soxr

from benchmarks.measure import TEXTS, arguments, write_result
from izwi.audio.decode import decode_audio
from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi.inputs.speech import SpeechInput, TranscriptionInput
from izwi_api.services.models.served import ServedModels
from izwi_api.services.speech.synthesis import open_speech


async def main(options: argparse.Namespace) -> None:
    """Transcribe a file, or speech of the embedded voice, repeatedly."""
    backend = torch_backend(options.device, options.dtype)
    registry = Registry(backend)
    name = registry.load(options.model)
    voice = None if options.audio else registry.load("izwi-tiny-tts")
    model = registry.transcription(name)
    engine = AsyncEngine(Engine(registry.models, backend, EngineConfig()))
    engine.start()
    if voice is None:
        samples = decode_audio(Path(options.audio), 16000)
    else:
        speech = await open_speech(
            ServedModels(engine, registry).speech(voice), SpeechInput(" ".join(TEXTS[:4]))
        )
        pcm = [chunk.pcm async for chunk in speech.output() if chunk.pcm is not None]
        samples = soxr.resample(np.concatenate(pcm), speech.sample_rate, 16000)
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
    write_result("transcribe_speed", [row], model=name, audio=options.audio or "izwi-tiny-tts")


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.set_defaults(model="izwi-tiny-asr")
    parser.add_argument("--audio", help="audio file; default: the embedded voice")
    parser.add_argument("--rounds", type=int, default=5)
    asyncio.run(main(parser.parse_args()))
