"""Generate random audio that is in no cache and that speech detection accepts as speech."""

from __future__ import annotations

import numpy as np

from izwi.arrays import Float32

_SMOOTHED_SAMPLES = 8
_SYLLABLES_PER_S = 4.0


def random_audio(seconds: float, rate: int, seed: int) -> Float32:
    """Make noise whose low and high bands swell in turn, like vowels and fricatives.

    Steady noise, or noise that swells in all bands together, is not transcribed: the server would
    answer without the model (`izwi.audio.speech_detection`).

    Args:
        seconds: Length.
        rate: Samples per second.
        seed: Each seed gives different audio.

    Returns:
        (n,) float32, within about 0.5.
    """
    count = round(seconds * rate)
    noise = np.random.default_rng(seed).standard_normal((2, count))
    sums = np.cumsum(np.pad(noise[0], (_SMOOTHED_SAMPLES, 0)))
    low = (sums[_SMOOTHED_SAMPLES:] - sums[:-_SMOOTHED_SAMPLES]) / np.sqrt(_SMOOTHED_SAMPLES)
    high = np.diff(noise[1], prepend=0.0) / np.sqrt(2.0)
    swell = 0.9 * np.sin(2 * np.pi * _SYLLABLES_PER_S * np.arange(count) / rate)
    return (0.08 * (low * (1.0 + swell) + 0.5 * high * (1.0 - swell))).astype(np.float32)
