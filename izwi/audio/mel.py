"""Log-mel features of mono sound in numpy, as the published recognisers and voice encoders read it.

Knows no model beyond the constants of its front end, and no tensor library.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from izwi.errors import InvalidAudio

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

WHISPER_RATE = 16_000  # Hz
WHISPER_FFT = 400  # 25 ms
WHISPER_HOP = 160  # 10 ms a frame
WHISPER_MELS = 128
WHISPER_MIN_SAMPLES = WHISPER_FFT // 2 + 1  # fewer cannot be padded by reflection

SPEAKER_RATE = 24_000  # Hz
SPEAKER_FFT = 1024
SPEAKER_HOP = 256
SPEAKER_MELS = 128
_SPEAKER_PAD = (SPEAKER_FFT - SPEAKER_HOP) // 2
SPEAKER_MIN_SAMPLES = _SPEAKER_PAD + 1

_BLOCK_FRAMES = 4096  # frames transformed at once, so that an hour of sound needs no gigabyte


@lru_cache(maxsize=8)
def slaney_filterbank(
    sample_rate: int, n_fft: int, num_mels: int, low_hz: float, high_hz: float
) -> Float32:
    """Make triangular filters, equally spaced on Slaney's mel scale, each of unit area.

    Source: librosa.filters.mel(htk=False, norm="slaney").

    Args:
        sample_rate: In Hz.
        n_fft: Length of the transform in samples.
        num_mels: Filters.
        low_hz: Lower edge of the first filter.
        high_hz: Upper edge of the last filter.

    Returns:
        (num_mels, n_fft // 2 + 1) float32, read only.
    """
    bins_hz = np.arange(n_fft // 2 + 1) * (sample_rate / n_fft)
    edges_hz = _mel_to_hz(np.linspace(_hz_to_mel(low_hz), _hz_to_mel(high_hz), num_mels + 2))
    left, centre, right = edges_hz[:-2, None], edges_hz[1:-1, None], edges_hz[2:, None]
    rising = (bins_hz - left) / (centre - left)
    falling = (right - bins_hz) / (right - centre)
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    filters: Float32 = (triangles * (2.0 / (right - left))).astype(np.float32)
    filters.flags.writeable = False
    return filters


def whisper_log_mel(samples: Float32) -> Float32:
    """Compute Whisper's features: log10 mel power within 8 decades of the loudest, scaled to ~1.

    The loudest value is taken over all of `samples`, so a longer clip is not an extension of a
    shorter one. Source: transformers, WhisperFeatureExtractor (feature_size=128, dither=0).

    Args:
        samples: (n,) mono at 16 kHz.

    Returns:
        (128, n // 160) float32, a frame each 10 ms.

    Raises:
        InvalidAudio: `n` is below 201.
    """
    padded = _reflect(samples, WHISPER_FFT // 2, WHISPER_MIN_SAMPLES)
    filters = slaney_filterbank(WHISPER_RATE, WHISPER_FFT, WHISPER_MELS, 0.0, WHISPER_RATE / 2)
    frames = _frames(padded, WHISPER_FFT, WHISPER_HOP)[: len(samples) // WHISPER_HOP]
    mel = np.empty((WHISPER_MELS, len(frames)), np.float32)
    for start in range(0, len(frames), _BLOCK_FRAMES):
        power = _power(frames[start : start + _BLOCK_FRAMES]).astype(np.float32)
        np.matmul(filters, power.T, out=mel[:, start : start + _BLOCK_FRAMES])
    np.log10(np.maximum(mel, 1e-10, out=mel), out=mel)
    np.maximum(mel, mel.max() - np.float32(8.0), out=mel)
    mel += np.float32(4.0)
    mel *= np.float32(0.25)
    return mel


def speaker_log_mel(samples: Float32) -> Float32:
    """Compute the features of Qwen3-TTS's speaker encoder: natural log of mel magnitude.

    Source: qwen_tts, modeling_qwen3_tts.mel_spectrogram.

    Args:
        samples: (n,) mono at 24 kHz.

    Returns:
        (frames, 128) float32, a frame each 256 samples.

    Raises:
        InvalidAudio: `n` is below 385.
    """
    padded = _reflect(samples, _SPEAKER_PAD, SPEAKER_MIN_SAMPLES)
    filters = slaney_filterbank(SPEAKER_RATE, SPEAKER_FFT, SPEAKER_MELS, 0.0, SPEAKER_RATE / 2)
    frames = _frames(padded, SPEAKER_FFT, SPEAKER_HOP)
    mel = np.empty((len(frames), SPEAKER_MELS), np.float32)
    for start in range(0, len(frames), _BLOCK_FRAMES):
        power = _power(frames[start : start + _BLOCK_FRAMES])
        magnitude = np.sqrt(power + 1e-9).astype(np.float32)
        np.matmul(magnitude, filters.T, out=mel[start : start + _BLOCK_FRAMES])
    logarithm: Float32 = np.log(np.maximum(mel, 1e-5, out=mel), out=mel)
    return logarithm


def _reflect(samples: Float32, pad: int, min_samples: int) -> Float32:
    if samples.ndim != 1:
        raise InvalidAudio(f"audio must be mono, got an array of shape {samples.shape}")
    if len(samples) < min_samples:
        raise InvalidAudio(
            f"audio of {len(samples)} samples is too short: at least {min_samples} are needed"
        )
    return np.pad(samples.astype(np.float32, copy=False), pad, mode="reflect")


def _frames(samples: Float32, length: int, hop: int) -> Float32:
    """View (n,) as (frames, length)."""
    return np.lib.stride_tricks.sliding_window_view(samples, length)[::hop]


def _power(frames: Float32) -> Float64:
    """|FFT|^2 under a periodic Hann window, (frames, bins).

    In float64: the quietest bins that count are 1e-4 of the loudest in amplitude, where a float32
    transform has lost three digits.
    """
    spectrum = np.fft.rfft(frames * _hann(frames.shape[1]), axis=-1)
    power: Float64 = np.square(spectrum.real)
    power += np.square(spectrum.imag)
    return power


@lru_cache(maxsize=4)
def _hann(length: int) -> Float64:
    window: Float64 = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(length) / length)
    return window


# Slaney's scale: linear, 3 mel to 200 Hz, up to 1 kHz (15 mel); above, 27 mel to a factor of 6.4.
_KNEE_HZ, _KNEE_MEL, _HZ_PER_MEL, _MEL_PER_LOG = 1000.0, 15.0, 200.0 / 3.0, 27.0 / np.log(6.4)


def _hz_to_mel(hz: float) -> float:
    if hz < _KNEE_HZ:
        return hz / _HZ_PER_MEL
    return float(_KNEE_MEL + _MEL_PER_LOG * np.log(hz / _KNEE_HZ))


def _mel_to_hz(mel: Float64) -> Float64:
    above = _KNEE_HZ * np.exp((mel - _KNEE_MEL) / _MEL_PER_LOG)
    return np.where(mel < _KNEE_MEL, mel * _HZ_PER_MEL, above)
