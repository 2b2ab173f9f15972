"""Validation of audio: long enough for one window, finite, within full scale."""

from __future__ import annotations

import numpy as np

from izwi.arrays import Float32, Samples
from izwi.audio.mel import WHISPER_MIN_SAMPLES, WHISPER_RATE
from izwi.errors import InvalidAudio, TooLarge


def checked_samples(samples: Samples, limit_s: float) -> Float32:
    """Return (n,) float32 samples within [-1, 1]; louder audio is scaled, as in the reference.

    Args:
        samples: Samples at 16 kHz; too many are rejected without reading them.
        limit_s: Longest accepted audio, in seconds.

    Raises:
        InvalidAudio: There are fewer than 201 samples, or they are not finite.
        TooLarge: It is longer than `limit_s`.
    """
    seconds = len(samples) / WHISPER_RATE
    if seconds > limit_s:
        raise TooLarge(
            f"{seconds:.1f} s of audio is too long for one piece, which has at most {limit_s:g} s",
            param="file",
        )
    whole = samples[:]
    if whole.ndim != 1 or len(whole) < WHISPER_MIN_SAMPLES:
        raise InvalidAudio(
            f"audio must be mono and have at least {WHISPER_MIN_SAMPLES} samples at 16 kHz, "
            f"got an array of shape {whole.shape}",
            param="file",
        )
    peak = max(float(whole.max()), -float(whole.min()))
    if not np.isfinite(peak):
        raise InvalidAudio("audio has samples that are not numbers", param="file")
    return whole / np.float32(peak) if peak > 1.0 else whole
