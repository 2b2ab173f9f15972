"""When a request passed from one phase to the next, as the engine saw it. Reads no clock."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

# A request that is paused again and again reports only its first events.
_MAX_EVENTS = 64


class TimedEvent(StrEnum):
    """What may happen to a request between its phases."""

    PAUSED = "paused"
    RESUMED = "resumed"
    PREEMPTED = "preempted"
    UNDERRUN = "underrun"
    MOVED = "moved"


class Timing(Struct, omit_defaults=True):
    """The phases of one request, in seconds since it was submitted to the engine that ran it.

    A phase that was not reached is None. After a preemption the first times stay.

    Attributes:
        admitted_s: It got its pages and a place in the batch: the end of the queue.
        first_entry_s: Its first token or frame was drawn: the end of the prefill.
        first_audio_s: Its first audio was made.
        last_entry_s: Its last token or frame was drawn.
        ended_s: Its last output was complete.
        num_cached: Positions of the prompt whose keys and values were known at the admission.
        is_resumed: Another engine had begun it, and the times are those of the engine that
            resumed it; see `after_moves`.
        events: What happened in between: an event, its second, and how long it took (of an
            underrun; 0 otherwise).
    """

    admitted_s: float | None = None
    first_entry_s: float | None = None
    first_audio_s: float | None = None
    last_entry_s: float | None = None
    ended_s: float | None = None
    num_cached: int = 0
    is_resumed: bool = False
    events: list[tuple[TimedEvent, float, float]] = []

    def note(self, event: TimedEvent, at_s: float, lasted_s: float = 0.0) -> None:
        """Add an event, unless there are too many."""
        if len(self.events) < _MAX_EVENTS:
            self.events.append((event, at_s, lasted_s))

    def after_moves(self, moves_s: Sequence[float]) -> Timing:
        """Return the times of an engine that resumed a request, counted from its first submission.

        Args:
            moves_s: When it was given to other engines, the last of which is this one, in seconds
                since it was submitted to the first.
        """
        if not moves_s:
            return self
        names = "admitted_s", "first_entry_s", "first_audio_s", "last_entry_s", "ended_s"
        times = {name: getattr(self, name) for name in names}
        later = {name: time_s + moves_s[-1] for name, time_s in times.items() if time_s is not None}
        events = [(TimedEvent.MOVED, at_s, 0.0) for at_s in moves_s]
        events += [(event, at_s + moves_s[-1], lasted_s) for event, at_s, lasted_s in self.events]
        return replace(self, events=events, **later)
