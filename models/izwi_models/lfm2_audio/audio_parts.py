"""Validation of audio for a prompt, and its features for the encoder."""

from __future__ import annotations

import numpy as np

from izwi.arrays import Float32
from izwi.errors import InvalidAudio, TooLarge
from izwi.request.request import EncodeInput
from izwi_models.lfm2_audio.audio_config import EncoderConfig, PreprocessorConfig
from izwi_models.lfm2_audio.features import log_mel
from izwi_models.lfm2_audio.prompt import SEGMENT, AudioPart

RATE_HZ = 16_000
# The encoder attends over a whole segment, so twice the length takes four times the memory.
MAX_SEGMENT_S = 120.0


def audio_part(
    preprocessor: PreprocessorConfig, encoder: EncoderConfig, samples: Float32
) -> AudioPart:
    """Check 16 kHz samples and compute the encoder's features.

    Raises:
        InvalidAudio: They are not mono, not finite, or shorter than 10 ms.
        TooLarge: They are longer than MAX_SEGMENT_S.
    """
    seconds = len(samples) / RATE_HZ
    if seconds > MAX_SEGMENT_S:
        raise TooLarge(
            f"{seconds:.1f} s of audio is too long for one segment, which has at most "
            f"{MAX_SEGMENT_S:g} s",
            param="file",
        )
    if not np.isfinite(samples).all():
        raise InvalidAudio("audio has samples that are not numbers", param="file")
    mel = log_mel(preprocessor, samples, RATE_HZ)
    return AudioPart(EncodeInput(SEGMENT, mel), encoder.num_tokens(mel.shape[1]))
