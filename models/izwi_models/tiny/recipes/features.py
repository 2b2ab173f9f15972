"""Features of 16 kHz audio for transcriber and aligner, as they are trained."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

from izwi_models.tiny.recipes.spectral import whisper_mel

MELS_A_FRAME = 8  # mel frames in 80 ms
_SILENT_MEL = -0.5
_MOST_COLOUR = 0.13  # of a fortieth of 1 dB: standard deviation, 5 dB
_MOST_DELAY = 4.0  # frames of 10 ms: standard deviation


def token_counts(mel_frames: Tensor) -> Tensor:
    """Audio tokens of so many mel frames; see `AudioConfig.num_tokens`."""
    rest = mel_frames % 100
    for _ in range(3):
        rest = (rest + 1) // 2
    return mel_frames // 100 * 13 + rest


def coloured(mel: Tensor) -> Tensor:
    """Raise and lower (rows, bands, frames) smoothly over time and frequency, by up to 12 dB.

    What a synthesizer's spectrum has in common with itself is no help then.
    """
    rows, bands, frames = mel.shape
    coarse = torch.randn(rows, 1, bands // 12, frames // 24 + 2, device=mel.device)
    field = F.interpolate(coarse, (bands, frames), mode="bicubic")[:, 0]
    strength = _MOST_COLOUR * torch.rand(rows, 1, 1, device=mel.device)
    return mel + field * strength


def blurred(mel: Tensor) -> Tensor:
    """Blur the bands of half of the rows, so that single harmonics are lost."""
    wide = F.avg_pool1d(mel.transpose(1, 2).flatten(0, 1)[:, None], 7, 1, 3, False, False)
    wide = wide[:, 0].unflatten(0, (len(mel), -1)).transpose(1, 2)
    share = torch.rand(len(mel), 1, 1, device=mel.device) * 2 - 1
    return torch.lerp(mel, wide, share.clamp_min(0))


def unsteady(mel: Tensor) -> Tensor:
    """Play (rows, bands, frames) faster and slower by turns; nothing moves by more than 70 ms."""
    rows, bands, frames = mel.shape
    coarse = torch.randn(rows, 1, frames // 20 + 2, device=mel.device)
    curve = F.interpolate(coarse, frames, mode="linear")[:, 0]
    strength = _MOST_DELAY * torch.rand(rows, 1, device=mel.device)
    place = torch.arange(frames, device=mel.device) + (curve * strength).clamp(-7, 7)
    place = place.clamp(0, frames - 1)
    low = place.floor()
    index = low.long()[:, None].expand(-1, bands, -1)
    above = (index + 1).clamp_max(frames - 1)
    return torch.lerp(mel.gather(2, index), mel.gather(2, above), (place - low)[:, None])


def augmented_mel(audio: Tensor, frames: Tensor, harder: bool = False) -> Tensor:
    """Whisper features of 16 kHz audio with parts hidden.

    Args:
        audio: (rows, n) at 16 kHz.
        frames: (rows,) codec frames of each.
        harder: Hide more, warp the frequencies of most rows by up to a sixth, and move levels,
            times and details of the spectrum.
    """
    rows, device = len(audio), audio.device

    def draw(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(rows, *shape, device=device)

    kept = frames * (16_000 * 8 // 100)
    warp = None
    if harder:
        warp = torch.where(
            draw(0, 1) < 0.7, 2 ** draw(-0.22, 0.22), torch.ones(rows, device=device)
        )
    mel = whisper_mel(audio, kept, warp)
    if harder:
        mel = coloured(unsteady(blurred(mel)))
    band = torch.arange(mel.shape[1], device=device)[None, :, None]
    low, top = draw(0, 110, 1, 1), draw(80, 128, 1, 1)
    hidden = (band >= low) & (band < low + draw(0, 16, 1, 1))
    hidden = hidden | ((band >= top) & (draw(0, 1, 1, 1) < 0.2))
    time = torch.arange(mel.shape[2], device=device)[None, None]
    if harder:
        second = draw(0, 118, 1, 1)
        hidden = hidden | ((band >= second) & (band < second + draw(0, 14, 1, 1)))
    for widest in (10, 10, 16, 24) if harder else (10, 10):
        start = draw(0, 1, 1, 1) * frames[:, None, None] * MELS_A_FRAME
        hidden = hidden | ((time >= start) & (time < start + draw(0, widest, 1, 1)))
    real = time < frames[:, None, None] * MELS_A_FRAME
    return mel.masked_fill(hidden & real, _SILENT_MEL) * real
