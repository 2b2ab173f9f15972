"""Change the sample rate with a short windowed sinc, as torchaudio does by default.

Models whose published code resamples with torchaudio were trained with this filter. For audio that
is played, `izwi.audio.resample` is better.
"""

from __future__ import annotations

from math import ceil, gcd

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

# torchaudio.functional.resample's defaults: zero crossings on each side, and the cut-off as a part
# of the lower Nyquist frequency.
_CROSSINGS = 6
_ROLLOFF = 0.99
_BLOCK_SAMPLES = 1 << 15  # made at once, so that a file of an hour needs no gigabytes


def sinc_resample(samples: Float32, from_rate: int, to_rate: int) -> Float32:
    """Resample by a Hann-windowed sinc.

    Source: torchaudio 2.11, functional.resample with resampling_method="sinc_interp_hann".

    Args:
        samples: (n,) float32.
        from_rate: Rate of `samples`, Hz.
        to_rate: Rate of the output, Hz.

    Returns:
        (ceil(n * to_rate / from_rate),) float32.
    """
    if from_rate == to_rate or not len(samples):
        return samples
    stream = SincStream(from_rate, to_rate)
    return np.concatenate([stream.write(samples), stream.finish()])


class SincStream:
    """Resample a mono stream chunk by chunk; the pieces joined equal `sinc_resample` of the whole.

    Args:
        from_rate: Rate of the input, Hz.
        to_rate: Rate of the output, Hz.
    """

    def __init__(self, from_rate: int, to_rate: int):
        divisor = gcd(from_rate, to_rate)
        self._old, self._new = from_rate // divisor, to_rate // divisor
        self._cutoff = min(self._old, self._new) * _ROLLOFF
        # input samples on each side of an output sample
        self._reach = ceil(_CROSSINGS * self._old / self._cutoff)
        self._waiting = np.zeros(self._reach, np.float32)
        self._first = -self._reach  # place in the input of what waits
        self._num_read = self._num_made = 0

    def write(self, samples: Float32) -> Float32:
        """Add samples; return those that are ready at the new rate."""
        if self._old == self._new:
            return samples
        self._num_read += len(samples)
        self._waiting = np.concatenate([self._waiting, samples.astype(np.float32, copy=False)])
        # the last one whose window is within the input so far
        last = self._num_read - self._reach - 2
        return self._make(max(self._num_made, (last * self._new) // self._old + 1))

    def finish(self) -> Float32:
        """Return the rest, as if silence followed."""
        if self._old == self._new or not self._num_read:
            return np.zeros(0, np.float32)
        self._waiting = np.concatenate([self._waiting, np.zeros(self._reach + 1, np.float32)])
        return self._make(ceil(self._num_read * self._new / self._old))

    def _make(self, stop: int) -> Float32:
        """Return output samples up to `stop`, and drop input that is no longer needed."""
        out = np.empty(stop - self._num_made, np.float32)
        if not len(out):
            return out
        windows = np.lib.stride_tricks.sliding_window_view(self._waiting, 2 * self._reach + 2)
        for start in range(self._num_made, stop, _BLOCK_SAMPLES):
            until = min(start + _BLOCK_SAMPLES, stop)
            places = np.arange(start, until, dtype=np.int64) * self._old
            phases, of_place = np.unique(places % self._new, return_inverse=True)
            taps = _taps(phases / self._new, self._reach, self._cutoff / self._old)[of_place]
            chosen = windows[places // self._new - self._reach - self._first]
            made = out[start - self._num_made : until - self._num_made]
            np.einsum("nk,nk->n", chosen, taps, out=made)
        self._num_made = stop
        needed = stop * self._old // self._new - self._reach
        dropped = min(max(0, needed - self._first), len(self._waiting))
        self._waiting, self._first = self._waiting[dropped:], self._first + dropped
        return out


def _taps(offsets: npt.NDArray[np.float64], reach: int, cutoff: float) -> Float32:
    """Compute the filter for output samples at given offsets after an input sample.

    Args:
        offsets: (m,) in [0, 1).
        reach: Input samples used before that sample, and after the next one.
        cutoff: Cutoff in cycles per two input samples.

    Returns:
        (m, 2 * reach + 2) float32.
    """
    time = (np.arange(-reach, reach + 2) - offsets[:, None]) * cutoff
    np.clip(time, -_CROSSINGS, _CROSSINGS, out=time)
    window = np.cos(time * (np.pi / _CROSSINGS / 2)) ** 2
    taps: Float32 = (np.sinc(time) * window * cutoff).astype(np.float32)
    return taps
