"""Draw wordings from small patterns, split into training and held-out ones."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TypeVar

from izwi_models.english.numbers import cardinal

# One of this many sets of values, and one of this many wordings, is held out.
_VALUES_PER_HELD_OUT = 8
_WORDINGS_PER_HELD_OUT = 4

_T = TypeVar("_T")
_INNERMOST = re.compile(r"\(([^()\[\]]*)\)|\[([^()\[\]]*)\]")
_SLOT = re.compile(r"\{(\w+)\}")
_OPENINGS = ("please ", "hey izwi, ", "okay, ", "izwi, ", "hi, ", "so, ", "now, ", "um, ")
_CLOSINGS = (" please", ", please", " izwi", ", thanks", " then")
# Slots at the end of a question whose words are quoted exactly.
_QUOTED = ("{word}", "{words}", "{one}", "{two}")
_DRESSED = 0.25  # share of questions with an opening, and with a closing


def is_held_out(name: str, value: object, one_in: int = _VALUES_PER_HELD_OUT) -> bool:
    """Return whether a value is held out; the result is the same on every run.

    Args:
        name: Sets with different names are split independently.
        value: Split by its `repr`.
        one_in: One of this many values is held out.
    """
    digest = hashlib.sha1(repr((name, value)).encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big") % one_in == 0


class NoWordingError(Exception):
    """A question has no wording in this part of the split."""


@cache
def split(patterns: tuple[str, ...]) -> tuple[list[list[str]], list[list[str]]]:
    """Split all wordings of a question into trained and held-out ones.

    A quarter is held out, by a digest of the wording. But a wording is trained if one of its words
    is in no trained wording of these patterns: "so long" cannot be understood without training, but
    "see you for now" can, after "see you" and "bye for now".

    Args:
        patterns: See `Draw.ask`.

    Returns:
        The trained wordings of each pattern, and the held-out ones of each pattern, sorted.
    """
    found = [wordings(pattern) for pattern in patterns]
    chosen = {wording for each in found for wording in each}
    held_out = {
        wording for wording in chosen if is_held_out("wording", wording, _WORDINGS_PER_HELD_OUT)
    }
    known = {word for wording in chosen - held_out for word in wording.split()}
    for wording in sorted(held_out):
        if not known.issuperset(wording.split()):
            held_out.remove(wording)
            known.update(wording.split())
    trained = [[wording for wording in each if wording not in held_out] for each in found]
    return trained, [[wording for wording in each if wording in held_out] for each in found]


@cache
def wordings(pattern: str) -> tuple[str, ...]:
    """Return all wordings of a pattern, sorted."""
    found, waiting = set[str](), {pattern}
    while waiting:
        wording = waiting.pop()
        group = _INNERMOST.search(wording)
        if group is None:
            found.add(" ".join(wording.split()).replace(" :", ":"))
            continue
        choices = group[1].split("|") if group[1] is not None else ["", *group[2].split("|")]
        head, tail = wording[: group.start()], wording[group.end() :]
        waiting |= {f"{head}{choice}{tail}" for choice in choices}
    return tuple(sorted(found))


@dataclass(slots=True)
class Draw:
    """A source of random choices from one part of the split.

    Attributes:
        random: The random number generator.
        held_out: Draw from the held-out part; otherwise from the trained part.
        spoken: Write numbers in questions as words, as a transcriber does.
    """

    random: random.Random
    held_out: bool = False
    spoken: bool = False

    def choice(self, values: Sequence[_T]) -> _T:
        """Draw one of the values."""
        return self.random.choice(values)

    def number(self, low: int, high: int) -> int:
        """Draw a number from low to high, both included; short ones as often as long ones."""
        digits = self.random.randint(len(str(low)), len(str(high)))
        first = 0 if digits == 1 else 10 ** (digits - 1)
        return self.random.randint(max(low, first), min(high, 10**digits - 1))

    def values(self, name: str, draw: Callable[[], _T]) -> _T:
        """Call `draw` until its value is in this part of the split, and return that value.

        Args:
            name: Sets with different names are split independently.
            draw: Called without arguments; its value is split by its `repr`.
        """
        for _ in range(10_000):
            value = draw()
            if is_held_out(name, value) == self.held_out:
                return value
        raise ValueError(f"no {name} in this part of the split")

    def ask(self, patterns: Sequence[str], *, closed: bool = False, **slots: object) -> str:
        """Draw one question.

        Args:
            patterns: "(a|b) c [d]" has the wordings "a c", "b c d" and so on; "{x}" is the slot x.
                Only wordings of this part of the split are drawn.
            closed: Add no polite word at the end.
            slots: Values of the slots; numbers become digits, or words if `spoken`.
        """
        wording = self._wording(patterns)
        said = _SLOT.sub(lambda slot: self._said(slots[slot[1]]), wording)
        return self._dress(said, closed=closed or wording.endswith(_QUOTED))

    def _wording(self, patterns: Sequence[str]) -> str:
        """Draw a pattern with wordings in this part of the split, then one of these wordings.

        Raises:
            NoWordingError: All wordings of the patterns are in the other part.
        """
        known = [part for part in split(tuple(patterns))[self.held_out] if part]
        if not known:
            raise NoWordingError(patterns[0])
        return self.choice(self.choice(known))

    def _said(self, value: object) -> str:
        if isinstance(value, int):
            return say_number(value) if self.spoken else self._digits(value)
        return str(value)

    def _digits(self, value: int) -> str:
        return f"{value:,}" if value >= 1000 and self.random.random() < 0.2 else str(value)

    def _dress(self, said: str, closed: bool) -> str:
        """Add polite words at random, and vary case and punctuation.

        Args:
            said: The question.
            closed: Add no word at the end, which would become part of a quotation.
        """
        if self.random.random() < _DRESSED:
            said = self.choice(_OPENINGS) + said
        if self.random.random() < _DRESSED and not closed:
            said += self.choice(_CLOSINGS)
        careful = self.spoken or self.random.random() < 0.7
        if careful and said[-1].isalnum():
            said += "?" if self.random.random() < 0.6 else "."
        return said[:1].upper() + said[1:] if careful else said.lower()


@lru_cache(100_000)
def say_number(value: int) -> str:
    """Return an integer in words, as the embedded transcriber writes it."""
    words = cardinal(str(abs(value)))
    return f"minus {words}" if value < 0 else words
