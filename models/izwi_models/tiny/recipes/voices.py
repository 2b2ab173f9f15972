"""The synthesizer's voices: eight with names, many for learning to clone, forty held out."""

from __future__ import annotations

import random
from dataclasses import dataclass

_ACCENTS = ("en-us", "en-us", "en", "en-gb-x-rp")
_VARIANTS = (
    "m1 m2 m3 m4 m6 m7 m8 f1 f3 f4 f5 klatt klatt2 klatt4 Alex Alicia Andrea Andy Annie Gene Hugo "
    "Lee Mike anika adam belinda caleb edward iven max rob shelby steph paul quincy zac benjamin "
    "david"
)
_HELDOUT_VARIANTS = ("f2", "m5", "linda", "john")
_CLONE_VOICES = 192
_MORE_CLONE_VOICES = 1808  # after the held-out ones, which must stay the same voices
_HELDOUT_VOICES = 40


@dataclass(frozen=True, slots=True)
class Voice:
    """Settings of an espeak-ng voice.

    Attributes:
        name: Name of the voice in the checkpoint; "" if it has none.
        espeak: Voice name, such as "en-us+f3". The accent "en" is British English, because the name
            "en-gb+f3" fails silently in espeak-ng 1.51.
        pitch: 0 to 99.
        pitch_range: 0 to 99; 50 is natural.
        speed: Words a minute.
        heldout: Never trained on.
    """

    name: str
    espeak: str
    pitch: int
    pitch_range: int
    speed: int
    heldout: bool = False


NAMED = (
    Voice("amber", "en-us+f3", 55, 50, 165),
    Voice("basil", "en+m3", 40, 50, 165),
    Voice("clara", "en-gb-x-rp+f4", 60, 55, 165),
    Voice("dorian", "en-us+m7", 30, 45, 165),
    Voice("edith", "en-us+Annie", 50, 55, 165),
    Voice("felix", "en-us+Mike", 50, 50, 170),
    Voice("greta", "en+f5", 50, 50, 165),
    Voice("hugo", "en-us+Hugo", 45, 50, 165),
)


def _drawn(generator: random.Random, variant: str, heldout: bool) -> Voice:
    return Voice(
        name="",
        espeak=f"{generator.choice(_ACCENTS)}+{variant}",
        pitch=generator.randint(15, 90),
        pitch_range=generator.randint(35, 65),
        speed=generator.randint(150, 182),
        heldout=heldout,
    )


def all_voices(seed: int = 3) -> list[Voice]:
    """Return named voices, some for cloning, held-out ones of other variants, more for cloning."""
    generator = random.Random(seed)
    variants = _VARIANTS.split()

    def clones(count: int) -> list[Voice]:
        return [_drawn(generator, variants[i % len(variants)], False) for i in range(count)]

    first = clones(_CLONE_VOICES)
    unseen = [
        _drawn(generator, _HELDOUT_VARIANTS[i % len(_HELDOUT_VARIANTS)], True)
        for i in range(_HELDOUT_VOICES)
    ]
    return [*NAMED, *first, *unseen, *clones(_MORE_CLONE_VOICES)]
