"""The embedded transcriber hears a voice that sounds like a person.

The clip in sounds/ was made with Kokoro-82M (Apache License 2.0).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile
import soxr

from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi.inputs.speech import TranscriptionInput
from izwi_api.services.models.served import ServedModels
from izwi_api.services.transcription.transcribe import open_transcription

CLIP = Path(__file__).parent / "sounds" / "kokoro-after-all.opus"
SAID = "After all, people are not the case."
ASR = "izwi-tiny-asr"


async def test_a_voice_like_a_person_is_heard() -> None:
    backend = torch_backend("cpu", "float32")
    registry = Registry(backend)
    registry.load(ASR)
    engine = AsyncEngine(Engine(registry.models, backend, EngineConfig()))
    engine.start()
    samples, rate = soundfile.read(CLIP, dtype="float32")
    clip = soxr.resample(samples, rate, 16_000).astype(np.float32)
    transcription = await open_transcription(
        ServedModels(engine, registry).transcription(ASR), TranscriptionInput(clip)
    )
    await transcription.finish()
    await engine.stop()
    assert transcription.text == SAID
