"""Limits of audio, for processes that do not decode it: FFmpeg takes 0.1 s to import."""

from __future__ import annotations

from dataclasses import dataclass

MIN_SPEED = 0.25  # of speech, relative to the voice's own
MAX_SPEED = 4.0


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """Limits of one decoded file.

    Attributes:
        max_audio_s: Maximum seconds of audio.
        max_decoded_bytes: Bytes of all channels' samples as they leave the decoder.
    """

    max_audio_s: float = 3600.0
    max_decoded_bytes: int = 1 << 30
