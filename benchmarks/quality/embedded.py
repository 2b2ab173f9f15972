"""Run the embedded checkpoints in one engine, and score their speech and transcripts.

Everything goes through the same services as `izwi say`, `izwi transcribe` and `izwi align`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import soxr

from izwi.arrays import Float32
from izwi.checkpoints.registry import Registry
from izwi.engine.async_engine import AsyncEngine
from izwi.inputs.speech import AlignmentInput, SpeechInput, TranscriptionInput
from izwi_api.services.context import chunks_of
from izwi_api.services.models.served import ServedModels
from izwi_api.services.speech.synthesis import open_speech
from izwi_api.services.transcription.align import find_aligner
from izwi_api.services.transcription.transcribe import PieceOptions, open_transcription
from izwi_models.tiny.recipes.speech import SAMPLE_RATE, Espeak, Utterance
from izwi_models.tiny.recipes.voices import Voice

IN_FLIGHT = 8
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class World:
    """The three embedded models behind one engine."""

    engine: AsyncEngine
    registry: Registry
    tts: str
    asr: str
    aligner: str

    async def time(self, samples: Float32, text: str) -> list[float]:
        """Return start and end of each word in 24 kHz audio, in ms."""
        aligner = find_aligner(ServedModels(self.engine, self.registry), self.aligner)
        (words,) = await aligner.align([AlignmentInput(at_16k(samples), text)])
        return [1000 * time_s for word in words for time_s in (word.start_s, word.end_s)]

    async def transcribe(self, samples: Float32) -> str:
        """Transcribe 24 kHz audio."""
        return await self.transcribe_16k(at_16k(samples))

    async def transcribe_16k(self, samples: Float32, *, detects_speech: bool = True) -> str:
        """Transcribe 16 kHz audio."""
        ask = TranscriptionInput(samples)
        transcription = await open_transcription(
            ServedModels(self.engine, self.registry).transcription(self.asr),
            ask,
            PieceOptions(detects_speech=detects_speech),
        )
        await transcription.finish()
        return transcription.text

    async def say(self, text: str, **ask: Any) -> Float32:
        """Speak a text; return (n,) float32 at 24 kHz."""
        speech = await open_speech(
            ServedModels(self.engine, self.registry).speech(self.tts), SpeechInput(text=text, **ask)
        )
        parts = [chunk.pcm async for chunk in speech.output() if chunk.pcm is not None]
        return np.concatenate(parts) if parts else np.zeros(SAMPLE_RATE // 10, np.float32)

    async def embed(self, samples: Float32, name: str) -> Float32:
        """Return the speaker embedding of a clip."""
        model = self.registry.speech(self.tts)
        request = model.prepare_voice(name, self.tts, samples, None)
        encoded = [
            array
            async for chunk in chunks_of(self.engine.submit(request))
            for array in chunk.encoded
        ]
        return model.read_voice(encoded, None).speaker_embedding


def at_16k(samples: Float32) -> Float32:
    """Resample (n,) samples from 24 kHz to 16 kHz."""
    resampled: Float32 = soxr.resample(samples, SAMPLE_RATE, 16000).astype(np.float32)
    return resampled


def words(text: str) -> list[str]:
    """Lower case, letters and apostrophes only."""
    return re.sub(r"[^a-z' ]", " ", text.lower()).split()


def errors(truth: Sequence[str], heard: Sequence[str]) -> int:
    """Edit distance in words."""
    row = list(range(len(heard) + 1))
    for i, expected in enumerate(truth, 1):
        diagonal, row[0] = row[0], i
        for j, found in enumerate(heard, 1):
            diagonal, row[j] = (
                row[j],
                min(row[j] + 1, row[j - 1] + 1, diagonal + (expected != found)),
            )
    return row[-1]


def word_error_rate(pairs: Iterable[tuple[str, str]]) -> float:
    """Per cent over all words of (truth, heard) pairs."""
    split = [(words(truth), words(heard)) for truth, heard in pairs]
    total = sum(len(truth) for truth, _ in split)
    return round(100 * sum(errors(truth, heard) for truth, heard in split) / total, 2)


async def gather(items: Sequence[T], work: Callable[[int, T], Awaitable[Any]]) -> list[Any]:
    """Run work on items, IN_FLIGHT at a time; return the results in order."""
    gate = asyncio.Semaphore(IN_FLIGHT)

    async def one(index: int, item: T) -> Any:
        async with gate:
            return await work(index, item)

    return await asyncio.gather(*(one(index, item) for index, item in enumerate(items)))


def uttered(espeak: Espeak, text: str, voice: Voice) -> Utterance:
    """Speak one sentence with the synthesizer; also return the times of its words."""
    made = espeak.utterance(text, voice, {})
    if made is None:
        raise RuntimeError(f"espeak-ng could not say {text!r}")
    return made


def spoken(espeak: Espeak, text: str, voice: Voice) -> Float32:
    """Speak one sentence with the synthesizer; return (n,) samples at 24 kHz."""
    return uttered(espeak, text, voice).samples.astype(np.float32) / 32768
