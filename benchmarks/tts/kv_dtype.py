"""What do 8-bit keys and values save, and what do they cost in accuracy and time?

The embedded models speak and transcribe with each kind of pages. Also reports the bytes of one
position of Qwen3-TTS 1.7B.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import soxr

from benchmarks.measure import TEXTS, arguments, write_result
from izwi.backends.torch.backend import DTYPES, torch_backend
from izwi.backends.torch.kv import bytes_per_page
from izwi.checkpoints.registry import Registry
from izwi.config import KV_DTYPES, EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi.inputs.speech import SpeechInput, TranscriptionInput
from izwi.model.layers import KVSpec
from izwi_api.services.models.served import ServedModels
from izwi_api.services.speech.synthesis import open_speech
from izwi_api.services.transcription.transcribe import open_transcription

LARGE = KVSpec(num_layers=28, num_kv_heads=8, head_dim=128)


class Voice:
    """The embedded models behind one engine, with one dtype of pages."""

    def __init__(self, registry: Registry, engine: Engine):
        self.registry, self.engine = registry, AsyncEngine(engine)
        self.tts, self.asr = registry.names()

    async def say(self, text: str) -> tuple[list[list[int]], np.ndarray[Any, Any]]:
        """Speak a text greedily; return codes and 24 kHz audio."""
        ask = SpeechInput(text=text, voice=None, temperature=0.0)
        speech = await open_speech(ServedModels(self.engine, self.registry).speech(self.tts), ask)
        codes: list[list[int]] = []
        audio = []
        async for chunk in speech.output():
            codes += chunk.entries.tolist()
            if chunk.pcm is not None:
                audio.append(chunk.pcm)
        return codes, np.concatenate(audio)

    async def transcribe(self, audio: np.ndarray[Any, Any]) -> str:
        """Transcribe 24 kHz audio."""
        samples = soxr.resample(audio, 24_000, 16_000).astype(np.float32)
        ask = TranscriptionInput(samples)
        transcription = await open_transcription(
            ServedModels(self.engine, self.registry).transcription(self.asr), ask
        )
        await transcription.finish()
        return transcription.text


async def measure(options: Any) -> list[dict[str, Any]]:
    """Measure one row for each dtype."""
    backend = torch_backend(options.device, options.dtype)
    registry = Registry(backend)
    for source in (options.model, "izwi-tiny-asr"):
        registry.load(source)
    plain: list[tuple[list[list[int]], np.ndarray[Any, Any]]] = []
    heard: list[str] = []
    rows: list[dict[str, Any]] = []
    for kv_dtype in KV_DTYPES:
        voice = Voice(registry, Engine(registry.models, backend, EngineConfig(kv_dtype=kv_dtype)))
        voice.engine.start()
        began = time.perf_counter()
        spoken = [await voice.say(text) for text in TEXTS]
        seconds = time.perf_counter() - began
        plain = plain or spoken
        # the same audio for all, so that only the transcriber's pages differ
        texts = [await voice.transcribe(audio) for _, audio in plain]
        heard = heard or texts
        await voice.engine.stop()
        same = [
            float(np.mean([a == b for a, b in zip(ours, theirs, strict=False)]))
            for (ours, _), (theirs, _) in zip(spoken, plain, strict=True)
        ]
        bytes_large = bytes_per_page(LARGE, 1, DTYPES["bfloat16"], kv_dtype)
        rows.append(
            {
                "kv_dtype": kv_dtype,
                "bytes_per_position_1.7b_bf16": bytes_large,
                "frames_equal_percent": round(100 * float(np.mean(same)), 1),
                "transcripts_equal": sum(a == b for a, b in zip(texts, heard, strict=True)),
                "texts": len(TEXTS),
                "speaking_seconds": round(seconds, 2),
            }
        )
    return rows


if __name__ == "__main__":
    write_result("kv_dtype", asyncio.run(measure(arguments(__doc__).parse_args())))
