"""What the metrics show of a live session: its turns, and each spoken answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class TurnEvent(StrEnum):
    """What is counted of a user's speech."""

    ENDED = "ended"  # a turn
    CONFIRMED = "confirmed"  # it interrupted an answer
    REFUTED = "refuted"  # an answer paused for it, and went on


@dataclass(frozen=True, slots=True)
class AnswerFigures:
    """The figures of an answer.

    Attributes:
        latency_s: Seconds from the user's last word until `turn_end`, `transcript`, `text` (the
            first of the answer) and `audio` (the first that was sent); those that are known.
        num_gaps: How often its playback ran dry.
        gaps_s: For how long.
    """

    latency_s: Mapping[str, float] = field(default_factory=dict)
    num_gaps: int = 0
    gaps_s: float = 0.0
