"""Change the sample rate with a short windowed sinc, as torchaudio does by default.

Models whose published code resamples with torchaudio heard this filter. For sound that people
listen to `izwi.audio.resample` is the better one.
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
        from_rate: In Hz.
        to_rate: In Hz.

    Returns:
        (ceil(n * to_rate / from_rate),) float32.
    """
    if from_rate == to_rate or not len(samples):
        return samples
    divisor = gcd(from_rate, to_rate)
    old, new = from_rate // divisor, to_rate // divisor
    cutoff = min(old, new) * _ROLLOFF
    reach = ceil(_CROSSINGS * old / cutoff)  # input samples on each side of an output sample
    count = ceil(len(samples) * new / old)
    padded = np.pad(samples.astype(np.float32, copy=False), (reach, reach + 1))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 2)
    out = np.empty(count, np.float32)
    for start in range(0, count, _BLOCK_SAMPLES):
        stop = min(start + _BLOCK_SAMPLES, count)
        places = np.arange(start, stop, dtype=np.int64) * old
        phases, of_place = np.unique(places % new, return_inverse=True)
        taps = _taps(phases / new, reach, cutoff / old)[of_place]
        np.einsum("nk,nk->n", windows[places // new], taps, out=out[start:stop])
    return out


def _taps(offsets: npt.NDArray[np.float64], reach: int, cutoff: float) -> Float32:
    """Make the filter for output samples that lie so far behind an input sample.

    Args:
        offsets: (m,) in [0, 1).
        reach: Input samples before that one, and behind the next, that count.
        cutoff: In cycles of two input samples.

    Returns:
        (m, 2 * reach + 2) float32.
    """
    time = (np.arange(-reach, reach + 2) - offsets[:, None]) * cutoff
    np.clip(time, -_CROSSINGS, _CROSSINGS, out=time)
    window = np.cos(time * (np.pi / _CROSSINGS / 2)) ** 2
    taps: Float32 = (np.sinc(time) * window * cutoff).astype(np.float32)
    return taps
