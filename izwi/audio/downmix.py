"""Mix channels to one without losing what is opposite in two of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from izwi.arrays import Float32

# Power of the average relative to that of channels that have nothing in common. Below it, -13 dB,
# channels cancel each other: one has the other's signal with the opposite sign.
_LEAST_SHARE = 0.05
# A channel is left for one with so many times its power, so that the sign seldom changes.
_LOUDER = 4.0
_WINDOW_S = 0.5
_FADE_S = 0.01


class Downmix:
    """Average the channels, except where they cancel: there, take the loudest one.

    It judges windows of half a second; between an average and a channel it fades.
    """

    def __init__(self, rate: int):
        """Start. `rate` is the sample rate in Hz."""
        self._window = max(1, int(_WINDOW_S * rate))
        self._fade = max(1, int(_FADE_S * rate))
        self._pending: list[Float32] = []
        self._num_pending = 0
        self._channel: int | None = None  # None averages

    def write(self, channels: Float32) -> Float32:
        """Add (channels, n); return the mono samples that are settled, (m,)."""
        if len(channels) == 1 and not self._pending and self._channel is None:
            only: Float32 = channels[0]
            return only
        if self._pending and len(self._pending[0]) != len(channels):
            return np.concatenate([self.finish(), self.write(channels)])
        self._pending.append(channels)
        self._num_pending += channels.shape[1]
        return self._mix(self._window) if self._num_pending >= self._window else _NOTHING

    def finish(self) -> Float32:
        """Return the rest; the number of channels may be another afterwards."""
        mono = self._mix(1) if self._num_pending else _NOTHING
        self._channel = None
        return mono

    def _mix(self, least: int) -> Float32:
        """Mix all that is pending, in windows; a last one of fewer than `least` samples waits."""
        channels = np.concatenate(self._pending, axis=1)
        size, mixed = channels.shape[1], []
        start = 0
        while size - start >= least:
            stop = min(size, start + self._window)
            mixed.append(self._mix_window(channels[:, start:stop]))
            start = stop
        self._pending, self._num_pending = [channels[:, start:]], size - start
        if not self._num_pending:
            self._pending = []
        return np.concatenate(mixed)

    def _mix_window(self, channels: Float32) -> Float32:
        before = self._channel
        average: Float32 = np.mean(channels, axis=0, dtype=np.float32)
        self._channel = self._chosen(channels, average)
        if before is None and self._channel is None:
            return average
        mono = _choice(channels, average, self._channel)
        if before != self._channel:
            count = min(self._fade, len(mono))
            ramp = np.arange(count, dtype=np.float32) / np.float32(count)
            old = _choice(channels, average, before)[:count]
            mono = np.concatenate([old + ramp * (mono[:count] - old), mono[count:]])
        return mono

    def _chosen(self, channels: Float32, average: Float32) -> int | None:
        powers = _power(channels)
        total = float(powers.sum())
        if total == 0.0:
            return self._channel
        if float(_power(average)) >= _LEAST_SHARE * total / len(channels) ** 2:
            return None
        loudest, now = int(powers.argmax()), self._channel
        is_kept = now is not None and powers[loudest] < _LOUDER * powers[now]
        return now if is_kept else loudest


_NOTHING = np.zeros(0, np.float32)


def _power(samples: Float32) -> npt.NDArray[np.float64]:
    power: npt.NDArray[np.float64] = np.mean(np.square(samples, dtype=np.float64), axis=-1)
    return power


def _choice(channels: Float32, average: Float32, channel: int | None) -> Float32:
    chosen: Float32 = average if channel is None else channels[channel]
    return chosen
