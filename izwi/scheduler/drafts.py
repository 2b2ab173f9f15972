"""Drafts of a sequence's next ids, from its own prompt and log. Pure: no clock, tensor or I/O.

Answers repeat what they were asked about: names, numbers, the keys of JSON. What followed the last
ids where they occurred before is a guess of what follows them now (prompt lookup: Saxena, 2023;
n-grams of any length: Yang et al., "Inference with Reference", 2023). A guess is never more than
that: the model draws each id itself, and only ids that it draws are kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from izwi.request.request import Entries

# The longest repeated suffix that is looked for, and the shortest that suggests what follows.
LONGEST, SHORTEST = 4, 2
# Ids of a draft at most, and of the first one of a sequence.
MOST, FIRST = 15, 4
# Weight of earlier drafts when another one is judged.
DECAY = 0.9
# After drafts that were all wrong, so many entries (at most) pass without one.
LONGEST_PAUSE = 32

_BYTES = 4  # of an id


def find_draft(ids: bytes | bytearray, most: int) -> tuple[int, ...]:
    """Return what followed the last earlier occurrence of the longest suffix.

    Args:
        ids: Of 4 bytes each, in the machine's order; negative: no id.
        most: Maximum length of the draft.

    Returns:
        At most so many ids. If the occurrence overlaps the suffix, ids repeat, and so does the
        draft.
    """
    for length in range(LONGEST, SHORTEST - 1, -1):
        suffix = ids[-length * _BYTES :]
        if len(ids) <= len(suffix) or min(array("i", bytes(suffix))) < 0:
            continue
        found = _last_before(ids, suffix)
        if found < 0:
            continue
        period = array("i", bytes(ids[found + len(suffix) :][: most * _BYTES]))
        draft = [period[n % len(period)] for n in range(most)]
        known = next((n for n, one in enumerate(draft) if one < 0), most)
        return tuple(draft[:known])
    return ()


def _last_before(ids: bytes | bytearray, suffix: bytes | bytearray) -> int:
    """Return where the suffix begins for the last time before the end; -1 if it does not."""
    end = len(ids) - _BYTES
    while (found := ids.rfind(suffix, 0, end)) >= 0 and found % _BYTES:
        end = found + len(suffix) - 1  # it lies across ids
    return found


class Drafting:
    """The drafts of one sequence. A cache: it is made again from prompt and log if it is lost.

    Args:
        prompt: Ids of the prompt's positions; negative where a position has none.
    """

    __slots__ = ("_accepted", "_ids", "_judged", "_length", "_misses", "_num_prompt", "_resumes_at")

    def __init__(self, prompt: Sequence[int]):
        self._ids = bytearray(array("i", prompt).tobytes())
        self._num_prompt = len(prompt)
        self._length, self._misses, self._resumes_at = FIRST, 0, 0
        self._accepted, self._judged = 0.0, 0.0

    def draft(self, emitted: Entries | list[tuple[int, ...]], most: int) -> tuple[int, ...]:
        """Return a guess of the next ids, at most `most`; empty if there is none.

        Args:
            emitted: The log, of one id an entry.
            most: Maximum length.
        """
        if most <= 0 or len(emitted) < self._resumes_at:
            return ()
        num_known = len(self._ids) // _BYTES - self._num_prompt
        self._ids += array("i", [entry[0] for entry in emitted[num_known:]]).tobytes()
        return find_draft(self._ids, min(most, self._length))

    def expected(self, length: int) -> float:
        """Return how many ids of a draft of this length will be accepted, by those before it."""
        rate = (self._accepted + 1.0) / (self._judged + 2.0)
        return sum(rate**n for n in range(1, length + 1))

    def record(self, num_drafted: int, num_accepted: int, num_entries: int) -> None:
        """Record how a draft fared: the next one is longer or shorter, or comes later.

        Args:
            num_drafted: Its length.
            num_accepted: Number of its first ids that were right.
            num_entries: Length of the log after it.
        """
        wrong = num_accepted < num_drafted  # ids after the first wrong one were not judged
        self._accepted = DECAY * self._accepted + num_accepted
        self._judged = DECAY * self._judged + num_accepted + wrong
        self._length = num_accepted + 1 if wrong else min(MOST, 2 * max(self._length, num_drafted))
        self._misses = 0 if num_accepted else self._misses + 1
        pause = min(LONGEST_PAUSE, 2**self._misses) if self._misses > 1 else 0
        self._resumes_at = num_entries + pause
