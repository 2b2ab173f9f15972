"""Say which voice speaks which text of the corpus."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from izwi_models.tiny.recipes.voices import NAMED, all_voices

_NAMED_SHARE = 0.35
NEWEST = ("greta",)  # named voices that were trained least
_NEWEST_TIMES = 12  # how often these speak, relative to other named voices
_MOST_PAUSE_FRAMES = (
    18  # between two voices, beyond the 80 to 160 ms that remain of their own silence
)


class Row(NamedTuple):
    """A text to be spoken.

    Attributes:
        voice: Its number in `all_voices`.
        text: As it is written.
        spoken: What espeak-ng is given instead, if not empty.
        pace: Speed relative to the voice's own.
        reply: What another voice says after it, if not empty.
        reply_voice: Number of that voice.
        pause_frames: Codec frames of additional silence before the reply.
    """

    voice: int
    text: str
    spoken: str = ""
    pace: float = 1.0
    reply: str = ""
    reply_voice: int = 0
    pause_frames: int = 0


def joined(sentences: list[str], share: float, seed: int) -> list[str]:
    """Let a share of the sentences be said in one go with the next one, which then is not alone."""
    generator = random.Random(seed)
    rest = iter(sentences)
    return [
        f"{sentence} {next(rest, '')}".strip() if generator.random() < share else sentence
        for sentence in rest
    ]


def assign_voices(
    texts: Iterable[tuple[str, str, float]], seed: int, clones: int | None = None
) -> list[Row]:
    """Give each training text, as written and spoken, and its pace, a voice: a third are named.

    Args:
        texts: As written, as spoken, and the pace.
        seed: Of the drawing.
        clones: If given, so many of the voices for cloning speak, and no others.
    """
    generator = random.Random(seed)
    trained = [i for i, voice in enumerate(all_voices()) if not voice.heldout]
    others = trained[len(NAMED) :][:clones]
    named_share = _NAMED_SHARE if clones is None else 0.0
    times = [_NEWEST_TIMES if voice.name in NEWEST else 1 for voice in NAMED]
    named = [i for i, count in enumerate(times) for _ in range(count)]
    return [
        Row(generator.choice(named if generator.random() < named_share else others), *text)
        for text in texts
    ]


def replies(sentences: Sequence[str], number: int, seed: int) -> list[Row]:
    """Draw pairs of sentences said by two voices, one after the other: `number` rows."""
    generator = random.Random(seed)
    rows = assign_voices([(text, "", 1.0) for text in generator.choices(sentences, k=number)], seed)
    others = assign_voices(
        [(text, "", 1.0) for text in generator.sample(sentences, number)], seed + 1
    )
    return [
        row._replace(
            reply=other.text,
            reply_voice=other.voice,
            pause_frames=generator.randint(0, _MOST_PAUSE_FRAMES),
        )
        for row, other in zip(rows, others, strict=True)
    ]


def heldout_rows(sentences: list[str], seed: int) -> list[Row]:
    """Each held-out sentence twice: by a voice that is trained on, then by one that is not."""
    generator = random.Random(seed)
    voices = all_voices()
    seen = [i for i, voice in enumerate(voices) if not voice.heldout]
    unseen = [i for i, voice in enumerate(voices) if voice.heldout]
    rows = [Row(generator.choice(seen), sentence) for sentence in sentences]
    return rows + [Row(unseen[i % len(unseen)], sentence) for i, sentence in enumerate(sentences)]
