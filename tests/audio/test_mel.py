"""Features against the reference's and against librosa's definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from izwi.audio.mel import (
    _BLOCK_FRAMES,
    _MOST_PRODUCTS,
    _bands,
    _filter,
    slaney_filterbank,
    speaker_log_mel,
    whisper_log_mel,
)
from izwi.errors import InvalidAudio
from tests.models.tiny_asr import waveform

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "asr.npz")
STEP = 37


@pytest.mark.parametrize("seconds", [0.35, 3.2, 20.0])
def test_whisper_features_are_the_references(seconds):
    mel = whisper_log_mel(waveform(seconds))
    assert mel.dtype == np.float32
    assert mel.shape == (128, int(seconds * 100))
    expected = GOLDEN[f"features_{seconds}"]
    np.testing.assert_allclose(mel.flatten()[::STEP], expected, atol=1e-4, rtol=0)


def test_long_audio_is_transformed_in_blocks_without_seams():
    samples = waveform(60.0)
    late = whisper_log_mel(samples)[:, 4000:4200]
    alone = whisper_log_mel(samples[16000 * 30 :])[:, 1000:1200]
    # both clips reach the same loudest value, so only the seam could differ
    assert np.abs(late - alone).max() < 0.05
    assert np.median(np.abs(late - alone)) < 0.01


def test_silence_has_a_floor():
    np.testing.assert_allclose(whisper_log_mel(np.zeros(1600, np.float32)), -1.5, atol=1e-6)


@pytest.mark.parametrize("samples", [0, 1, 200])
def test_too_little_to_reflect_is_invalid_audio(samples):
    with pytest.raises(InvalidAudio, match="at least 201"):
        whisper_log_mel(np.zeros(samples, np.float32))
    with pytest.raises(InvalidAudio, match="at least 385"):
        speaker_log_mel(np.zeros(samples, np.float32))


def test_two_channels_are_invalid_audio():
    with pytest.raises(InvalidAudio, match="mono"):
        whisper_log_mel(np.zeros((2, 1600), np.float32))


def test_shortest_audio():
    assert whisper_log_mel(np.ones(201, np.float32)).shape == (128, 1)
    assert speaker_log_mel(np.ones(385, np.float32)).shape == (1, 128)


def test_filters_overlap_and_have_unit_area():
    filters = slaney_filterbank(16000, 400, 128, 0.0, 8000.0)
    assert filters.shape == (128, 201)
    assert not filters.flags.writeable
    assert np.all(filters >= 0)
    # the wide filters are sampled finely enough for their area to show: 40 Hz a bin
    np.testing.assert_allclose(filters[-20:].sum(1) * 40.0, 1.0, atol=0.02)


@pytest.mark.parametrize(("rate", "n_fft"), [(16000, 400), (24000, 1024)])
def test_bands_are_the_filterbank_in_products_that_one_thread_computes(rate, n_fft):
    whole = np.zeros((128, n_fft // 2 + 1), np.float32)
    bands = _bands(rate, n_fft, 128)
    for band in bands:
        whole[band.filters, band.bins] += band.weights
        assert band.weights.size * _BLOCK_FRAMES <= _MOST_PRODUCTS
    np.testing.assert_array_equal(whole, slaney_filterbank(rate, n_fft, 128, 0.0, rate / 2))
    power = np.random.default_rng(0).random((7, n_fft // 2 + 1), np.float32)
    found = np.empty((128, 7), np.float32)
    _filter(bands, power, found)
    np.testing.assert_allclose(found, whole @ power.T, rtol=1e-5)


def test_speaker_features_are_the_definition():
    samples = waveform(1.5)[: 24000 // 2]
    mel = speaker_log_mel(samples)
    assert mel.shape == (len(samples) // 256, 128)
    padded = np.pad(samples.astype(np.float64), 384, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(1024) / 1024)
    frame = 7
    spectrum = np.fft.rfft(padded[frame * 256 : frame * 256 + 1024] * window)
    magnitude = np.sqrt(np.abs(spectrum) ** 2 + 1e-9)
    filters = slaney_filterbank(24000, 1024, 128, 0.0, 12000.0).astype(np.float64)
    expected = np.log(np.maximum(filters @ magnitude, 1e-5))
    np.testing.assert_allclose(mel[frame], expected, atol=1e-4, rtol=0)
