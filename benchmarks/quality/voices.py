"""Score each named voice for intelligibility, and compare it with espeak-ng on the same text.

Two judges: izwi-tiny-asr, and, if installed, pocketsphinx with a closed list of words.
"""

from __future__ import annotations

import asyncio
import importlib.util
from typing import Any

import numpy as np

from benchmarks.quality.embedded import (
    World,
    at_16k,
    errors,
    gather,
    spoken,
    word_error_rate,
    words,
)
from benchmarks.quality.voice_sound import figures, mean_of
from izwi.arrays import Float32
from izwi_models.tiny.recipes.short import HELDOUT_SHORT
from izwi_models.tiny.recipes.speech import Espeak
from izwi_models.tiny.recipes.voices import NAMED

Clips = dict[str, list[Float32]]


def known_to_both(texts: list[str], count: int) -> list[str]:
    """Return the first sentences whose words the second judge has in its dictionary."""
    if not importlib.util.find_spec("pocketsphinx"):
        return texts[:count]
    from benchmarks.quality.closed_words import read_dictionary

    dictionary = read_dictionary()
    return [text for text in texts if all(word in dictionary for word in words(text))][:count]


def closed_word_errors(texts: list[str], by_speaker: Clips) -> dict[str, float]:
    """Return each speaker's WER by pocketsphinx, in percent; empty if it is not installed."""
    if not importlib.util.find_spec("pocketsphinx"):
        return {}
    from benchmarks.quality.closed_words import ClosedWords

    truth = [words(text) for text in texts]
    judge = ClosedWords(word for sentence in truth for word in sentence)
    total = sum(map(len, truth))
    return {
        speaker: 100
        * sum(
            errors(said, judge.transcribe(at_16k(clip)))
            for said, clip in zip(truth, clips, strict=True)
        )
        / total
        for speaker, clips in by_speaker.items()
    }


async def voice_rows(world: World, espeak: Espeak, texts: list[str]) -> list[dict[str, Any]]:
    """Measure the WER by both judges, periodicity and gaps: each voice, then the mean of all."""
    asked = [(voice.name, i) for voice in NAMED for i in range(len(texts))]

    async def say(_: int, item: tuple[str, int]) -> Float32:
        name, i = item
        return await world.say(texts[i], voice=name, seed=i)

    made = await gather(asked, say)
    heard = await gather(made, lambda _, clip: world.transcribe(clip))
    ours: Clips = {voice.name: [] for voice in NAMED}
    transcripts: dict[str, list[str]] = {voice.name: [] for voice in NAMED}
    for (name, _), clip, text in zip(asked, made, heard, strict=True):
        ours[name].append(clip)
        transcripts[name].append(text)
    theirs = {voice.name: [spoken(espeak, text, voice) for text in texts] for voice in NAMED}
    closed, espeak_closed = [
        await asyncio.to_thread(closed_word_errors, texts, clips) for clips in (ours, theirs)
    ]
    rows = []
    for name in ours:
        own_figures, espeak_figures = (
            mean_of([figures(clip) for clip in clips]) for clips in (ours[name], theirs[name])
        )
        row = {"wer_percent": word_error_rate(zip(texts, transcripts[name], strict=True))}
        if closed:
            row["closed_words_wrong_percent"] = round(closed[name], 2)
            row["closed_words_over_espeak"] = round(closed[name] - espeak_closed[name], 2)
        row |= {**own_figures, **{f"espeak_{key}": value for key, value in espeak_figures.items()}}
        rows.append({"what": f"voice {name}", **row, "sentences": len(texts)})
    keys = [key for key in rows[0] if key not in ("what", "sentences")]
    mean = {key: round(float(np.mean([row[key] for row in rows])), 2) for key in keys}
    return [*rows, {"what": "voices, mean", **mean, "sentences": len(texts) * len(NAMED)}]


async def short_rows(world: World, espeak: Espeak, _: list[str]) -> list[dict[str, Any]]:
    """Measure the WER of utterances of one to three words, with the named voices in turn."""
    texts = HELDOUT_SHORT.read_text(encoding="utf-8").splitlines()

    async def trip(index: int, text: str) -> str:
        voice = NAMED[index % len(NAMED)].name
        return await world.transcribe(await world.say(text, voice=voice, seed=index))

    heard = await gather(texts, trip)
    clips = [spoken(espeak, text, NAMED[i % len(NAMED)]) for i, text in enumerate(texts)]
    theirs = await gather(clips, lambda _, clip: world.transcribe(clip))
    return [
        {
            "what": f"{speaker}, short utterances",
            "wer_percent": word_error_rate(zip(texts, transcripts, strict=True)),
            "sentences": len(texts),
        }
        for speaker, transcripts in (("tts", heard), ("espeak-ng", theirs))
    ]
