"""Texts that never repeat, so that no cache of an earlier request helps."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

_NAMES = ("Anna", "Peter", "Maria", "Tom", "Helen", "Paul", "Rose", "Frank", "Clara", "Hugo")
_VERBS = ("sees", "finds", "takes", "brings", "leaves", "likes", "needs", "keeps", "sells", "shows")
_THINGS = ("book", "house", "garden", "table", "letter", "river", "train", "window", "road", "cup")
_TIMES = (
    "today",
    "at seven",
    "in the evening",
    "every day",
    "on Monday",
    "after lunch",
    "at night",
)


@dataclass(slots=True)
class Texts:
    """A source of texts that never repeats.

    Attributes:
        drawn: All sentences so far.
    """

    rng: random.Random
    drawn: set[str] = field(default_factory=set)

    def sentence(self) -> str:
        """Draw a sentence that was not drawn before."""
        pick = self.rng.choice
        while True:
            text = (
                f"{pick(_NAMES)} {pick(_VERBS)} the {pick(_THINGS)} near the {pick(_THINGS)} of "
                f"{pick(_NAMES)} {pick(_TIMES)}."
            )
            if text not in self.drawn:
                self.drawn.add(text)
                return text

    def long(self, num_chars: int) -> str:
        """Draw sentences with at most a number of characters in total."""
        text = self.sentence()
        while len(longer := f"{text} {self.sentence()}") <= num_chars:
            text = longer
        return text
