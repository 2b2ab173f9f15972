"""Arrivals, and when each listener received its chunks; shared by real and simulated runs."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from math import inf
from typing import Any, NamedTuple

import numpy as np

from izwi.request.request import Request
from izwi.scheduler.playback import underrun_s


class Arrival(NamedTuple):
    """One request and its arrival time, seconds after the start."""

    at_s: float
    request: Request


@dataclass(slots=True)
class Playback:
    """One request as seen by its listener.

    Attributes:
        submitted_s: Arrival time, seconds after the start.
        chunks: Time of each chunk of audio, and the seconds of audio in it.
        ended_s: Time of the last chunk; None if the listener left or the request failed.
        refused: Whether it failed.
    """

    request: Request
    submitted_s: float
    chunks: list[tuple[float, float]] = field(default_factory=list)
    ended_s: float | None = None
    refused: bool = False

    @property
    def first_audio_s(self) -> float:
        """Time to first audio in seconds; infinite if there was none."""
        return self.chunks[0][0] - self.submitted_s if self.chunks else inf

    @property
    def audio_s(self) -> float:
        """Seconds of audio received."""
        return sum(audio_s for _, audio_s in self.chunks)

    @property
    def gaps_s(self) -> float:
        """Seconds without audio during playback."""
        return underrun_s(self.chunks)


def poisson(rate_per_s: float, seed: int) -> Iterator[float]:
    """Yield arrival times in seconds, endlessly."""
    rng = random.Random(seed)
    return accumulate(iter(lambda: rng.expovariate(rate_per_s), None))


def poisson_within(rate_per_s: float, seconds: float, seed: int) -> Iterator[float]:
    """Yield arrival times in seconds, until the time is over."""
    return takewhile(lambda at_s: at_s < seconds, poisson(rate_per_s, seed))


def percentile_ms(seconds: Sequence[float], percent: float) -> float | None:
    """Return a percentile in milliseconds; None if there are no values or it is infinite."""
    if not seconds:
        return None
    value = float(np.percentile(seconds, percent, method="higher"))
    return round(value * 1e3, 2) if value < inf else None


def summary(played: Iterable[Playback]) -> dict[str, Any]:
    """Return time to first audio and gaps of the listeners of streams."""
    streams = [one for one in played if one.request.streams]
    first_s = [one.first_audio_s for one in streams]
    gaps_s = [one.gaps_s for one in streams]
    return {
        "streams": len(streams),
        "ttfa_p50_ms": percentile_ms(first_s, 50),
        "ttfa_p95_ms": percentile_ms(first_s, 95),
        "ttfa_p99_ms": percentile_ms(first_s, 99),
        "underrun_share": round(sum(gap > 0 for gap in gaps_s) / max(1, len(streams)), 4),
        "underrun_p95_ms": percentile_ms(gaps_s, 95),
    }
