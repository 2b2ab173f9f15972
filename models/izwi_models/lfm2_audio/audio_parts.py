"""Validation of audio for a prompt, and its features for the encoder."""

from __future__ import annotations

import numpy as np

from izwi.arrays import Float32
from izwi.audio.mel import NEMO_RATE, nemo_log_mel
from izwi.audio.sinc import sinc_resample
from izwi.errors import InvalidAudio, TooLarge
from izwi.request.request import EncodeInput
from izwi_models.lfm2_audio.audio_config import EncoderConfig, PreprocessorConfig
from izwi_models.lfm2_audio.prompt import SEGMENT, AudioPart


def log_mel(config: PreprocessorConfig, samples: Float32, sample_rate: int) -> Float32:
    """Compute the features of one segment.

    The frame after the last whole one, which is zeros, counts as a frame, as in the reference
    (ChatState.add_audio of liquid_audio 1.3.0).

    Args:
        config: Of the checkpoint.
        samples: (n,) mono.
        sample_rate: Sample rate of the samples in Hz.

    Returns: (features, m // 160 + 1) float32 for m samples at 16 kHz.

    Raises:
        InvalidAudio: The samples are not mono, or shorter than 10 ms.
    """
    return nemo_log_mel(sinc_resample(samples, sample_rate, NEMO_RATE), config.features)


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
