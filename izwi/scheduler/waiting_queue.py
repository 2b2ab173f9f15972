"""The waiting queue, and the prompts in flight. Knows no tensor and no clock."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import nsmallest
from itertools import islice

from izwi.fairness.queue import FairClock
from izwi.request.sequence import Phase, Sequence
from izwi.scheduler.plan import Order

# Steps over which starts are averaged.
_STARTS_STEPS = 32
# An answer counts as much as this many positions of a prompt.
_ANSWER_POSITIONS = 64
# Sequences that are shown because they have been idle longest, if the order is by priority.
_OLDEST = 4


class WaitingQueue:
    """Sequences that wait to run: interactive and background ones in separate queues.

    A policy sees only the head of each queue. Sequences that cannot run are not part of the head:
    those that lack text would otherwise hide all later ones.

    Args:
        order: Of the queues.

    Attributes:
        callers: The virtual times of the callers whose sequences wait, in positions of prompts.
    """

    def __init__(self, order: Order) -> None:
        self._order, self.callers = order, FairClock()
        self._lines: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._sequences: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    def __getitem__(self, arrival: int) -> Sequence:
        return self._sequences[arrival]

    def add(self, sequence: Sequence) -> None:
        """Add a sequence at the place given by the order and its arrival."""
        self._sequences[sequence.arrival] = sequence
        self.callers.add_work(sequence.request.caller)
        insort(self._lines[sequence.request.streams], self._place(sequence))

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence; do nothing if it does not wait."""
        if self._sequences.pop(sequence.arrival, None) is not None:
            self.callers.remove_work(sequence.request.caller)
            line = self._lines[sequence.request.streams]
            del line[bisect_left(line, self._place(sequence))]

    def start(self, sequence: Sequence) -> None:
        """Remove a sequence because it runs, which takes a turn of its caller."""
        if self.callers.is_shared:
            self.callers.charge(sequence.request.caller, _work_of(sequence))
        self.remove(sequence)

    def turns(self, sequences: Iterable[Sequence]) -> list[int]:
        """Return the order in which waiting sequences have their turns, as indices."""
        return self.callers.order([(s.request.caller, _work_of(s)) for s in sequences])

    def heads(
        self,
        count: int,
        can_run: Callable[[Sequence], bool],
        slack_s: Callable[[Sequence], float],
    ) -> list[Sequence]:
        """Return the first sequences of each queue that can run, in any order.

        With several callers, those whose turn is next among the sequences that never ran are part
        of them.

        Args:
            count: Maximum for each queue.
            can_run: Whether a sequence could run if it had a place.
            slack_s: Slack of a stream, for the order by slack.
        """
        found: list[Sequence] = []
        for streams, line in self._lines.items():
            ready = filter(can_run, [self._sequences[arrival] for _, arrival in line])
            if len(line) <= count:
                found += ready
            elif self.callers.is_shared:
                found += self._fair_heads(list(ready), count, slack_s)
            elif streams and self._order is Order.SLACK:
                found += nsmallest(count, ready, key=slack_s)
            else:
                first = list(islice(ready, count))
                found += first
                if self._order is Order.PRIORITY:
                    found += nsmallest(_OLDEST, ready, key=lambda s: s.status.last_step)
        return found

    def _fair_heads(
        self, ready: list[Sequence], count: int, slack_s: Callable[[Sequence], float]
    ) -> list[Sequence]:
        if self._order is Order.SLACK:
            ready.sort(key=slack_s)
        new = [sequence for sequence in ready if sequence.status.phase is Phase.WAITING]
        heads = {id(sequence): sequence for sequence in ready[:count]}
        heads |= {id(new[place]): new[place] for place in self.turns(new)[:count]}
        if self._order is Order.PRIORITY:
            oldest = nsmallest(_OLDEST, ready, key=lambda s: s.status.last_step)
            heads |= {id(sequence): sequence for sequence in oldest}
        return list(heads.values())

    def _place(self, sequence: Sequence) -> tuple[int, int]:
        priority = sequence.request.priority if self._order is Order.PRIORITY else 0
        return -priority, sequence.arrival

    def never_started(self) -> Iterable[Sequence]:
        """Return the sequences that have not run yet, in any order."""
        return (s for s in self._sequences.values() if s.status.phase is Phase.WAITING)


def _work_of(sequence: Sequence) -> float:
    return sequence.num_prompt + _ANSWER_POSITIONS


class Starts:
    """How often sequences start."""

    def __init__(self) -> None:
        self.per_step = 0.0
        self.far_per_step = 0.0
        self.steps_since = 0

    def step(self, count: int, num_far: int = 0) -> None:
        """Count the sequences that started in a step, and those that could have waited."""
        self.per_step += (count - self.per_step) / _STARTS_STEPS
        self.far_per_step += (num_far - self.far_per_step) / _STARTS_STEPS
        self.steps_since = 0 if count else self.steps_since + 1


class PromptsInFlight:
    """Pages of prompts that are being computed.

    A new request that begins with such a page is deferred until the page can be shared.
    """

    def __init__(self) -> None:
        self._pages: Counter[int] = Counter()
        self._of: dict[int, list[int]] = {}  # arrival -> digests not computed yet

    def start(self, sequence: Sequence, first_page: int) -> None:
        """Record that a sequence computes its prompt from a page on."""
        assert sequence.kv.page_chain is not None
        missing = list(sequence.kv.page_chain[first_page:])
        if missing:
            self._of[sequence.arrival] = missing
            self._pages.update(missing)

    def reached(self, sequence: Sequence, num_pages: int) -> None:
        """Record how many of its prompt's pages are computed."""
        missing = self._of.get(sequence.arrival)
        if missing is None:
            return
        assert sequence.kv.page_chain is not None
        done = len(missing) - (len(sequence.kv.page_chain) - num_pages)
        self._forget(missing[: max(0, done)])
        del missing[: max(0, done)]
        if not missing:
            del self._of[sequence.arrival]

    def stop(self, sequence: Sequence) -> None:
        """Record that a sequence no longer runs."""
        self._forget(self._of.pop(sequence.arrival, []))

    def __contains__(self, digest: int) -> bool:
        return digest in self._pages

    def _forget(self, digests: Iterable[int]) -> None:
        for digest in digests:
            self._pages[digest] -= 1
            if self._pages[digest] == 0:
                del self._pages[digest]
