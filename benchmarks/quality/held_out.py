"""Score the embedded checkpoints on held-out data: speech, transcripts, word times, cloning.

Runs on the CPU; needs espeak-ng's library. izwi-tiny-asr, which was not trained on this speech,
scores it. Word times are compared with those of espeak-ng. If pocketsphinx is installed, it also
scores the named voices.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.measure import RESULTS, write_result
from benchmarks.quality.embedded import World, gather, spoken, uttered, word_error_rate, words
from benchmarks.quality.hearing import disturbed_rows, pair_rows, silence_rows
from benchmarks.quality.people import people_rows
from benchmarks.quality.voices import known_to_both, short_rows, voice_rows
from izwi.arrays import Float32
from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi.inputs.speech import ReferenceClip, TextMode
from izwi_models.tiny.recipes.aligner import known_times
from izwi_models.tiny.recipes.speech import LONGEST_SECONDS, SAMPLE_RATE, Espeak
from izwi_models.tiny.recipes.text import HELDOUT
from izwi_models.tiny.recipes.voices import NAMED, all_voices
from izwi_models.tiny.recipes.voicing import log_correlation, track_pitch

MEASURES = (
    *("transcription", "speech", "cloning", "alignment"),
    *("voices", "short", "disturbed", "silence", "pairs", "people"),
)
_EACH_CLONE = 5  # sentences of each cloned voice
_PAUSE_S = 1.0  # silence before an aligned sentence, or between two


def pitch_row(clips: Sequence[Float32], outputs: Sequence[Float32]) -> dict[str, float]:
    """Correlate the pitch of outputs with that of their clips, over the full band, by YIN.

    Medians are over windows with a clear period; audio with fewer than four has no pitch.
    """
    theirs, ours = (
        [track_pitch(torch.from_numpy(_at_least(x))[None]) for x in group]
        for group in (clips, outputs)
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


async def transcription_rows(
    world: World, espeak: Espeak, texts: list[str]
) -> list[dict[str, Any]]:
    """Return the WER on the synthesizer's speech, for trained and other voices."""
    rows = []
    for label, heldout in (("seen", False), ("unseen", True)):
        voices = [voice for voice in all_voices() if voice.heldout == heldout]
        clips = [spoken(espeak, text, voices[i % len(voices)]) for i, text in enumerate(texts)]
        heard = await gather(clips, lambda _, clip: world.transcribe(clip))
        rate = word_error_rate(zip(texts, heard, strict=True))
        rows.append({"what": f"asr, {label} voices", "wer_percent": rate, "sentences": len(texts)})
    return rows


@dataclass(frozen=True, slots=True)
class Timed:
    """Audio at 24 kHz, with its text.

    Attributes:
        times_ms: Start and end of each word; below 0 if espeak-ng joins it with another word.
    """

    samples: Float32
    text: str
    times_ms: list[float]

    def after(self, silence_s: float) -> Timed:
        """Return the same audio after some silence."""
        silence = np.zeros(round(silence_s * SAMPLE_RATE), np.float32)
        times_ms = [ms + 1000 * silence_s if ms >= 0 else ms for ms in self.times_ms]
        return Timed(np.concatenate([silence, self.samples]), self.text, times_ms)

    def then(self, other: Timed) -> Timed:
        """Return the same audio followed by another's."""
        behind = other.after(len(self.samples) / SAMPLE_RATE)
        samples = np.concatenate([self.samples, other.samples])
        return Timed(samples, f"{self.text} {other.text}", self.times_ms + behind.times_ms)


async def alignment_rows(world: World, espeak: Espeak, texts: list[str]) -> list[dict[str, Any]]:
    """Measure the error of word borders, for trained and other voices.

    Other voices are also aligned after some silence, and two sentences with silence between them.
    Borders inside words that espeak-ng joins have no known time and are skipped.
    """
    said: dict[bool, list[Timed]] = {}
    for heldout in (False, True):
        voices = [voice for voice in all_voices() if voice.heldout == heldout]
        made = [uttered(espeak, text, voices[i % len(voices)]) for i, text in enumerate(texts)]
        said[heldout] = [
            Timed(one.samples.astype(np.float32) / 32768, text, known_times(text, one.words))
            for text, one in zip(texts, made, strict=True)
        ]
    unseen = said[True]
    pairs = [a.then(b.after(_PAUSE_S)) for a, b in zip(unseen[::2], unseen[1::2], strict=False)]
    cases = {
        "seen voices": said[False],
        "unseen voices": unseen,
        f"unseen voices, {_PAUSE_S:.0f} s of silence before": [s.after(_PAUSE_S) for s in unseen],
        f"unseen voices, two sentences and {_PAUSE_S:.0f} s between": pairs,
    }

    async def off_ms(_: int, audio: Timed) -> list[float]:
        found_ms = await world.time(audio.samples, audio.text)
        timed = zip(found_ms, audio.times_ms, strict=True)
        return [abs(found - known) for found, known in timed if known >= 0]

    rows = []
    for label, clips in cases.items():
        taken = [audio for audio in clips if len(audio.samples) <= LONGEST_SECONDS * SAMPLE_RATE]
        errors_ms = np.concatenate(await gather(taken, off_ms))
        rows.append(
            {
                "what": f"alignment, {label}",
                "mean_error_ms": round(float(errors_ms.mean()), 1),
                "within_80_ms_percent": round(100 * float((errors_ms <= 80).mean()), 1),
                "within_160_ms_percent": round(100 * float((errors_ms <= 160).mean()), 1),
                "borders": len(errors_ms),
                "clips": len(taken),
            }
        )
    return rows


async def speech_rows(world: World, espeak: Espeak, texts: list[str]) -> list[dict[str, Any]]:
    """Measure the round-trip WER in both text modes with the named voices, and of espeak-ng."""
    rows, examples = [], []
    for mode in TextMode:

        async def trip(index: int, text: str, mode: TextMode = mode) -> str:
            voice = NAMED[index % len(NAMED)].name
            return await world.transcribe(
                await world.say(text, voice=voice, text_mode=mode, seed=index)
            )

        heard = await gather(texts, trip)
        examples += [
            {"mode": str(mode), "text": t, "heard": h}
            for t, h in list(zip(texts, heard, strict=True))[:6]
        ]
        rate = word_error_rate(zip(texts, heard, strict=True))
        rows.append({"what": f"tts, {mode} text", "wer_percent": rate, "sentences": len(texts)})
    clips = [spoken(espeak, text, NAMED[i % len(NAMED)]) for i, text in enumerate(texts)]
    heard = await gather(clips, lambda _, clip: world.transcribe(clip))
    rate = word_error_rate(zip(texts, heard, strict=True))
    rows.append(
        {"what": "espeak-ng, the same sentences", "wer_percent": rate, "sentences": len(texts)}
    )
    for example in examples:
        print(f"  {example['mode']}: {example['text']!r} -> {example['heard']!r}")
    return rows


async def cloning_rows(world: World, espeak: Espeak, texts: list[str]) -> list[dict[str, Any]]:
    """Measure whether clones follow the pitch and speaker of voices that were not trained.

    Pitch and speaker are those of the first sentence of each clone.
    """
    voices = [voice for voice in all_voices() if voice.heldout]
    clips = [spoken(espeak, texts[i], voice) for i, voice in enumerate(voices)]
    count = len(voices)
    to_say = texts[count : count * (1 + _EACH_CLONE)]

    async def clone(index: int, text: str) -> Float32:
        return await world.say(text, voice=ReferenceClip(clips[index % count]), seed=index)

    everything = await gather(to_say, clone)
    outputs = everything[:count]
    near = np.array(await gather(clips, lambda i, clip: world.embed(clip, f"clip-{i}")))
    made = np.array(await gather(outputs, lambda i, audio: world.embed(audio, f"output-{i}")))
    near, made = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (near, made))
    alike = made @ near.T
    own = np.diag(alike)
    others = np.roll(np.arange(count), 7)  # a fixed other voice for each
    heard = await gather(everything, lambda _, audio: world.transcribe(audio))
    return [
        {
            "what": "cloning, unseen voices",
            "voices": count,
            **pitch_row(clips, outputs),
            "nearer_to_own_percent": round(
                100 * float((own > alike[np.arange(count), others]).mean()), 1
            ),
            "nearer_than_all_pairs_percent": round(
                100 * float((own[:, None] > alike)[~np.eye(count, dtype=bool)].mean()), 1
            ),
            "wer_percent": word_error_rate(zip(to_say, heard, strict=True)),
            "sentences": len(to_say),
        }
    ]


def with_kept(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Append rows that were measured separately; they have their own commit."""
    before = json.loads((RESULTS / "quality.json").read_text(encoding="utf-8"))
    measured = {row["what"] for row in rows}
    kept = [row for row in before["rows"] if row["what"] not in measured]
    return [{**row, "commit": row.get("commit", before["commit"])} for row in kept] + rows


async def main(options: argparse.Namespace) -> None:
    """Print and write all figures."""
    backend = torch_backend("cpu")
    registry = Registry(backend)
    names = [registry.load(name) for name in (options.tts, options.asr, options.aligner)]
    engine = AsyncEngine(Engine(registry.models, backend, EngineConfig()))
    engine.start()
    world, espeak = World(engine, registry, *names), Espeak()
    lines = HELDOUT.read_text(encoding="utf-8").splitlines()
    texts = [line for line in lines if 4 <= len(words(line)) <= 14]
    measures = {
        "transcription": (transcription_rows, texts[: options.asr_sentences]),
        "speech": (speech_rows, texts[: options.tts_sentences]),
        "cloning": (cloning_rows, texts),
        "alignment": (alignment_rows, texts[: options.asr_sentences]),
        "voices": (voice_rows, known_to_both(texts, options.voice_sentences)),
        "short": (short_rows, []),
        "disturbed": (disturbed_rows, texts[: options.asr_sentences]),
        "silence": (silence_rows, []),
        "pairs": (pair_rows, texts),
        "people": (people_rows, texts),
    }
    rows = []
    for name in options.only or measures:
        measure, its_texts = measures[name]
        rows += await measure(world, espeak, its_texts)
    await engine.stop()
    write_result("quality", with_kept(rows) if options.only else rows, models=names)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tts", default="izwi-tiny-tts")
    parser.add_argument("--asr", default="izwi-tiny-asr")
    parser.add_argument("--aligner", default="izwi-tiny-aligner")
    parser.add_argument("--asr-sentences", type=int, default=300, help="also for alignment")
    parser.add_argument("--tts-sentences", type=int, default=200)
    parser.add_argument(
        "--voice-sentences", type=int, default=24, help="sentences of each named voice"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=MEASURES,
        help="measure only these; other rows of the results keep their commit",
    )
    asyncio.run(main(parser.parse_args()))
