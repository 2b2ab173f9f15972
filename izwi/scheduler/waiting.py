"""Who waits to run, and which prompts are being computed. Knows no tensor and no clock."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator

from izwi.request import Phase, Sequence

# Steps over which starts are averaged.
_STARTS_STEPS = 32


class WaitingRoom:
    """Sequences that wait to run, those with a listener apart from those without.

    Both lines are in order of priority, then arrival, so that a policy need look at the head of
    each alone, however long they are.
    """

    def __init__(self) -> None:
        self._lines: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._sequences: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    def __getitem__(self, arrival: int) -> Sequence:
        return self._sequences[arrival]

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait at the place that its priority and its arrival give it."""
        self._sequences[sequence.arrival] = sequence
        insort(self._lines[sequence.request.streams], _place(sequence))

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out; nothing if it does not wait."""
        if self._sequences.pop(sequence.arrival, None) is not None:
            line = self._lines[sequence.request.streams]
            del line[bisect_left(line, _place(sequence))]

    def heads(self, count: int) -> list[Sequence]:
        """Return the first of each line."""
        return [
            self._sequences[arrival] for line in self._lines.values() for _, arrival in line[:count]
        ]

    def never_started(self) -> Iterable[Sequence]:
        """Those that have not run yet, in no order."""
        return (s for s in self._sequences.values() if s.phase is Phase.WAITING)


class Starts:
    """How often sequences start."""

    def __init__(self) -> None:
        self.per_step = 0.0
        self.steps_since = 0

    def step(self, count: int) -> None:
        """Note how many started in a step."""
        self.per_step += (count - self.per_step) / _STARTS_STEPS
        self.steps_since = 0 if count else self.steps_since + 1


class PromptsUnderWay:
    """Pages of prompts that somebody computes now.

    A newcomer that begins with such a page had better wait until it can be shared.
    """

    def __init__(self) -> None:
        self._pages: Counter[int] = Counter()
        self._of: dict[int, list[int]] = {}  # arrival -> digests not computed yet

    def start(self, sequence: Sequence, first_page: int) -> None:
        """Note that a sequence computes its prompt from a page on."""
        assert sequence.page_chain is not None
        missing = list(sequence.page_chain[first_page:])
        if missing:
            self._of[sequence.arrival] = missing
            self._pages.update(missing)

    def reached(self, sequence: Sequence, num_pages: int) -> None:
        """Note how many of its prompt's pages are computed."""
        missing = self._of.get(sequence.arrival)
        if missing is None:
            return
        assert sequence.page_chain is not None
        done = len(missing) - (len(sequence.page_chain) - num_pages)
        self._forget(missing[: max(0, done)])
        del missing[: max(0, done)]
        if not missing:
            del self._of[sequence.arrival]

    def stop(self, sequence: Sequence) -> None:
        """Note that a sequence no longer runs."""
        self._forget(self._of.pop(sequence.arrival, []))

    def __contains__(self, digest: int) -> bool:
        return digest in self._pages

    def _forget(self, digests: Iterable[int]) -> None:
        for digest in digests:
            self._pages[digest] -= 1
            if self._pages[digest] == 0:
                del self._pages[digest]


def _place(sequence: Sequence) -> tuple[int, int]:
    return -sequence.request.priority, sequence.arrival
