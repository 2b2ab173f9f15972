"""Score the transcriber on recordings of a person, and on voices that it was not trained on."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.quality.embedded import World, gather, word_error_rate
from benchmarks.quality.hearing import over_telephone, pairs_of, with_pink_noise
from benchmarks.quality.people_speech import (
    FESTIVAL_VOICES,
    KOKORO_MAN,
    KOKORO_WOMAN,
    Clip,
    festival,
    flite,
    kokoro,
    piper,
    prompts,
    read_g722,
)
from izwi_models.tiny.recipes.chat.conversations import draw_dialogue
from izwi_models.tiny.recipes.chat.wording import Draw
from izwi_models.tiny.recipes.speech import Espeak

VOICE_SENTENCES = 60
_LONGEST_QUESTION = 100  # characters
_NOISE_DB = 10


def held_out_questions(number: int, seed: int = 77) -> list[str]:
    """Draw questions to izwi-tiny-chat, in wordings and with numbers that nothing is trained on."""
    draw = Draw(random.Random(seed), held_out=True, spoken=True)
    found: dict[str, None] = {}
    while len(found) < number:
        asked = draw_dialogue(draw).turns[-1].user
        is_plain = re.fullmatch(r"[A-Za-z ,.'?!-]+", asked) is not None
        if is_plain and len(asked) <= _LONGEST_QUESTION and len(asked.split()) >= 3:
            found[asked] = None
    return list(found)


def people_clips(texts: Sequence[str]) -> dict[str, list[Clip]]:
    """Return clips by what they are; those of missing packages are empty.

    Args:
        texts: Held-out sentences for the voices, of which each says all, and as many questions.
    """
    count = len(texts)
    asked = held_out_questions(2 * count)
    slt, joe = flite(texts, "slt"), piper(texts)
    clips = {
        "a person, 8 kHz": prompts(),
        "a person, 16 kHz": prompts(read_g722, ".g722"),
        "flite slt": slt,
        "Piper joe": joe,
        "questions by flite slt": flite(asked[:count], "slt"),
        "questions by Piper joe": piper(asked[count:]),
        "Kokoro, a woman": kokoro(texts[: count // 2], KOKORO_WOMAN),
        "Kokoro, a man": kokoro(texts[count // 2 :], KOKORO_MAN),
    }
    clips |= {f"festival {voice}": festival(texts, voice) for voice in FESTIVAL_VOICES}
    return clips | disturbed(slt, joe)


def disturbed(clips: Sequence[Clip], others: Sequence[Clip]) -> dict[str, list[Clip]]:
    """Return clips over the telephone, in noise, and followed by another voice's next one."""
    changes: dict[str, Callable[[int, Clip], Clip]] = {
        "telephone band": lambda _, clip: Clip(over_telephone(clip.samples), clip.text),
        f"pink noise, {_NOISE_DB} dB": lambda i, clip: Clip(
            with_pink_noise(clip.samples, _NOISE_DB, i), clip.text
        ),
    }
    made = {
        f"flite slt, {name}": [change(i, clip) for i, clip in enumerate(clips)]
        for name, change in changes.items()
    }
    following = [*others[1:], *others[:1]]
    both = list(zip(clips, following, strict=False))
    joined = pairs_of([a.samples for a, _ in both], [b.samples for _, b in both])
    texts = [f"{a.text} {b.text}" for a, b in both]
    made["two sentences, flite slt and Piper joe"] = list(map(Clip, joined, texts))
    return made


async def people_rows(world: World, _: Espeak, texts: list[str]) -> list[dict[str, Any]]:
    """Measure the WER on each kind of clips; kinds whose package is missing have no row."""
    rows = []
    for name, clips in people_clips(texts[:VOICE_SENTENCES]).items():
        if not clips:
            print(f"  not installed: {name}")
            continue
        row = {"what": f"asr, {name}", **await heard_row(world, clips)}
        rows.append({**row, "model": world.asr})
    return rows


async def heard_row(world: World, clips: Sequence[Clip]) -> dict[str, Any]:
    """Return the WER on some clips, and their number."""
    heard = await gather(clips, lambda _, clip: world.transcribe_16k(clip.samples))
    said = [clip.text for clip in clips]
    rate = word_error_rate(zip(said, heard, strict=True))
    return {"wer_percent": rate, "sentences": len(clips)}
