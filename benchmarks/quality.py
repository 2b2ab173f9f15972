"""Do the embedded checkpoints speak, listen and follow a voice? Held-out sentences, on the CPU.

Needs espeak-ng's library. Everything goes through the same services as `izwi say` and
`izwi transcribe`; the judge of the speech is izwi-tiny-asr, which never heard it in training.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import soxr

from benchmarks.measure import write_result
from izwi.async_engine import AsyncEngine
from izwi.config import EngineConfig
from izwi.engine import Engine
from izwi.registry import Registry
from izwi.request import Float32, ReferenceClip, SpeechInput, TextMode, TranscriptionInput
from izwi.runner.device import torch_backend
from izwi_api.door import chunks_of
from izwi_api.speech import open_speech
from izwi_api.transcribe import open_transcription
from izwi_models.tiny.recipes.speech import SAMPLE_RATE, Espeak
from izwi_models.tiny.recipes.text import HELDOUT
from izwi_models.tiny.recipes.voices import NAMED, Voice, all_voices

IN_FLIGHT = 8
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class World:
    """The two embedded models behind one engine."""

    engine: AsyncEngine
    registry: Registry
    tts: str
    asr: str

    async def hear(self, samples: Float32) -> str:
        """Transcribe 24 kHz sound."""
        at_16k = soxr.resample(samples, SAMPLE_RATE, 16000)
        ask = TranscriptionInput(at_16k.astype(np.float32))
        transcription = await open_transcription(self.engine, self.registry, self.asr, ask)
        await transcription.finish()
        return transcription.text

    async def say(self, text: str, **ask: Any) -> Float32:
        """Speak; 24 kHz sound."""
        speech = await open_speech(
            self.engine, self.registry, self.tts, SpeechInput(text=text, **ask)
        )
        parts = [chunk.pcm async for chunk in speech.chunks() if chunk.pcm is not None]
        return np.concatenate(parts) if parts else np.zeros(SAMPLE_RATE // 10, np.float32)

    async def embed(self, samples: Float32, name: str) -> Float32:
        """Speaker embedding of a clip."""
        model = self.registry.speech(self.tts)
        request = model.prepare_voice(name, self.tts, samples, None)
        encoded = [
            array
            async for chunk in chunks_of(self.engine.submit(request))
            for array in chunk.encoded
        ]
        return model.read_voice(encoded, None).speaker_embedding


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


def median_f0_hz(samples: Float32, below_hz: float | None) -> float:
    """Median pitch of the voiced windows, by normalised autocorrelation; nan if none is voiced.

    Args:
        samples: 24 kHz sound.
        below_hz: Look at the fundamental alone, in 80 ms windows of what is left below this
            frequency; None looks at all of the sound, in 40 ms windows.
    """
    size, voiced = (960, 0.5) if below_hz is None else (1920, 0.3)
    if below_hz is not None:
        spectrum = np.fft.rfft(samples)
        spectrum /= 1 + (np.fft.rfftfreq(len(samples), 1 / SAMPLE_RATE) / below_hz) ** 8
        samples = np.fft.irfft(spectrum, len(samples)).astype(np.float32)
    hop, low, high = 480, SAMPLE_RATE // 400, SAMPLE_RATE // 60
    found = []
    for start in range(0, len(samples) - size - high, hop):
        window = samples[start : start + size]
        if window.std() < 0.015:
            continue
        stretch = samples[start : start + size + high]
        lagged = np.lib.stride_tricks.sliding_window_view(stretch, size)
        energy = np.sqrt((lagged**2).sum(1) * (window**2).sum() + 1e-9)
        score = (lagged @ window / energy)[low:]
        peaks = np.flatnonzero((score[1:-1] > score[:-2]) & (score[1:-1] >= score[2:])) + 1
        if len(peaks) and score[peaks].max() > voiced:
            # the first peak nearly as high as the best: later ones are multiples of the period
            peak = peaks[np.argmax(score[peaks] > 0.9 * score[peaks].max())]
            found.append(SAMPLE_RATE / (low + peak))
    return float(np.median(found)) if len(found) > 3 else float("nan")


def pitch_correlation(
    clips: Sequence[Float32], outputs: Sequence[Float32], below_hz: float | None
) -> tuple[float, int]:
    """Correlation of log F0 over pairs, and how many pairs have a pitch on both sides."""
    pairs = zip(clips, outputs, strict=True)
    pitch = np.log([(median_f0_hz(a, below_hz), median_f0_hz(b, below_hz)) for a, b in pairs])
    pitch = pitch[np.isfinite(pitch).all(1)]
    return round(float(np.corrcoef(pitch.T)[0, 1]), 3), len(pitch)


async def gather(items: Sequence[T], work: Callable[[int, T], Awaitable[Any]]) -> list[Any]:
    """Run work over items, IN_FLIGHT at a time; results in order."""
    gate = asyncio.Semaphore(IN_FLIGHT)

    async def one(index: int, item: T) -> Any:
        async with gate:
            return await work(index, item)

    return await asyncio.gather(*(one(index, item) for index, item in enumerate(items)))


def spoken(espeak: Espeak, text: str, voice: Voice) -> Float32:
    """One sentence by the synthesiser, 24 kHz."""
    made = espeak.utterance(text, voice, {})
    if made is None:
        raise RuntimeError(f"espeak-ng could not say {text!r}")
    return made.samples.astype(np.float32) / 32768


async def transcription_rows(
    world: World, espeak: Espeak, texts: list[str]
) -> list[dict[str, Any]]:
    """WER on the synthesiser's speech, by voices that were trained on and by others."""
    rows = []
    for label, heldout in (("seen", False), ("unseen", True)):
        voices = [voice for voice in all_voices() if voice.heldout == heldout]
        clips = [spoken(espeak, text, voices[i % len(voices)]) for i, text in enumerate(texts)]
        heard = await gather(clips, lambda _, clip: world.hear(clip))
        rate = word_error_rate(zip(texts, heard, strict=True))
        rows.append({"what": f"asr, {label} voices", "wer_percent": rate, "sentences": len(texts)})
    return rows


async def speech_rows(world: World, espeak: Espeak, texts: list[str]) -> list[dict[str, Any]]:
    """Round-trip WER of both text modes with the named voices, and of espeak-ng in their place."""
    rows, examples = [], []
    for mode in TextMode:

        async def trip(index: int, text: str, mode: TextMode = mode) -> str:
            voice = NAMED[index % len(NAMED)].name
            return await world.hear(await world.say(text, voice=voice, text_mode=mode, seed=index))

        heard = await gather(texts, trip)
        examples += [
            {"mode": str(mode), "text": t, "heard": h}
            for t, h in list(zip(texts, heard, strict=True))[:6]
        ]
        rate = word_error_rate(zip(texts, heard, strict=True))
        rows.append({"what": f"tts, {mode} text", "wer_percent": rate, "sentences": len(texts)})
    clips = [spoken(espeak, text, NAMED[i % len(NAMED)]) for i, text in enumerate(texts)]
    heard = await gather(clips, lambda _, clip: world.hear(clip))
    rate = word_error_rate(zip(texts, heard, strict=True))
    rows.append(
        {"what": "espeak-ng, the same sentences", "wer_percent": rate, "sentences": len(texts)}
    )
    for example in examples:
        print(f"  {example['mode']}: {example['text']!r} -> {example['heard']!r}")
    return rows


async def cloning_rows(world: World, espeak: Espeak, texts: list[str]) -> list[dict[str, Any]]:
    """Does the output follow the pitch and the speaker of clips of voices never trained on?"""
    voices = [voice for voice in all_voices() if voice.heldout]
    clips = [spoken(espeak, texts[i], voice) for i, voice in enumerate(voices)]

    async def clone(index: int, clip: Float32) -> Float32:
        text = texts[len(voices) + index]
        return await world.say(text, voice=ReferenceClip(clip), seed=index)

    outputs = await gather(clips, clone)
    fundamental, with_fundamental = pitch_correlation(clips, outputs, 300.0)
    full_band, with_full_band = pitch_correlation(clips, outputs, None)
    near = np.array(await gather(clips, lambda i, clip: world.embed(clip, f"clip-{i}")))
    made = np.array(await gather(outputs, lambda i, sound: world.embed(sound, f"output-{i}")))
    near, made = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (near, made))
    alike = made @ near.T
    own = np.diag(alike)
    others = np.roll(np.arange(len(voices)), 7)  # a fixed other voice for each
    heard = await gather(outputs, lambda _, sound: world.hear(sound))
    return [
        {
            "what": "cloning, unseen voices",
            "voices": len(voices),
            "log_f0_correlation_fundamental": fundamental,
            "voices_with_fundamental": with_fundamental,
            "log_f0_correlation_full_band": full_band,
            "voices_with_pitch_full_band": with_full_band,
            "nearer_to_own_percent": round(
                100 * float((own > alike[np.arange(len(voices)), others]).mean()), 1
            ),
            "nearer_than_all_pairs_percent": round(
                100 * float((own[:, None] > alike)[~np.eye(len(voices), dtype=bool)].mean()), 1
            ),
            "wer_percent": word_error_rate(
                zip(texts[len(voices) : 2 * len(voices)], heard, strict=True)
            ),
        }
    ]


async def main(options: argparse.Namespace) -> None:
    """Print and write all figures."""
    backend = torch_backend("cpu")
    registry = Registry(backend)
    tts, asr = registry.load(options.tts), registry.load(options.asr)
    engine = AsyncEngine(Engine(registry.models, backend.ops, EngineConfig()))
    engine.start()
    world, espeak = World(engine, registry, tts, asr), Espeak()
    lines = HELDOUT.read_text(encoding="utf-8").splitlines()
    texts = [line for line in lines if 4 <= len(words(line)) <= 14]
    rows = await transcription_rows(world, espeak, texts[: options.asr_sentences])
    rows += await speech_rows(world, espeak, texts[: options.tts_sentences])
    rows += await cloning_rows(world, espeak, texts)
    await engine.stop()
    write_result("quality", rows, models=[tts, asr])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tts", default="izwi-tiny-tts")
    parser.add_argument("--asr", default="izwi-tiny-asr")
    parser.add_argument("--asr-sentences", type=int, default=300)
    parser.add_argument("--tts-sentences", type=int, default=200)
    asyncio.run(main(parser.parse_args()))
