"""Log-mel features of mono audio in numpy, as the published recognisers and voice encoders read it.

Knows no model beyond the constants of its front end, and no tensor library.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

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
# Samples after the hop of a frame that its window reaches over: n frames need 160 n + 40 samples.
WHISPER_LOOKAHEAD = WHISPER_FFT // 2 - WHISPER_HOP

SPEAKER_RATE = 24_000  # Hz
SPEAKER_FFT = 1024
SPEAKER_HOP = 256
SPEAKER_MELS = 128
_SPEAKER_PAD = (SPEAKER_FFT - SPEAKER_HOP) // 2
SPEAKER_MIN_SAMPLES = _SPEAKER_PAD + 1

NEMO_RATE = 16_000  # Hz
NEMO_FFT = 512
NEMO_WINDOW = 400  # 25 ms
NEMO_HOP = 160  # 10 ms a frame
NEMO_MIN_SAMPLES = NEMO_HOP  # fewer have no frame to take the mean of
_NEMO_PREEMPHASIS = 0.97

# Frames transformed at once. With blocks, an hour of audio needs less than a gigabyte, and a block
# stays in a core's cache. Worker threads return larger buffers to the system and fault them in
# again for every clip, which took twice as long as the transform.
_BLOCK_FRAMES = 128
# Products of more multiplications than this OpenBLAS hands to all cores: many threads that compute
# features then wait for each other, 68 ms a clip of 8 s where one takes 2.
_MOST_PRODUCTS = 1 << 18


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


class _Band(NamedTuple):
    """Some consecutive filters and the bins that they reach over."""

    filters: slice
    bins: slice
    weights: Float32  # (filters, bins)


@lru_cache(maxsize=8)
def _bands(sample_rate: int, n_fft: int, num_mels: int) -> tuple[_Band, ...]:
    """Cut a filterbank up to half the rate, of which all but a hundredth is zeros, along its bands.

    Each band takes a block of frames in at most `_MOST_PRODUCTS` multiplications.
    """
    bank = slaney_filterbank(sample_rate, n_fft, num_mels, 0.0, sample_rate / 2)
    bands: list[_Band] = []
    first = 0
    for last in range(num_mels):
        # all but the last filter of a band fit; a band has one at least
        following = _band(bank, first, last + 2)
        if last + 1 == num_mels or following.weights.size * _BLOCK_FRAMES > _MOST_PRODUCTS:
            bands.append(_band(bank, first, last + 1))
            first = last + 1
    return tuple(bands)


def _band(bank: Float32, first: int, stop: int) -> _Band:
    reached = np.flatnonzero(bank[first:stop].any(axis=0))
    bins = slice(int(reached[0]), int(reached[-1]) + 1)
    return _Band(slice(first, stop), bins, np.ascontiguousarray(bank[first:stop, bins]))


def _filter(bands: tuple[_Band, ...], power: Float32, out: Float32) -> None:
    """Write (frames, bins) through the filters to `out`, (mels, frames)."""
    for band in bands:
        np.matmul(band.weights, power[:, band.bins].T, out=out[band.filters])


class StreamLogMel:
    """Whisper's log10 mel power of audio that arrives in pieces. Each frame is computed once.

    A frame is ready when the 200 samples after its centre are there, so the end of the audio lacks
    at most one, which `whisper_closing_frames` gives. Nothing is clamped yet: what is loudest
    is known only at the end, see `whisper_scaled`.

    A frame does not depend on how the audio was cut into pieces but for float32 rounding, and
    equal pieces give equal bits.
    """

    def __init__(self) -> None:
        self._is_padded = False  # whether the reflection before the first sample is there
        self._buffered: Float32 = np.zeros(0, np.float32)  # from the first sample still needed

    def write(self, samples: Float32) -> Float32:
        """Take the next samples and return the frames that they complete.

        Args:
            samples: (n,) mono at 16 kHz, any number.

        Returns:
            (128, frames) float32, log10 of mel power, at least -10.

        Raises:
            InvalidAudio: The samples are not mono.
        """
        if samples.ndim != 1:
            raise InvalidAudio(f"audio must be mono, got an array of shape {samples.shape}")
        self._buffered = np.concatenate([self._buffered, samples.astype(np.float32, copy=False)])
        if not self._is_padded:
            if len(self._buffered) < WHISPER_MIN_SAMPLES:
                return np.zeros((WHISPER_MELS, 0), np.float32)
            mirrored = self._buffered[WHISPER_FFT // 2 : 0 : -1]
            self._buffered = np.concatenate([mirrored, self._buffered])
            self._is_padded = True
        if len(self._buffered) < WHISPER_FFT:
            return np.zeros((WHISPER_MELS, 0), np.float32)
        power = _log_mel_power(_frames(self._buffered, WHISPER_FFT, WHISPER_HOP))
        self._buffered = self._buffered[power.shape[1] * WHISPER_HOP :].copy()
        return power


def whisper_closing_frames(samples: Float32) -> Float32:
    """Compute the last frame at the end of the audio, if its window is cut short.

    Args:
        samples: (n,) mono at 16 kHz, all of the audio.

    Returns:
        (128, 0 or 1) float32, as from `StreamLogMel`, which gave the frames before.

    Raises:
        InvalidAudio: `n` is below 201.
    """
    num_whole = _num_whole(samples)
    # the mirror image at the left matters only where the audio begins here
    first = max(0, num_whole - 3)
    padded = _reflect(samples[first * WHISPER_HOP :], WHISPER_FFT // 2, WHISPER_MIN_SAMPLES)
    frames = _frames(padded, WHISPER_FFT, WHISPER_HOP)[: len(samples) // WHISPER_HOP - first]
    return _log_mel_power(frames[num_whole - first :])


def whisper_scaled(log_power: Float32, loudest: float) -> Float32:
    """Clamp log10 mel power to the 8 decades below `loudest` and scale it to about [-1, 1].

    Args:
        log_power: Any shape, float32; it is not changed.
        loudest: The largest value of the whole audio.
    """
    return _scale(log_power, loudest, np.empty_like(log_power))


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
    frames = _frames(padded, WHISPER_FFT, WHISPER_HOP)[: len(samples) // WHISPER_HOP]
    mel = np.empty((WHISPER_MELS, len(frames)), np.float32)
    num_whole = _num_whole(samples)
    # the last frame apart, as for audio that arrives in pieces: the same bits
    for part in (slice(num_whole), slice(num_whole, None)):
        _log_mel_power(frames[part], out=mel[:, part])
    return _scale(mel, float(mel.max()), mel)


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
    bands = _bands(SPEAKER_RATE, SPEAKER_FFT, SPEAKER_MELS)
    frames = _frames(padded, SPEAKER_FFT, SPEAKER_HOP)
    mel = np.empty((SPEAKER_MELS, len(frames)), np.float32)
    for block, power in _powers(frames):
        _filter(bands, np.sqrt(power + 1e-9).astype(np.float32), out=mel[:, block])
    np.log(np.maximum(mel, 1e-5, out=mel), out=mel)
    return np.ascontiguousarray(mel.T)


def nemo_log_mel(samples: Float32, num_mels: int) -> Float32:
    """Compute the features of NeMo's recognisers: natural log of mel power, normalised.

    Each filter has mean 0 and deviation 1 over the n // 160 frames that are wholly there. The one
    behind them, centred in the padding, is zeros. Source: NeMo, FilterbankFeatures ("per_feature"
    normalisation, no dither), as in liquid_audio 1.3.0, model/conformer/processor.py.

    Args:
        samples: (n,) mono at 16 kHz.
        num_mels: Filters.

    Returns:
        (num_mels, n // 160 + 1) float32, a frame each 10 ms.

    Raises:
        InvalidAudio: `n` is below 160.
    """
    _check_mono(samples, NEMO_MIN_SAMPLES)
    padded = np.zeros(len(samples) + NEMO_FFT, np.float32)
    padded[NEMO_FFT // 2 : -NEMO_FFT // 2] = samples
    # the first sample stays as it is: zeros are before it
    padded[1:] -= np.float32(_NEMO_PREEMPHASIS) * padded[:-1]
    padded[len(samples) + NEMO_FFT // 2] = 0.0
    count = len(samples) // NEMO_HOP
    frames = _frames(padded, NEMO_FFT, NEMO_HOP)[:count]
    mel = np.zeros((num_mels, count + 1), np.float32)
    bands = _bands(NEMO_RATE, NEMO_FFT, num_mels)
    for block, power in _powers(frames, _nemo_window()):
        _filter(bands, power.astype(np.float32), out=mel[:, block])
    valid = mel[:, :count]
    np.log(np.add(valid, np.float32(2.0**-24), out=valid), out=valid)
    valid -= valid.mean(axis=1, keepdims=True)
    if count > 1:  # a single frame is zeros now
        variance = np.square(valid).sum(axis=1, keepdims=True) / np.float32(count - 1)
        valid /= np.sqrt(variance) + np.float32(1e-5)
    return mel


def _check_mono(samples: Float32, min_samples: int) -> None:
    if samples.ndim != 1:
        raise InvalidAudio(f"audio must be mono, got an array of shape {samples.shape}")
    if len(samples) < min_samples:
        raise InvalidAudio(
            f"audio of {len(samples)} samples is too short: at least {min_samples} are needed"
        )


def _reflect(samples: Float32, pad: int, min_samples: int) -> Float32:
    _check_mono(samples, min_samples)
    samples = samples.astype(np.float32, copy=False)
    return np.concatenate([samples[pad:0:-1], samples, samples[-2 : -pad - 2 : -1]])


def _frames(samples: Float32, length: int, hop: int) -> Float32:
    """View (n,) as (frames, length)."""
    return np.lib.stride_tricks.sliding_window_view(samples, length)[::hop]


def _num_whole(samples: Float32) -> int:
    """Number of Whisper's frames whose window ends within the audio."""
    return max(0, (len(samples) - WHISPER_LOOKAHEAD) // WHISPER_HOP)


def _scale(log_power: Float32, loudest: float, out: Float32) -> Float32:
    """`whisper_scaled` into `out`, which may be `log_power`."""
    np.maximum(log_power, np.float32(loudest) - np.float32(8.0), out=out)
    out += np.float32(4.0)
    out *= np.float32(0.25)
    return out


def _log_mel_power(frames: Float32, out: Float32 | None = None) -> Float32:
    """Turn (frames, 400) samples into (128, frames) log10 mel power, at least -10."""
    bands = _bands(WHISPER_RATE, WHISPER_FFT, WHISPER_MELS)
    mel = np.empty((WHISPER_MELS, len(frames)), np.float32) if out is None else out
    for block, power in _powers(frames):
        _filter(bands, power.astype(np.float32), out=mel[:, block])
    np.log10(np.maximum(mel, 1e-10, out=mel), out=mel)
    return mel


def _powers(frames: Float32, window: Float64 | None = None) -> Iterator[tuple[slice, Float64]]:
    """|FFT|^2 under a window, a periodic Hann by default, (frames, bins), a block at a time.

    What is yielded is overwritten by the next block. In float64: the quietest bins that count are
    1e-4 of the loudest in amplitude, where a float32 transform has lost three digits (and numpy's
    takes longer).
    """
    length, most = frames.shape[1], min(len(frames), _BLOCK_FRAMES)
    window = _hann(length) if window is None else window
    windowed, power = np.empty((most, length)), np.empty((most, length // 2 + 1))
    for start in range(0, len(frames), _BLOCK_FRAMES):
        block = slice(start, min(start + _BLOCK_FRAMES, len(frames)))
        size = block.stop - start
        np.multiply(frames[block], window, out=windowed[:size])
        spectrum = np.fft.rfft(windowed[:size], axis=-1)
        parts = spectrum.view(np.float64)  # real and imaginary by turns
        np.square(parts, out=parts)
        yield block, np.add(parts[:, ::2], parts[:, 1::2], out=power[:size])


@lru_cache(maxsize=4)
def _hann(length: int) -> Float64:
    window: Float64 = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(length) / length)
    return window


@lru_cache(maxsize=1)
def _nemo_window() -> Float64:
    """A symmetric Hann window in the middle of a transform."""
    beside = (NEMO_FFT - NEMO_WINDOW) // 2
    return np.pad(np.hanning(NEMO_WINDOW), beside)


# Slaney's scale: linear, 3 mel to 200 Hz, up to 1 kHz (15 mel); above, 27 mel to a factor of 6.4.
_KNEE_HZ, _KNEE_MEL, _HZ_PER_MEL, _MEL_PER_LOG = 1000.0, 15.0, 200.0 / 3.0, 27.0 / np.log(6.4)


def _hz_to_mel(hz: float) -> float:
    if hz < _KNEE_HZ:
        return hz / _HZ_PER_MEL
    return float(_KNEE_MEL + _MEL_PER_LOG * np.log(hz / _KNEE_HZ))


def _mel_to_hz(mel: Float64) -> Float64:
    above = _KNEE_HZ * np.exp((mel - _KNEE_MEL) / _MEL_PER_LOG)
    return np.where(mel < _KNEE_MEL, mel * _HZ_PER_MEL, above)
