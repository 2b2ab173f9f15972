"""What the metrics show of one spoken answer of a live session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
