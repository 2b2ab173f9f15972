"""The playback clocks: who has heard how much, and when it runs dry. Knows no tensor and no clock.

Requests of one listener (the pieces of one text) play one after the other, so they share a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from izwi.request import Sequence
from izwi.scheduler.playback import slack_s

# How much later than the piece before it a piece that waits its turn is wanted.
_TURN_S = 1.0
# Text is read as fast as it comes; it is wanted soon, and no gap in it is heard.
_TEXT_SLACK_S = 0.5


@dataclass(slots=True)
class Listener:
    """One playback clock.

    Attributes:
        submitted_s: When its first request came.
        first_sound_s: When its first sound left, or None.
        audio_s: Sound that left so far, seconds.
        gaps_s: Silence that was heard because sound came too late, seconds.
        queue: Its live requests, in the order in which they are played.
        dry_s: When it hears a gap, or, before its first sound, when that is late.
    """

    submitted_s: float
    first_sound_s: float | None = None
    audio_s: float = 0.0
    gaps_s: float = 0.0
    queue: list[Sequence] = field(default_factory=list)
    dry_s: float = 0.0


class Listeners:
    """The clocks of one model's requests."""

    def __init__(self, frame_s: float | None, target_s: float):
        """Start with nobody.

        Args:
            frame_s: Seconds of sound in a frame, or None for a model that writes text.
            target_s: After so long without a first sound a listener is served late.
        """
        self._frame_s, self._target_s = frame_s, target_s
        self._clocks: dict[str, Listener] = {}
        self._clock_of: dict[int, Listener] = {}  # by arrival

    def knows(self, sequence: Sequence) -> bool:
        """Whether its listener has another live request that has been heard."""
        clock = self._clocks.get(_name(sequence))
        return clock is not None and clock.first_sound_s is not None

    def add(self, sequence: Sequence) -> None:
        """Take note of a new request."""
        clock = self._clocks.get(_name(sequence))
        if clock is None:
            clock = self._clocks[_name(sequence)] = Listener(sequence.submitted_s)
            self._foresee(clock)
        clock.queue.append(sequence)
        self._clock_of[sequence.arrival] = clock

    def remove(self, sequence: Sequence) -> None:
        """Forget a request that has ended."""
        clock = self._clock_of.pop(sequence.arrival, None)
        if clock is None:
            return
        clock.queue.remove(sequence)
        if not clock.queue:
            del self._clocks[_name(sequence)]

    def heard(self, sequence: Sequence, frames: int, now_s: float) -> None:
        """Note that sound, or for text an entry, left for its listener."""
        clock = self._clock_of[sequence.arrival]
        if clock.first_sound_s is None:
            clock.first_sound_s = now_s
        elif self._frame_s is not None:
            clock.gaps_s += max(0.0, now_s - clock.dry_s)
        clock.audio_s += frames * (self._frame_s or 0.0)
        self._foresee(clock)

    def shift(self, sequence: Sequence, pause_s: float) -> None:
        """Move a clock on by the time for which its listener was paused."""
        clock = self._clock_of[sequence.arrival]
        clock.submitted_s += pause_s
        if clock.first_sound_s is not None:
            clock.first_sound_s += pause_s
        self._foresee(clock)

    def urgency(self, sequence: Sequence, now_s: float) -> tuple[float, bool]:
        """Slack in seconds, and whether its listener has heard something of it or before it."""
        if not sequence.request.streams:
            return inf, True
        clock = self._clock_of[sequence.arrival]
        started = clock.first_sound_s is not None
        if started and self._frame_s is None:
            return _TEXT_SLACK_S, True
        slack = clock.dry_s - now_s
        if clock.queue[0] is sequence:
            return slack, started
        # its turn comes after others, so it is not urgent before they are over
        return slack + _TURN_S * clock.queue.index(sequence), True

    def _foresee(self, clock: Listener) -> None:
        # kept, since it is asked for every sequence in every step and changes with sound alone
        clock.dry_s = slack_s(
            0.0,
            clock.submitted_s,
            clock.first_sound_s,
            clock.audio_s,
            self._target_s,
            gaps_s=clock.gaps_s,
        )


def _name(sequence: Sequence) -> str:
    return sequence.request.listener or sequence.request.request_id
