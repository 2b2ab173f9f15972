"""Features of 16 kHz audio for transcriber and aligner, as they are trained."""

from __future__ import annotations

import torch
from torch import Tensor

from izwi_models.tiny.recipes.spectral import whisper_mel

MELS_A_FRAME = 8  # mel frames in 80 ms
_SILENT_MEL = -0.5


def token_counts(mel_frames: Tensor) -> Tensor:
    """Audio tokens of so many mel frames; see `AudioConfig.num_tokens`."""
    rest = mel_frames % 100
    for _ in range(3):
        rest = (rest + 1) // 2
    return mel_frames // 100 * 13 + rest


def augmented_mel(audio: Tensor, frames: Tensor, harder: bool = False) -> Tensor:
    """Whisper features of 16 kHz audio with parts hidden.

    Args:
        audio: (rows, n) at 16 kHz.
        frames: (rows,) codec frames of each.
        harder: Hide more, and warp the frequencies of most rows by up to a sixth.
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
    return mel.masked_fill(hidden & real, _SILENT_MEL)
