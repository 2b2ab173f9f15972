"""Loudness of speech as ITU-R BS.1770-4 measures it, in batches on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from izwi_models.tiny.recipes.speech import SAMPLE_RATE

# The two filters at 48 kHz, as the recommendation prints them: numerator, then denominator.
_SHELF = (
    (1.53512485958697, -2.69169618940638, 1.19839281085285),
    (1.0, -1.69065929318241, 0.73248077421585),
)
_HIGH_PASS = ((1.0, -2.0, 1.0), (1.0, -1.99004745483398, 0.99007225036621))
_FILTER_RATE = 48_000
_BLOCK, _STEP = SAMPLE_RATE * 4 // 10, SAMPLE_RATE // 10  # samples
_OFFSET = -0.691
_ABSOLUTE_GATE = -70.0  # LUFS
_RELATIVE_GATE = -10.0  # LU below the mean of the blocks that pass the first gate


def _gain(frequencies: Tensor) -> Tensor:
    """Return the power gain of both filters at some frequencies in Hz."""
    turn = torch.exp(-2j * torch.pi * frequencies.double() / _FILTER_RATE)
    power = torch.ones_like(frequencies, dtype=torch.float64)
    for above, below in (_SHELF, _HIGH_PASS):
        top, bottom = (a + b * turn + c * turn * turn for a, b, c in (above, below))
        power = power * (top.abs() / bottom.abs()).square()
    return power.float()


def loudness(audio: Tensor) -> Tensor:
    """Measure the integrated loudness of clips of one channel.

    Args:
        audio: (rows, samples) float32 at 24 kHz; silence after a clip does not count.

    Returns:
        (rows,) LUFS; -70 where a clip is silent.
    """
    padded = torch.nn.functional.pad(audio, (0, max(0, _BLOCK - audio.shape[1])))
    count = padded.shape[1]
    spectrum = torch.fft.rfft(padded, 2 * count)  # twice as long: what rings on stays apart
    frequencies = torch.fft.rfftfreq(2 * count, 1 / SAMPLE_RATE, device=audio.device)
    weighted = torch.fft.irfft(spectrum * _gain(frequencies).sqrt(), 2 * count)[:, :count]
    power = weighted.square().unfold(1, _BLOCK, _STEP).mean(-1)
    level = _OFFSET + 10 * power.clamp_min(1e-12).log10()
    passed = level > _ABSOLUTE_GATE
    gate = _level_of(power, passed) + _RELATIVE_GATE
    return _level_of(power, passed & (level > gate[:, None]))


def _level_of(power: Tensor, chosen: Tensor) -> Tensor:
    """Return the level (rows,) of the chosen blocks of (rows, blocks)."""
    mean = (power * chosen).sum(1) / chosen.sum(1).clamp_min(1)
    level = _OFFSET + 10 * mean.clamp_min(1e-12).log10()
    return torch.where(chosen.any(1), level, torch.full_like(level, _ABSOLUTE_GATE))


def levelling_gain(audio: Tensor, target: float, highest_peak: float = 0.95) -> Tensor:
    """Return the factors (rows,) that give clips a loudness, or the peak that they may have.

    Args:
        audio: (rows, samples) float32 at 24 kHz.
        target: LUFS.
        highest_peak: Of full scale.
    """
    gain = 10 ** ((target - loudness(audio)) / 20)
    peak = audio.abs().amax(1).clamp_min(1e-6)
    return torch.minimum(gain, highest_peak / peak)
