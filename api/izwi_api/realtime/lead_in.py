"""Trim the silence at the start of an answer's audio."""

from __future__ import annotations

import numpy as np

from izwi.arrays import Float32

_QUIET = 10 ** (-50 / 20)
_BLOCK_S = 0.005  # judged by its power: a click, as codecs make at the start, is not audible
_KEPT_S = 0.02  # silence kept before the first audible sample
_MAX_CUT_S = 0.4  # longer silence is an intended pause


class LeadIn:
    """Trims the silence at the start of an answer's audio, to reduce latency."""

    def __init__(self, rate: int):
        """Start a new answer with this sample rate."""
        self._kept, self._room = int(_KEPT_S * rate), int(_MAX_CUT_S * rate)
        self._block = max(1, int(_BLOCK_S * rate))
        self._waiting = np.zeros(0, np.float32)
        self._is_over = False

    def cut(self, pcm: Float32) -> Float32:
        """Process samples and return those to play."""
        if self._is_over:
            return pcm
        self._waiting = np.concatenate([self._waiting, pcm])
        count = len(self._waiting) // self._block
        blocks = self._waiting[: count * self._block].reshape(count, self._block)
        audible = np.flatnonzero(np.mean(np.square(blocks), axis=1) > _QUIET**2)
        first = count * self._block
        if len(audible):
            block = int(audible[0])
            first = block * self._block + int(np.argmax(np.abs(blocks[block]) > _QUIET))
        start = min(max(0, first - self._kept), self._room)
        self._waiting = self._waiting[start:]
        self._room -= start
        self._is_over = len(audible) > 0 or self._room <= 0
        return self._waiting if self._is_over else self._waiting[:0]
