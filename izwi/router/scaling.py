"""How many engines a load needs. Pure: no clock, no cluster, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from izwi.errors import InvalidRequest

# An engine is given up only if the others would have this share of the streams that they may have,
# so that the next stream does not start it again.
_SHARE = 0.7
# Times the engines of now, at most: figures of an overload say how much too much it is, but not
# for how long.
_MOST_TIMES = 2
# Slack above this many seconds is as good as any.
_MOST_SLACK_S = 60.0


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What one engine has to do.

    Attributes:
        running: Requests that run.
        waiting: Requests that wait to run.
        least_slack_s: Least slack of answers that play, in seconds; `_MOST_SLACK_S` without any.
    """

    running: float
    waiting: float
    least_slack_s: float


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """When there are too few engines, and when too many.

    Attributes:
        streams_each: Requests that one engine is meant to have.
        least_slack_s: Seconds of slack below which an engine is behind; 0: slack does not count.
        first_audio_s: Seconds that the 95th percentile of first audio may take; 0: it does not
            count.
    """

    streams_each: int = 32
    least_slack_s: float = 0.3
    first_audio_s: float = 0.0

    def __post_init__(self) -> None:
        if self.streams_each < 1:
            raise InvalidRequest("streams_each must be at least 1", param="streams_each")
        for name in ("least_slack_s", "first_audio_s"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"{name} must be at least 0", param=name)


def figures_of(load: Mapping[str, Mapping[str, float]]) -> EngineFigures:
    """Return the figures of an engine from those of its models (`Engine.load`)."""
    models = load.values()
    slacks_s = [one.get("least_slack_seconds", _MOST_SLACK_S) for one in models]
    return EngineFigures(
        sum(one.get("running", 0.0) for one in models),
        sum(one.get("waiting", 0.0) for one in models),
        min([_MOST_SLACK_S, *slacks_s]),
    )


def wanted_engines(
    engines: Sequence[EngineFigures], rules: ScalingRules, first_audio_s: float | None = None
) -> int:
    """Return how many engines there should be, at least one.

    More, if at least half of the engines are behind (requests wait, or slack is short), if first
    audio takes too long, or if there are more requests than engines are meant to have. One less,
    if none is behind and the others would have room to spare.

    Args:
        engines: Those that run; without any, one is wanted.
        rules: When there are too few or too many.
        first_audio_s: The 95th percentile of first audio, if it is known.
    """
    num = len(engines)
    if not num:
        return 1
    num_requests = sum(one.running + one.waiting for one in engines)
    behind = [one for one in engines if one.waiting or one.least_slack_s < rules.least_slack_s]
    is_late = first_audio_s is not None and 0 < rules.first_audio_s < first_audio_s
    needed = ceil(num_requests / rules.streams_each)
    if needed > num or 2 * len(behind) >= num or is_late:
        return min(max(num + 1, needed), _MOST_TIMES * num)
    if not behind and num_requests <= _SHARE * rules.streams_each * (num - 1):
        return max(1, num - 1)
    return num
