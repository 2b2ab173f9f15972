"""Trim the silence at the start of an answer's audio."""

from __future__ import annotations

import numpy as np

from izwi.arrays import Float32

_QUIET = 10 ** (-50 / 20)
_KEPT_S = 0.02  # silence kept before the first audible sample
_MAX_CUT_S = 0.4  # longer silence is an intended pause


class LeadIn:
    """Trims the silence at the start of an answer's audio, to reduce latency."""

    def __init__(self, rate: int):
        """Start a new answer with this sample rate."""
        self._kept, self._room = int(_KEPT_S * rate), int(_MAX_CUT_S * rate)
        self._waiting = np.zeros(0, np.float32)
        self._is_over = False

    def cut(self, pcm: Float32) -> Float32:
        """Process samples and return those to play."""
        if self._is_over:
            return pcm
        self._waiting = np.concatenate([self._waiting, pcm])
        audible = np.flatnonzero(np.abs(self._waiting) > _QUIET)
        first = int(audible[0]) if len(audible) else len(self._waiting)
        start = min(max(0, first - self._kept), self._room)
        played, self._waiting = self._waiting[start:], self._waiting[start : start + self._kept]
        self._room -= start
        if len(audible) or self._room <= 0:
            self._is_over = True
            return played
        return played[:0]
