"""Score the transcriber on noise, reverberation, audio without speech, and two sentences."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.quality.embedded import World, at_16k, gather, spoken, word_error_rate, words
from benchmarks.quality.without_speech import RATE, draw_clips
from izwi.arrays import Float32
from izwi_models.tiny.recipes.speech import Espeak
from izwi_models.tiny.recipes.voices import all_voices

_CLIPS = 500
_TALKERS = 5  # talkers in babble
_REVERBERATION_S = 0.3  # until it is 60 dB down
_DIRECT_DB = 3.0  # direct sound over reverberation
_TELEPHONE_HZ = (300.0, 3400.0)
_PAUSES_S = (0.1, 1.5)


def _at_level(noise: np.ndarray, speech: Float32, ratio_db: float) -> np.ndarray:
    return noise * (speech.std() / (noise.std() + 1e-9) * 10 ** (-ratio_db / 20))


def with_pink_noise(speech: Float32, ratio_db: float, seed: int) -> Float32:
    """Add noise whose power falls with the frequency."""
    hertz = np.fft.rfftfreq(len(speech), 1 / RATE)
    white = np.fft.rfft(np.random.default_rng(seed).standard_normal(len(speech)))
    pink = np.fft.irfft(white / np.sqrt(np.maximum(hertz, 20)), len(speech))
    return (speech + _at_level(pink, speech, ratio_db)).astype(np.float32)


def with_babble(speech: Float32, others: list[Float32], ratio_db: float) -> Float32:
    """Add speech of several others at the same time, repeated."""
    mixed = np.sum([np.resize(other, len(speech)) for other in others], 0)
    return (speech + _at_level(mixed, speech, ratio_db)).astype(np.float32)


def in_a_room(speech: Float32, seed: int) -> Float32:
    """Add the decaying reverberation of a small room."""
    time = np.arange(round(_REVERBERATION_S * RATE)) / RATE
    tail = np.random.default_rng(seed).standard_normal(len(time))
    tail *= np.exp(-6.91 * time / _REVERBERATION_S) * (time > 0.003)
    tail *= 10 ** (-_DIRECT_DB / 20) / np.linalg.norm(tail)
    tail[0] = 1
    return np.convolve(speech, tail)[: len(speech)].astype(np.float32)


def over_telephone(speech: Float32) -> Float32:
    """Filter audio to the band of a telephone."""
    spectrum = np.fft.rfft(speech)
    hertz = np.fft.rfftfreq(len(speech), 1 / RATE)
    spectrum[(hertz < _TELEPHONE_HZ[0]) | (hertz > _TELEPHONE_HZ[1])] = 0
    return np.fft.irfft(spectrum, len(speech)).astype(np.float32)


def pairs_of(first: list[Float32], second: list[Float32]) -> list[Float32]:
    """Join clips of equal index, with 0.1 to 1.5 s of silence between them."""
    draw = np.random.default_rng(0)
    pauses = [np.zeros(round(draw.uniform(*_PAUSES_S) * RATE), np.float32) for _ in first]
    return [np.concatenate(parts) for parts in zip(first, pauses, second, strict=True)]


def unseen_clips(espeak: Espeak, texts: list[str]) -> list[Float32]:
    """Return speech of voices that were not trained, at 16 kHz."""
    voices = [voice for voice in all_voices() if voice.heldout]
    return [at_16k(spoken(espeak, t, voices[i % len(voices)])) for i, t in enumerate(texts)]


async def disturbed_rows(world: World, espeak: Espeak, texts: list[str]) -> list[dict[str, Any]]:
    """Measure the WER in noise, babble, a small room and over the telephone; unseen voices."""
    clean = unseen_clips(espeak, texts)
    others = [
        [clean[(i + 3 * n) % len(clean)] for n in range(1, _TALKERS + 1)] for i in range(len(clean))
    ]
    cases = {
        f"pink noise, {db} dB": [with_pink_noise(x, db, i) for i, x in enumerate(clean)]
        for db in (20, 10)
    }
    cases |= {
        f"babble, {db} dB": [with_babble(x, o, db) for x, o in zip(clean, others, strict=True)]
        for db in (20, 10)
    }
    cases["small room"] = [in_a_room(x, i) for i, x in enumerate(clean)]
    cases["telephone band"] = [over_telephone(x) for x in clean]
    rows = []
    for name, clips in cases.items():
        heard = await gather(clips, lambda _, clip: world.transcribe_16k(clip))
        rate = word_error_rate(zip(texts, heard, strict=True))
        rows.append({"what": f"asr, {name}", "wer_percent": rate, "sentences": len(texts)})
    return rows


async def silence_rows(world: World, _: Espeak, __: list[str]) -> list[dict[str, Any]]:
    """Measure the share of clips without speech that give words, with and without detection."""
    clips = draw_clips(_CLIPS, seed=20)
    rows = []
    for label, detects in (("", True), (", speech detection off", False)):

        async def listen(
            _: int, clip: tuple[str, Float32], detects: bool = detects
        ) -> tuple[str, str]:
            return clip[0], await world.transcribe_16k(clip[1], detects_speech=detects)

        heard = [(kind, text) for kind, text in await gather(clips, listen) if words(text)]
        print("  heard where nothing is said:", heard[:8])
        share = round(100 * len(heard) / len(clips), 2)
        what = f"asr, clips without speech{label}"
        rows.append({"what": what, "with_words_percent": share, "clips": len(clips)})
    return rows


async def pair_rows(world: World, espeak: Espeak, texts: list[str]) -> list[dict[str, Any]]:
    """Measure the WER of two sentences with a pause, and how often the second one is missing.

    Two voices say them, or one does. The second one counts as missing if the transcript lacks more
    words than half of it has.
    """
    following = texts[1:] + texts[:1]
    said = [f"{first} {second}" for first, second in zip(texts, following, strict=True)]
    least = [len(words(a)) + len(words(b)) / 2 for a, b in zip(texts, following, strict=True)]
    clips = unseen_clips(espeak, texts)
    answers = {
        "two sentences in one clip": clips[1:] + clips[:1],
        "two sentences of one voice": unseen_clips(espeak, following),
    }
    rows = []
    for label, second in answers.items():
        pairs = pairs_of(clips, second)
        heard = await gather(pairs, lambda _, clip: world.transcribe_16k(clip))
        missing = [len(words(text)) < count for text, count in zip(heard, least, strict=True)]
        rows.append(
            {
                "what": f"asr, {label}",
                "wer_percent": word_error_rate(zip(said, heard, strict=True)),
                "second_missing_percent": round(100 * float(np.mean(missing)), 2),
                "pairs": len(said),
            }
        )
    return rows
