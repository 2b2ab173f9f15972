"""Short-time spectra, mel scales and the spectral losses of the codec, on any device."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

# (window, mel bands): short windows for time, long ones for pitch.
_RESOLUTIONS = ((32, 5), (64, 10), (128, 20), (256, 40), (512, 80), (1024, 120), (2048, 160))
_LONG_WINDOWS = (4096, 8192)  # bins of 6 and 3 Hz, which separate the harmonics of any voice
_FLOOR = 1e-4
_PLAIN_FLOOR = 1e-5  # times the window: 70 dB below speech; if lower, silence dominates the loss
_LEVEL_WINDOW = 960  # samples over which the low band's level is measured
_LEVEL_FLOOR = 0.01
_GAP_WINDOW = 240  # 10 ms
_GAP_LEVEL = 1e-3


@lru_cache(maxsize=64)
def mel_filters(rate: int, window: int, bands: int, device: torch.device) -> Tensor:
    """Return Slaney-scale triangular filters of unit area, (window / 2 + 1, bands) float32."""
    linear_step, corner, log_step = 200 / 3, 1000.0, np.log(6.4) / 27

    def to_mel(hertz: np.ndarray) -> np.ndarray:
        high = corner / linear_step + np.log(np.maximum(hertz, 1e-9) / corner) / log_step
        return np.where(hertz < corner, hertz / linear_step, high)

    def to_hertz(mel: np.ndarray) -> np.ndarray:
        high = corner * np.exp(log_step * (mel - corner / linear_step))
        return np.where(mel < corner / linear_step, mel * linear_step, high)

    centres = np.linspace(0, rate / 2, window // 2 + 1)
    top = float(to_mel(np.array(rate / 2)))
    points = to_hertz(np.linspace(0, top, bands + 2))
    widths = np.diff(points)
    slopes = points[None] - centres[:, None]
    rising, falling = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    triangles = np.maximum(0, np.minimum(rising, falling)) * (2 / (points[2:] - points[:-2]))
    return torch.tensor(triangles, dtype=torch.float32, device=device)


@lru_cache(maxsize=64)
def _hann(window: int, device: torch.device) -> Tensor:
    return torch.hann_window(window, device=device)


def magnitudes(samples: Tensor, window: int, hop: int, centre: bool = True) -> Tensor:
    """Compute spectral magnitudes: (batch, samples) -> (batch, bins, frames)."""
    hann = _hann(window, samples.device)
    spectrum = torch.stft(samples, window, hop, window, hann, center=centre, return_complex=True)
    # the derivative of abs() at 0 is not a number
    return torch.view_as_real(spectrum).square().sum(-1).add(1e-12).sqrt()


def log_mel(samples: Tensor, rate: int, window: int, hop: int, bands: int) -> Tensor:
    """Compute log mel magnitudes: (batch, samples) -> (batch, frames, bands)."""
    filters = mel_filters(rate, window, bands, samples.device)
    mel = magnitudes(samples, window, hop).transpose(1, 2) @ filters
    return torch.log(mel + 1e-5)


def spectral_loss(made: Tensor, true: Tensor, rate: int) -> Tensor:
    """Compare log mels at seven resolutions, and plain spectra at five; both (rows, samples)."""
    total = torch.zeros((), device=made.device)
    for window, bands in _RESOLUTIONS:
        ours = magnitudes(made, window, window // 4)
        theirs = magnitudes(true, window, window // 4)
        filters = mel_filters(rate, window, bands, made.device)
        ours_mel, theirs_mel = ours.transpose(1, 2) @ filters, theirs.transpose(1, 2) @ filters
        floor = _FLOOR * max(1.0, window / 256)
        mel = (torch.log(ours_mel + floor) - torch.log(theirs_mel + floor)).abs().mean()
        total = total + mel / len(_RESOLUTIONS)
        if window >= 512:
            total = total + _plain_distance(ours, theirs, window) / 3
    for window in _LONG_WINDOWS:
        ours, theirs = (magnitudes(x, window, window // 4) for x in (made, true))
        total = total + _plain_distance(ours, theirs, window) / 3
    return total


def _plain_distance(made: Tensor, true: Tensor, window: int) -> Tensor:
    shape = (made - true).norm() / (true.norm() + 1e-3)
    floor = _PLAIN_FLOOR * window
    level = (torch.log(made + floor) - torch.log(true + floor)).abs().mean()
    return shape + 0.5 * level


def low_band_loss(made: Tensor, true: Tensor, rate: int, cutoff_hz: float) -> Tensor:
    """Compare waveforms below a cutoff, relative to their level.

    Unlike distances of magnitudes, this loss depends on phase. Without it the codes do not contain
    the positions of a voice's pulses, and the decoder places them on a grid of its own.

    Args:
        made: (rows, samples).
        true: (rows, samples).
        rate: Sample rate, Hz.
        cutoff_hz: Upper edge of the band, with a soft slope.

    Returns:
        Root mean square of the difference in windows of 40 ms over that of `true`, averaged.
    """
    frequencies = torch.fft.rfftfreq(true.shape[1], 1 / rate, device=true.device)
    spectrum = torch.fft.rfft(torch.stack([made - true, true]))
    spectrum = spectrum / (1 + (frequencies / cutoff_hz) ** 8)
    waves = torch.fft.irfft(spectrum, true.shape[1])
    levels = waves.unfold(-1, _LEVEL_WINDOW, _LEVEL_WINDOW).square().mean(-1).add(1e-9).sqrt()
    return (levels[0] / (levels[1] + _LEVEL_FLOOR)).mean()


def gap_loss(made: Tensor, true: Tensor) -> Tensor:
    """Average the magnitude of `made` where `true` is silent for 10 ms; both (rows, samples).

    Distances of logarithms need floors, so they do not penalize hiss below these.
    """
    levels = true.unfold(-1, _GAP_WINDOW, _GAP_WINDOW).square().mean(-1).sqrt()
    silent = (levels < _GAP_LEVEL).float()
    sizes = made.unfold(-1, _GAP_WINDOW, _GAP_WINDOW).abs().mean(-1)
    return (sizes * silent).sum() / silent.sum().clamp_min(1)


@lru_cache(maxsize=8)
def _half_band(device: torch.device) -> Tensor:
    """Return a windowed-sinc low-pass filter at 48 kHz for 16 kHz audio: (1, 1, 121)."""
    steps = torch.arange(-60, 61, dtype=torch.float64)
    kernel = torch.sinc(steps / 3) * (0.5 + 0.5 * torch.cos(torch.pi * steps / 61))
    return (kernel / kernel.sum() * 2).float().to(device)[None, None]


def to_16k(samples: Tensor) -> Tensor:
    """Resample (batch, n) from 24 kHz to (batch, 2n / 3) at 16 kHz; n is divisible by three."""
    raised = torch.stack([samples, torch.zeros_like(samples)], -1).flatten(1)
    return F.conv1d(raised[:, None], _half_band(samples.device), stride=3, padding=60)[:, 0]


def speaker_mel(samples: Tensor) -> Tensor:
    """Compute `izwi.audio.mel.speaker_log_mel` for a batch: (batch, frames, 128)."""
    padded = F.pad(samples, (384, 384), mode="reflect")
    hann = _hann(1024, samples.device)
    spectrum = torch.stft(padded, 1024, 256, 1024, hann, center=False, return_complex=True)
    magnitude = torch.view_as_real(spectrum).square().sum(-1).add(1e-9).sqrt()
    filters = mel_filters(24_000, 1024, 128, samples.device)
    return torch.log((magnitude.transpose(1, 2) @ filters).clamp_min(1e-5))


def warped(power: Tensor, factor: Tensor) -> Tensor:
    """Multiply the frequencies of spectra (batch, bins, frames) by a factor (batch,)."""
    bins = power.shape[1]
    place = torch.arange(bins, device=power.device) / factor[:, None]
    low = place.floor().clamp_max(bins - 1)
    rest = (place - low).clamp(0, 1)[..., None]
    index = low.long()[..., None].expand(-1, -1, power.shape[2])
    above = (index + 1).clamp_max(bins - 1)
    moved = torch.lerp(power.gather(1, index), power.gather(1, above), rest.expand_as(power))
    return moved * (place <= bins - 1)[..., None]


def whisper_mel(samples: Tensor, samples_kept: Tensor, warp: Tensor | None = None) -> Tensor:
    """Compute `izwi.audio.mel.whisper_log_mel` for a padded batch: (batch, 128, frames).

    Args:
        samples: (batch, n) at 16 kHz, padded with silence.
        samples_kept: (batch,) samples of each row; the mel is zero after them.
        warp: (batch,) factor of all frequencies, as of a shorter vocal tract.
    """
    hann = _hann(400, samples.device)
    spectrum = torch.stft(samples, 400, 160, 400, hann, center=True, return_complex=True)
    power = torch.view_as_real(spectrum).square().sum(-1)[..., :-1]
    power = power if warp is None else warped(power, warp)
    mel = torch.log10((mel_filters(16_000, 400, 128, samples.device).T @ power).clamp_min(1e-10))
    frames = torch.arange(mel.shape[-1], device=mel.device)
    real = (frames < (samples_kept // 160)[:, None])[:, None]
    loudest = mel.masked_fill(~real, -10.0).amax((1, 2), keepdim=True)
    return (torch.maximum(mel, loudest - 8.0) + 4.0) / 4.0 * real
