"""Trim the silence at the start of an answer's audio."""

from __future__ import annotations

import numpy as np

from izwi.arrays import Float32

_QUIET = 10 ** (-50 / 20)
# Judged by the power of 20 ms, in steps of 5 ms: the click with which a codec starts (-48 dBFS for
# 5 ms in the embedded voices, and down to -60 for 15 ms) is not audible.
_BLOCK_S = 0.005
_HEARD_BLOCKS = 4
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
        first, is_audible = self._find_audible()
        start = min(max(0, first - self._kept), self._room)
        self._waiting = self._waiting[start:]
        self._room -= start
        self._is_over = is_audible or self._room <= 0
        return self._waiting if self._is_over else self._waiting[:0]

    def _find_audible(self) -> tuple[int, bool]:
        """Return the first audible sample and True, or where it may still follow and False."""
        count = len(self._waiting) // self._block
        if count < _HEARD_BLOCKS:
            return 0, False
        blocks = self._waiting[: count * self._block].reshape(count, self._block)
        powers = np.mean(np.square(blocks, dtype=np.float64), axis=1)
        heard = np.convolve(powers, np.full(_HEARD_BLOCKS, 1 / _HEARD_BLOCKS), "valid")
        audible = np.flatnonzero(heard > _QUIET**2)
        if not len(audible):
            return (count - _HEARD_BLOCKS + 1) * self._block, False
        block = int(audible[0]) + int(np.argmax(powers[audible[0] :] > _QUIET**2))
        loud = np.abs(blocks[block]) > _QUIET
        return block * self._block + int(np.argmax(loud)), True
