"""Which request has killed an engine: whom a death is counted for, and trials that clear the rest.

When an engine dies, all requests that ran on it go on at once. The cause among them kills the next
engine, too. Those that were on both are then suspects: on any engine they run one at a time, each
until it has got on or some seconds have passed. If an engine dies during a trial, its suspect was
the cause and ends, and all others go on. Pure, except for the timer of a trial.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from izwi_api.serve.resumable_request import ResumableRequest

# Deaths in a row, without output in between, after which a request is a suspect, and after which it
# is the cause.
_SUSPECTED, _GUILTY = 2, 3
# Deaths in all, even with output in between, that a request survives.
_MOST_SEEN = 3
# Chunks with output after which a request has got on: the last chunks before a death may have been
# lost with it, so the first ones repeat steps that the dead engine survived.
_CLEARING_CHUNKS = 3
# Seconds after which a trial ends without output. An engine that hangs is noticed earlier.
_TRIAL_S = 5.0


def count_death(ran: Iterable[ResumableRequest]) -> None:
    """Count the death of an engine for what ran on it: for those that have seen most in a row."""
    ran = list(ran)
    most = max((one.num_deaths for one in ran), default=0)
    blamed = [one for one in ran if one.num_deaths == most]
    for one in blamed:
        one.num_deaths += 1
        one.is_cause = one.num_deaths >= _GUILTY or (
            one.num_deaths == _SUSPECTED and len(blamed) == 1
        )
    for one in ran:
        one.num_seen += 1
        one.num_since = 0
        one.is_cause |= one.num_seen > _MOST_SEEN


def is_suspect(resumable: ResumableRequest) -> bool:
    """Whether a request must not run beside another one of its kind."""
    return resumable.num_deaths >= _SUSPECTED


class Trials:
    """The suspects of one engine: one runs, the others wait.

    Args:
        start: Submits a request to the engine.
    """

    def __init__(self, start: Callable[[ResumableRequest], None]):
        self._start = start
        self._held: dict[str, ResumableRequest] = {}
        self._tried: ResumableRequest | None = None
        self._timer: asyncio.TimerHandle | None = None

    def holds(self, request_id: str) -> bool:
        """Whether a request waits, so that the engine does not know it."""
        return request_id in self._held

    def hold(self, resumable: ResumableRequest) -> None:
        """Let a suspect wait for its turn, which may be now."""
        self._held[resumable.request.request_id] = resumable
        self.try_next()

    def given(self, resumable: ResumableRequest) -> None:
        """Count a chunk with output that a request was given; after some it is cleared."""
        resumable.num_since += 1
        if resumable.num_since >= _CLEARING_CHUNKS:
            resumable.num_deaths = 0
            self._end_trial(resumable)

    def forget(self, resumable: ResumableRequest) -> None:
        """Forget a request that has ended, or runs elsewhere."""
        self._held.pop(resumable.request.request_id, None)
        self._end_trial(resumable)

    def clear(self) -> None:
        """Forget all: the engine is gone."""
        self._held.clear()
        self._stop_timer()
        self._tried = None

    def try_next(self) -> None:
        """Start the next suspect, unless one runs already; paused ones wait until they resume."""
        ready = (name for name, one in self._held.items() if not one.paused)
        name = next(ready, None) if self._tried is None else None
        if name is not None:
            self._tried = tried = self._held.pop(name)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_TRIAL_S, self._time_out)
            self._start(tried)

    def _time_out(self) -> None:
        assert self._tried is not None
        self._tried.num_deaths = _SUSPECTED - 1  # it waits for text or its reader
        self._end_trial(self._tried)

    def _end_trial(self, resumable: ResumableRequest) -> None:
        if resumable is self._tried:
            self._stop_timer()
            self._tried = None
            self.try_next()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
