"""Sound on its way into a prompt: checked, and turned into the features that the encoder reads."""

from __future__ import annotations

import numpy as np

from izwi.arrays import Float32
from izwi.errors import InvalidAudio, TooLarge
from izwi.request import EncodeInput
from izwi_models.lfm2_audio.audio_config import EncoderConfig, PreprocessorConfig
from izwi_models.lfm2_audio.features import log_mel
from izwi_models.lfm2_audio.prompt import Sound
from izwi_models.lfm2_audio.segments import SEGMENT

RATE_HZ = 16_000
# The encoder attends over a whole segment: twice as long takes four times the memory.
MAX_SEGMENT_S = 120.0


def heard(preprocessor: PreprocessorConfig, encoder: EncoderConfig, samples: Float32) -> Sound:
    """Check 16 kHz samples and compute what the encoder reads.

    Raises:
        InvalidAudio: They are not mono or not numbers, or there are less than 10 ms of them.
        TooLarge: There are more than MAX_SEGMENT_S.
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
    return Sound(EncodeInput(SEGMENT, mel), encoder.num_tokens(mel.shape[1]))
