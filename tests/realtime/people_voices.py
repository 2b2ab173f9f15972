"""The scenes' speech by voices that were built from recordings of people.

The packages that speak are those of `benchmarks.quality.people_speech`. Nothing that they say is
committed.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from benchmarks.quality.people_speech import KOKORO_MAN, KOKORO_WOMAN, RATE, flite, kokoro
from tests.realtime.phone import at_24_khz
from tests.realtime.sounds.make_sounds import SPEECH
from tests.realtime.world import recorded, rms

_SPEAK = {
    "Kokoro, a woman": lambda texts: kokoro(texts, KOKORO_WOMAN),
    "Kokoro, a man": lambda texts: kokoro(texts, KOKORO_MAN),
    "flite slt": lambda texts: flite(texts, "slt"),
    "flite rms": lambda texts: flite(texts, "rms"),
}
# Each user, and who else is in the room.
PEOPLE = {
    "Kokoro, a woman": "Kokoro, a man",
    "Kokoro, a man": "Kokoro, a woman",
    "flite slt": "flite rms",
}
_OTHERS = ("woman", "woman-talks", "man-talks")
# These voices spell "Mm-hm".
_TEXTS = {name: how[3] for name, how in SPEECH.items()} | {"mm-hm": "Uh-huh."}
_AUDIBLE = 0.01  # of the peak


@cache
def _said(speaker, names):
    """What a speaker says, without silence around it, at 24 kHz; empty without its packages."""
    made = {}
    for name, clip in zip(names, _SPEAK[speaker]([_TEXTS[name] for name in names]), strict=False):
        samples = at_24_khz(clip.samples, RATE)
        audible = np.flatnonzero(np.abs(samples) > _AUDIBLE * np.abs(samples).max())
        made[name] = samples[audible[0] : audible[-1] + 1]
    return made


def sounds_by(person):
    """The scenes' speech by a person and others, as loud as it was; empty without packages."""
    own = tuple(name for name in _TEXTS if name not in _OTHERS)
    said = [_said(person, own), _said(PEOPLE[person], _OTHERS)]
    if not all(said):
        return {}
    return {
        name: samples * np.float32(rms(recorded(name)) / rms(samples))
        for part in said
        for name, samples in part.items()
    }
