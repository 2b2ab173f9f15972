"""WAV files of plain samples are read by libsndfile, to the samples that FFmpeg gives."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import soundfile

from izwi.audio import decode
from izwi.audio.decode import decode_audio, decode_blocks
from izwi.audio.encode import wav_header
from izwi.audio.limits import DecodeLimits
from izwi.audio.wav import open_pcm_wav
from izwi.errors import TooLarge

RATE = 24_000
PLAIN = ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")


def tone(channels: int, num_samples: int = 70_001):
    generator = np.random.default_rng(channels)
    return generator.uniform(-1.0, 1.0, (num_samples, channels))


def written(samples, subtype: str, container: str = "WAV") -> bytes:
    sink = io.BytesIO()
    soundfile.write(sink, samples, RATE, subtype, format=container)
    return sink.getvalue()


def decoded_by_ffmpeg(content: bytes, monkeypatch, **limits):
    with monkeypatch.context() as patch:
        patch.setattr(decode, "open_pcm_wav", lambda _: None)
        return decode_audio(content, RATE, **limits)


@pytest.mark.parametrize("channels", [1, 2, 6])
@pytest.mark.parametrize("subtype", PLAIN)
def test_samples_equal_those_of_ffmpeg(subtype, channels, monkeypatch):
    content = written(tone(channels), subtype, "WAVEX" if channels > 2 else "WAV")
    assert open_pcm_wav(content) is not None
    expected = decoded_by_ffmpeg(content, monkeypatch)
    np.testing.assert_allclose(decode_audio(content, RATE), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("subtype", PLAIN)
def test_mono_samples_equal_those_of_ffmpeg_bit_for_bit(subtype, monkeypatch):
    content = written(tone(1), subtype)
    expected = decoded_by_ffmpeg(content, monkeypatch)
    np.testing.assert_array_equal(decode_audio(content, RATE), expected)


@pytest.mark.parametrize("subtype", ["ULAW", "ALAW", "IMA_ADPCM", "MS_ADPCM", "GSM610"])
def test_coded_samples_are_left_to_ffmpeg(subtype):
    content = written(tone(1), subtype)
    assert open_pcm_wav(content) is None
    assert len(decode_audio(content, RATE)) >= 70_001


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000])
def test_unknown_length_means_until_the_end(size):
    samples = (tone(1)[:, 0] * 30_000).astype("<i2").tobytes()
    header = bytearray(wav_header(RATE))
    struct.pack_into("<I", header, 40, size)
    assert len(decode_audio(bytes(header) + samples, RATE)) == 70_001


@pytest.mark.parametrize("subtype", PLAIN)
def test_limits_count_as_with_ffmpeg(subtype, monkeypatch):
    content = written(tone(2), subtype)
    width = {"PCM_U8": 1, "PCM_16": 2, "PCM_24": 4, "PCM_32": 4, "FLOAT": 4, "DOUBLE": 8}[subtype]
    exact = DecodeLimits(max_decoded_bytes=70_001 * 2 * width)
    for read in (decode_audio, lambda *a, **b: decoded_by_ffmpeg(a[0], monkeypatch, **b)):
        assert len(read(content, RATE, limits=exact)) == 70_001
        less = DecodeLimits(max_decoded_bytes=exact.max_decoded_bytes - 1)
        with pytest.raises(TooLarge):
            read(content, RATE, limits=less)


def test_too_long_file_is_refused_before_its_first_block():
    blocks = decode_blocks(written(tone(1), "PCM_16"), RATE, DecodeLimits(max_audio_s=2.9))
    with pytest.raises(TooLarge, match=r"longer than 2\.9 s"):
        next(blocks)
