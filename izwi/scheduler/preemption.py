"""Which running sequences give their pages and places to a new request. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from operator import attrgetter

from izwi.scheduler.plan import View
from izwi.scheduler.playback import FAR_S, URGENT_S
from izwi.scheduler.step_builder import StepBuilder, is_stuck

slack_order = attrgetter("urgency.slack_s", "key")


def victims_for(running: Sequence[View], builder: StepBuilder, new: View) -> Iterator[View]:
    """Return what to preempt for a new stream: what cannot run, then the latest background work.

    Then streams that are far ahead, the furthest first. New text may preempt text of callers who
    have more than this one, and text of lower priority that can wait, except the first such
    sequence, which might otherwise be restarted forever.

    The earliest background sequence is spared while streams run that will end and make room.
    Otherwise a burst of streams could restart it forever.
    """
    yield from stuck_of(running)
    background = sorted((v for v in running if v.urgency.slack_s == inf), key=slack_order)
    streams = builder.num_admitted + len(running) - len(background)
    yield from reversed(background[1:] if streams else background)
    far = [view for view in running if FAR_S <= view.urgency.slack_s < inf]
    yield from sorted(far, key=slack_order, reverse=True)
    if not new.audio.chunk:
        excess = [view for view in running if view.urgency.excess and not new.urgency.excess]
        yield from sorted(excess, key=slack_order, reverse=True)
        lower = [view for view in running if _is_lower_text(view, new.urgency.priority)]
        yield from reversed(sorted(lower, key=slack_order)[1:])


def _is_lower_text(view: View, priority: int) -> bool:
    urgency = view.urgency
    return not view.audio.chunk and urgency.priority < priority and urgency.slack_s >= URGENT_S


def stuck_of(running: Sequence[View]) -> Iterator[View]:
    """Return the sequences that can run nothing, the furthest from their deadline first."""
    yield from sorted(filter(is_stuck, running), key=slack_order, reverse=True)
