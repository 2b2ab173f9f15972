"""Share a resource among callers: start-time fair queueing, in units of work. Pure: no clock.

Every caller has a virtual time: the work that it was given. The caller with the smallest time is
served next, and its time grows by the work. A caller that begins to ask starts at the time of the
one that is furthest behind, so it has no credit from its idle time, and does not wait for what
others have queued. With one caller, or between pieces of one caller, the order is that of arrival.

Source: Goyal, Vin, Cheng, "Start-time fair queueing" (1996). What a caller is: `callers`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T")

# Callers without work whose times are remembered.
_MAX_IDLE = 1024


class FairClock:
    """The virtual times of the callers that have work.

    Args:
        max_lead: Maximum work by which a caller is ahead of the one furthest behind. Beyond it,
            more work is free: a caller whose work cannot run stops no other one for longer.
    """

    def __init__(self, max_lead: float = inf):
        self._max_lead = max_lead
        self._counts: dict[str, int] = {}
        self._times: dict[str, float] = {}
        self._idle: dict[str, float] = {}
        self._floor = 0.0

    @property
    def is_shared(self) -> bool:
        """Whether more than one caller has work."""
        return len(self._counts) > 1

    @property
    def num_callers(self) -> int:
        """Callers that have work."""
        return len(self._counts)

    def add_work(self, caller: str) -> None:
        """Count one more piece of work of a caller."""
        if caller in self._counts:
            self._counts[caller] += 1
            return
        floor = self._lowest()
        self._counts[caller] = 1
        self._times[caller] = max(self._idle.pop(caller, floor), floor)

    def remove_work(self, caller: str) -> None:
        """Count one piece of work less."""
        self._counts[caller] -= 1
        if self._counts[caller]:
            return
        floor = self._lowest()
        del self._counts[caller]
        at = self._times.pop(caller)
        if at > floor:
            self._idle[caller] = at
        if len(self._idle) > _MAX_IDLE:
            ahead = sorted((at, name) for name, at in self._idle.items() if at > floor)
            self._idle = {name: at for at, name in ahead[-_MAX_IDLE // 2 :]}

    def charge(self, caller: str, work: float) -> None:
        """Add work that a caller was given."""
        before, floor = self._times[caller], self._lowest()
        # the work itself may exceed the lead, or a single piece would be free
        self._times[caller] = max(before, min(before, floor + self._max_lead) + work)

    def time(self, caller: str) -> float:
        """Return the virtual time of a caller that has work."""
        return self._times[caller]

    def lead(self, caller: str) -> float:
        """Return the work by which a caller is ahead of the one furthest behind."""
        return self._times[caller] - self._lowest() if caller in self._times else 0.0

    def order(self, pieces: Sequence[tuple[str, float]]) -> list[int]:
        """Return the order in which pieces are served, each a caller with work, and its work.

        Pieces of one caller keep their order.
        """
        times: dict[str, float] = {}
        tags: list[tuple[float, int]] = []
        for place, (caller, work) in enumerate(pieces):
            start = times.get(caller)
            start = self._times[caller] if start is None else start
            tags.append((start, place))
            times[caller] = start + work
        return [place for _, place in sorted(tags)]

    def _lowest(self) -> float:
        if self._times:
            self._floor = max(self._floor, min(self._times.values()))
        return self._floor


class FairQueue(Generic[T]):
    """A queue that serves callers in turn by their work, and the work of one in its order."""

    def __init__(self) -> None:
        self._clock = FairClock()
        self._lines: dict[str, deque[tuple[int, float, T]]] = {}
        self._tickets = 0

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def num_waiting(self, caller: str) -> int:
        """Return how many pieces of a caller wait."""
        return len(self._lines.get(caller, ()))

    @property
    def num_callers(self) -> int:
        """Callers whose work waits."""
        return len(self._lines)

    def put(self, caller: str, work: float, piece: T) -> None:
        """Queue a piece of work."""
        self._clock.add_work(caller)
        self._tickets += 1
        self._lines.setdefault(caller, deque()).append((self._tickets, work, piece))

    def pop(self) -> T:
        """Return the next piece of work. Raises IndexError if there is none."""
        if not self._lines:
            raise IndexError("the queue is empty")
        lines, clock = self._lines, self._clock
        caller = next(iter(lines))
        if len(lines) > 1:
            caller = min(lines, key=lambda name: (clock.time(name), lines[name][0][0]))
        _, work, piece = lines[caller].popleft()
        clock.charge(caller, work)
        clock.remove_work(caller)
        if not lines[caller]:
            del lines[caller]
        return piece


def may_queue(waiting: Mapping[str, int], caller: str, most: int) -> bool:
    """Whether one more piece of work of a caller may wait.

    A full queue still takes work of a caller who has less than an equal part of it, so that one
    caller cannot close it to others. It holds at most twice as much then.

    Args:
        waiting: Pieces that wait, by caller.
        caller: The caller.
        most: Maximum number of pieces in total.
    """
    if sum(waiting.values()) < most:
        return True
    mine = waiting.get(caller, 0)
    return mine < most // (len(waiting) + (caller not in waiting))
