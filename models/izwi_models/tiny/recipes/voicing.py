"""Pitch and voicing of batches of audio by YIN (de Cheveigné and Kawahara, 2002).

For every lag, the difference between a window and the audio `lag` samples later is divided by the
mean of the differences at all shorter lags: near 0 at the period of a voice, near 1 in noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

LOWEST_HZ, HIGHEST_HZ = 60.0, 420.0
_WINDOW_SECONDS = 1024 / 24_000
_HOP_SECONDS = 0.02
_DIP = 0.1  # the period is the first dip below this; if there is none, the deepest one
_VOICED = 0.3  # aperiodicity of a window that counts as voiced
_AUDIBLE = 0.015  # level of a window that counts at all; speech here peaks at 0.6
_LEAST_VOICED = 4  # minimum number of windows for a median
_LAG_TOLERANCE = 0.03  # share of the period: with a gliding pitch, harmonics repeat near it
_LEAST_LEVEL = 3e-4  # minimum level of a band in a window


@dataclass(frozen=True, slots=True)
class Track:
    """Pitch of (rows, windows).

    Attributes:
        f0_hz: The period's frequency, also in windows that are not voiced.
        voiced: Whether a window is audible and has a clear period.
        audible: Whether a window is loud enough to count.
    """

    f0_hz: Tensor
    voiced: Tensor
    audible: Tensor

    def median_f0_hz(self, voiced_only: bool = True) -> list[float]:
        """Return each row's median pitch in voiced (or all audible) windows; nan if too few."""
        counted = self.voiced if voiced_only else self.audible
        return [
            float(f0[mask].median()) if int(mask.sum()) >= _LEAST_VOICED else float("nan")
            for f0, mask in zip(self.f0_hz, counted, strict=True)
        ]


def track_pitch(samples: Tensor, rate: int = 24_000) -> Track:
    """Find the pitch between 60 and 420 Hz in windows of 43 ms, every 20 ms.

    Args:
        samples: (rows, n) floats in [-1, 1], n at least 60 ms.
        rate: Sample rate, Hz.
    """
    window, hop = round(_WINDOW_SECONDS * rate), round(_HOP_SECONDS * rate)
    low, high = int(rate / HIGHEST_HZ), int(rate / LOWEST_HZ) + 1
    stretches = samples.float().unfold(-1, window + high + 1, hop)
    score = _normalised_difference(stretches, window)
    lag, aperiodicity = _period(score, low, high)
    audible = stretches[..., :window].square().mean(-1).sqrt() > _AUDIBLE
    return Track(rate / lag, audible & (aperiodicity < _VOICED), audible)


def compare_pitch(made: Tensor, true: Tensor) -> tuple[float, float, float]:
    """Compare the pitch of decoded audio with its original, both (rows, n).

    Returns:
        The share of the original's audible windows that are voiced; the share of these that are
        voiced in `made`; and the share of those with a pitch off by more than 6 %, a semitone.
    """
    ours, theirs = track_pitch(made), track_pitch(true)
    voiced = theirs.voiced.sum().clamp_min(1)
    kept = ours.voiced & theirs.voiced
    off = (torch.log(ours.f0_hz / theirs.f0_hz).abs() > 0.06) & kept
    shares = (
        theirs.voiced.sum() / theirs.audible.sum().clamp_min(1),
        kept.sum() / voiced,
        off.sum() / kept.sum().clamp_min(1),
    )
    first, second, third = torch.stack(shares).tolist()
    return first, second, third


def periodicity_loss(
    made: Tensor, true: Tensor, bands_hz: Sequence[tuple[float, float]], rate: int = 24_000
) -> Tensor:
    """Compare how periodic each band of `made` and `true` is, in voiced windows.

    Distances of spectra hardly penalize noise in place of closely spaced harmonics. This loss
    compares the normalized autocorrelation of a band at the best lag near the period of `true`: 1
    for harmonics only, near 0 for noise. Too high a value counts as well, because a voice with less
    breath than its original buzzes.

    Args:
        made: (rows, n) that requires gradients, n at least 60 ms.
        true: (rows, n).
        bands_hz: Lower and upper edge of each band.
        rate: Sample rate, Hz.

    Returns:
        Mean size of the difference over bands and voiced windows.
    """
    track = track_pitch(true, rate)
    lag = rate / track.f0_hz
    spectra = torch.fft.rfft(torch.stack([made.float(), true.float()]))
    hertz = torch.fft.rfftfreq(made.shape[-1], 1 / rate, device=made.device)
    differences = []
    for low_hz, high_hz in bands_hz:
        band = torch.fft.irfft(spectra * ((hertz >= low_hz) & (hertz <= high_hz)), made.shape[-1])
        (ours, theirs), level = _repeating(band, lag, rate)
        counted = (track.voiced & (level[1] > _LEAST_LEVEL)).float()
        differences.append(((theirs - ours).abs() * counted).sum() / counted.sum().clamp_min(1))
    return torch.stack(differences).mean()


def _repeating(band: Tensor, lag: Tensor, rate: int) -> tuple[Tensor, Tensor]:
    """Return each window's autocorrelation near a lag, and its level: (..., rows, windows)."""
    low, high = int(rate / HIGHEST_HZ), int(rate / LOWEST_HZ) + 1
    hop, window = round(_HOP_SECONDS * rate), round(_WINDOW_SECONDS * rate)
    stretches = band.unfold(-1, window + high + 1, hop)
    size = 1 << (stretches.shape[-1] - 1).bit_length()
    head = torch.fft.rfft(stretches[..., :window], size)
    product = torch.fft.irfft(torch.fft.rfft(stretches, size) * head.conj(), size)
    energy = F.pad(stretches.double().square().cumsum(-1), (1, 0))
    energies = (energy[..., window:] - energy[..., : energy.shape[-1] - window]).float()
    lags = torch.arange(low, high + 1, device=band.device)
    scale = (energies[..., :1] * energies[..., low : high + 1]).clamp_min(1e-12).sqrt()
    correlation = product[..., low : high + 1] / scale
    near = (lags - lag[..., None]).abs() <= _LAG_TOLERANCE * lag[..., None] + 1
    level = (energies[..., 0] / window).clamp_min(1e-12).sqrt()
    return correlation.masked_fill(~near, -1.0).amax(-1), level


def log_correlation(first: Sequence[float], second: Sequence[float]) -> tuple[float, int]:
    """Correlate the logarithms of paired pitches; also return how many pairs have both."""
    pairs = torch.tensor([first, second]).log()
    pairs = pairs[:, pairs.isfinite().all(0)]
    return (float(torch.corrcoef(pairs)[0, 1]) if pairs.shape[1] > 2 else 0.0), pairs.shape[1]


def _normalised_difference(stretches: Tensor, window: int) -> Tensor:
    """Compute the cumulative mean normalized difference: (..., window + lags) -> (..., lags)."""
    length = stretches.shape[-1]
    lags = length - window
    size = 1 << (length - 1).bit_length()
    head = torch.fft.rfft(stretches[..., :window], size)
    product = torch.fft.irfft(torch.fft.rfft(stretches, size) * head.conj(), size)[..., :lags]
    energy = F.pad(stretches.double().square().cumsum(-1), (1, 0))
    energies = (energy[..., window:] - energy[..., : length - window + 1])[..., :lags].float()
    difference = (energies[..., :1] + energies - 2 * product).clamp_min(0)
    sums = difference.cumsum(-1)
    steps = torch.arange(lags, device=stretches.device)
    normalised = difference * steps / sums.clamp_min(1e-9)
    return torch.where(steps == 0, torch.ones_like(normalised), normalised)


def _period(score: Tensor, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Return the period's lag, refined by a parabola, and its score, from (..., lags)."""
    before, here, after = (
        score[..., low - 1 : high - 1],
        score[..., low:high],
        score[..., low + 1 :],
    )
    after = after[..., : here.shape[-1]]
    dips = (here < before) & (here <= after) & (here < _DIP)
    first = torch.where(dips.any(-1), dips.int().argmax(-1), here.argmin(-1))[..., None]
    a, b, c = (x.gather(-1, first)[..., 0] for x in (before, here, after))
    bend = a - 2 * b + c
    shift = torch.where(bend > 1e-6, 0.5 * (a - c) / bend.clamp_min(1e-6), 0.0).clamp(-0.5, 0.5)
    return low + first[..., 0] + shift, b
