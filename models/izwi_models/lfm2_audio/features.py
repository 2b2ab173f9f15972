"""Mel features of audio for the encoder. Knows no tensor library."""

from __future__ import annotations

from izwi.arrays import Float32
from izwi.audio.mel import NEMO_RATE, nemo_log_mel
from izwi.audio.sinc import sinc_resample
from izwi_models.lfm2_audio.audio_config import PreprocessorConfig


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
