"""Which request has killed an engine: whom a death is counted for, and trials that clear the rest.

When an engine dies, all requests that ran on it go on at once. The cause among them kills the next
engine, too. Those that were on both are then suspects: on any engine they run one at a time, each
until it has got on or some seconds have passed. If an engine dies during a trial, its suspect was
the cause and ends, and all others go on.

A request may also kill each engine only after more output than that. So deaths also count, apart
from these, for a request that was given about as much output before each of them. Those for which
three such deaths in a row count are suspects, too. Half of them are tried together until they have
got clearly further than before: trials as long as that, one by one, would stop the innocent for
too long. If the engine dies, the cause is in this half, which is halved again; the other half goes
on.

Pure, except for the timer of a trial.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from izwi_api.serve.resumable_request import ResumableRequest

# Deaths in a row, without output in between, after which a request is a suspect, and after which it
# is the cause.
_SUSPECTED, _GUILTY = 2, 3
# Deaths in a row before which it got about as far, after which it is a suspect: one more than
# above, because streams get on for long, and some deaths have other causes.
_FAR_SUSPECTED = 3
# Deaths in all that a request survives, if it kills engines irregularly.
_MOST_SEEN = 12
# Chunks with output after which a request has got on: the last chunks before a death may have been
# lost with it, so the first ones repeat steps that the dead engine survived.
_CLEARING_CHUNKS = 3
# Seconds after which a trial ends without output. An engine that hangs is noticed earlier.
_TRIAL_S = 5.0


def count_death(
    ran: Iterable[ResumableRequest], spared: Iterable[ResumableRequest] = (), now_s: float = 0.0
) -> None:
    """Count the death of an engine: for those that have seen most in a row.

    Args:
        ran: The requests that it ran.
        spared: Suspects that waited while others were tried there: they are cleared.
        now_s: When it died, on the event loop's clock.
    """
    ran = list(ran)
    _count_near(ran)
    _count_far([one for one in ran if _is_as_far(one)])
    for one in ran:
        if not _is_as_far(one):
            one.num_far = 1
        one.reach, one.lived_s = one.num_since, now_s - one.started_s
        one.num_seen += 1
        one.num_since = 0
        one.is_cause |= one.num_seen > _MOST_SEEN
    for one in spared:
        one.num_deaths, one.num_far = 0, -_MOST_SEEN


def _count_near(ran: list[ResumableRequest]) -> None:
    """Count a death for requests that had no output, or little, since the last one."""
    most = max((one.num_deaths for one in ran), default=0)
    blamed = [one for one in ran if one.num_deaths == most]
    for one in blamed:
        one.num_deaths += 1
        alone = len(blamed) == 1
        one.is_cause = one.num_deaths >= (_SUSPECTED if alone else _GUILTY)


def _count_far(ran: list[ResumableRequest]) -> None:
    """Count a death for requests that had got about as far as before an earlier one."""
    for one in ran:
        one.num_far += 1
    # one that got further or less far once may be one behind, and the cause nevertheless
    most = max((one.num_far for one in ran), default=0)
    blamed = [one for one in ran if one.num_far >= most - 1]
    if len(blamed) == 1:
        blamed[0].is_cause |= most > _FAR_SUSPECTED


def _is_as_far(resumable: ResumableRequest) -> bool:
    """Whether a request was given about as much output as before the last death."""
    at_least = (resumable.reach - _CLEARING_CHUNKS) // 2
    return at_least <= resumable.num_since < _further(resumable)


def _further(resumable: ResumableRequest) -> int:
    """Return after how many chunks a request has got clearly further than before."""
    return resumable.reach + resumable.reach // 2 + _CLEARING_CHUNKS


def is_suspect(resumable: ResumableRequest) -> bool:
    """Whether a request must not run beside all others of its kind."""
    return resumable.num_deaths >= _SUSPECTED or resumable.num_far >= _FAR_SUSPECTED


def _is_near(resumable: ResumableRequest) -> bool:
    """Whether it is a suspect because engines died at once."""
    return resumable.num_deaths >= _SUSPECTED


class Trials:
    """The suspects of one engine: one runs, or half of them; the others wait.

    Args:
        start: Submits a request to the engine.
    """

    def __init__(self, start: Callable[[ResumableRequest], None]):
        self._start = start
        self._held: dict[str, ResumableRequest] = {}
        self._tried: list[ResumableRequest] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def spared(self) -> list[ResumableRequest]:
        """Suspects that wait while others are tried."""
        return list(self._held.values()) if self._tried else []

    def holds(self, request_id: str) -> bool:
        """Whether a request waits, so that the engine does not know it."""
        return request_id in self._held

    def hold(self, resumables: Iterable[ResumableRequest]) -> None:
        """Let suspects wait for their turn, which may be at once."""
        self._held |= {one.request.request_id: one for one in resumables}
        if self._held:  # once all that move here are known
            asyncio.get_running_loop().call_soon(self.try_next)

    def given(self, resumable: ResumableRequest) -> None:
        """Count a chunk with output that a request was given; after some it is cleared."""
        resumable.num_since += 1
        if resumable.num_since >= _CLEARING_CHUNKS:
            resumable.num_deaths = 0
        if resumable.num_since >= _further(resumable):
            resumable.num_far = 0
        if resumable in self._tried and not is_suspect(resumable):
            self._end_trial(resumable)

    def forget(self, resumable: ResumableRequest) -> None:
        """Forget a request that has ended, or runs elsewhere."""
        self._held.pop(resumable.request.request_id, None)
        self._end_trial(resumable)

    def clear(self) -> None:
        """Forget all: the engine is gone."""
        self._held.clear()
        self._stop_timer()
        self._tried = []

    def try_next(self) -> None:
        """Start the next suspects, unless some run already; paused ones wait until they resume."""
        ready = [one for one in self._held.values() if not one.paused]
        if self._tried or not ready:
            return
        near = [one for one in ready if _is_near(one)]
        self._tried = near[:1] or ready[: (len(ready) + 1) // 2]
        loop = asyncio.get_running_loop()
        lived_s = 0.0 if near else max(one.lived_s for one in self._tried)
        self._timer = loop.call_later(max(_TRIAL_S, 2 * lived_s), self._time_out)
        for one in self._tried:
            del self._held[one.request.request_id]
        for one in list(self._tried):
            self._start(one)

    def _time_out(self) -> None:
        for one in list(self._tried):  # each waits for text or its reader
            one.num_deaths = min(one.num_deaths, _SUSPECTED - 1)
            one.num_far = min(one.num_far, _FAR_SUSPECTED - 1)
            self._end_trial(one)

    def _end_trial(self, resumable: ResumableRequest) -> None:
        if resumable in self._tried:
            self._tried.remove(resumable)
            if not self._tried:
                self._stop_timer()
                self.try_next()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
