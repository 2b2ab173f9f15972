"""Score the transcriber on recordings of a person, and on voices that it was not trained on."""

from __future__ import annotations

import random
import re
from typing import Any

from benchmarks.quality.embedded import World, gather, word_error_rate
from benchmarks.quality.people_speech import (
    FESTIVAL_VOICES,
    Clip,
    festival,
    flite,
    piper,
    prompts,
    read_g722,
)
from izwi_models.tiny.recipes.chat.conversations import draw_dialogue
from izwi_models.tiny.recipes.chat.wording import Draw
from izwi_models.tiny.recipes.speech import Espeak

_VOICE_SENTENCES = 60
_QUESTIONS = 120
_LONGEST_QUESTION = 100  # characters


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


def people_clips(texts: list[str]) -> dict[str, list[Clip]]:
    """Return clips by what they are; those of missing packages are empty.

    Args:
        texts: Held-out sentences for the voices.
    """
    texts, asked = texts[:_VOICE_SENTENCES], held_out_questions(_QUESTIONS)
    half = len(asked) // 2
    clips = {
        "a person, 8 kHz": prompts(),
        "a person, 16 kHz": prompts(read_g722, ".g722"),
        "flite slt": flite(texts, "slt"),
        "Piper joe": piper(texts),
        "questions by flite slt": flite(asked[:half], "slt"),
        "questions by Piper joe": piper(asked[half:]),
    }
    return clips | {f"festival {voice}": festival(texts, voice) for voice in FESTIVAL_VOICES}


async def people_rows(world: World, _: Espeak, texts: list[str]) -> list[dict[str, Any]]:
    """Measure the WER on each kind of clips; kinds whose package is missing have no row."""
    rows = []
    for name, clips in people_clips(texts).items():
        if not clips:
            print(f"  not installed: {name}")
            continue
        heard = await gather(clips, lambda _, clip: world.transcribe_16k(clip.samples))
        said = [clip.text for clip in clips]
        rate = word_error_rate(zip(said, heard, strict=True))
        row = {"what": f"asr, {name}", "wer_percent": rate, "sentences": len(clips)}
        rows.append({**row, "model": world.asr})
    return rows
