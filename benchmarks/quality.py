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
import torch

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
from izwi_models.tiny.recipes.voicing import log_correlation, track_pitch

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


def pitch_row(clips: Sequence[Float32], outputs: Sequence[Float32]) -> dict[str, float]:
    """Does the pitch of the outputs follow that of the clips, over the full band, by YIN?

    Medians are over the windows with a clear period; a sound with fewer than four has no pitch.
    """
    theirs, ours = (
        [track_pitch(torch.from_numpy(_at_least(x))[None]) for x in sounds]
        for sounds in (clips, outputs)
    )
    correlation, count = log_correlation(
        *([t.median_f0_hz()[0] for t in x] for x in (theirs, ours))
    )
    audible, _ = log_correlation(*([t.median_f0_hz(False)[0] for t in x] for x in (theirs, ours)))
    voiced, wanted = (
        100 * float(np.mean([float(t.voiced.sum() / t.audible.sum().clamp_min(1)) for t in x]))
        for x in (ours, theirs)
    )
    return {
        "log_f0_correlation": round(correlation, 3),
        "voices_with_pitch": count,
        "log_f0_correlation_all_audible": round(audible, 3),
        "voiced_percent": round(voiced, 1),
        "voiced_in_clips_percent": round(wanted, 1),
    }


def _at_least(samples: Float32, count: int = SAMPLE_RATE // 4) -> Float32:
    return np.pad(samples, (0, max(0, count - len(samples))))


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
            **pitch_row(clips, outputs),
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
