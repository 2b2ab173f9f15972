"""The resampler of torchaudio, whole or as a stream, and files that are read through it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.audio.decode import decode_audio, decode_blocks
from izwi.audio.encode import stream_encoder
from izwi.audio.limits import DecodeLimits
from izwi.audio.resample import Resampling
from izwi.audio.sinc import SincStream, sinc_resample
from izwi_api.services.decoding import DecoderPool
from tests.examples import examples

RATES = (8000, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000)


def noise(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.5, 0.5, count).astype(np.float32)


def by_definition(samples: np.ndarray, old: int, new: int) -> np.ndarray:
    """Each output sample as the sum over all input samples, in float64."""
    cutoff = 0.99 * min(old, new)
    times = np.arange(-(-len(samples) * new // old)) / new
    distance = (np.arange(len(samples))[None] / old - times[:, None]) * cutoff
    window = np.cos(np.clip(distance, -6, 6) * np.pi / 12) ** 2
    return (np.sinc(distance) * window * cutoff / old) @ samples.astype(np.float64)


@pytest.mark.parametrize("old", RATES)
@pytest.mark.parametrize("new", [16_000, 24_000])
def test_it_is_a_windowed_sinc(old: int, new: int) -> None:
    samples = noise(311, old)
    if old != new:
        np.testing.assert_allclose(
            sinc_resample(samples, old, new), by_definition(samples, old, new), atol=2e-6
        )
    else:
        assert sinc_resample(samples, old, new) is samples


@examples(60)
@given(
    st.sampled_from(RATES),
    st.lists(st.integers(0, 900), min_size=1, max_size=8),
    st.sampled_from([16_000, 24_000]),
)
def test_pieces_joined_are_the_whole(old: int, cuts: list[int], new: int) -> None:
    samples = noise(sum(cuts), len(cuts))
    stream, pieces, start = SincStream(old, new), [], 0
    for count in cuts:
        pieces.append(stream.write(samples[start : start + count]))
        start += count
    joined = np.concatenate([*pieces, stream.finish()])
    whole = sinc_resample(samples, old, new)
    assert joined.shape == whole.shape == (-(-len(samples) * new // old),)
    np.testing.assert_allclose(joined, whole, atol=1e-6)


def wav(samples: np.ndarray, rate: int) -> bytes:
    encoder = stream_encoder("flac", rate)
    return encoder.write(samples) + encoder.finish()


@pytest.mark.parametrize("rate", [8000, 44_100])
async def test_files_are_read_at_their_own_rate(rate: int) -> None:
    file = wav(noise(3 * rate), rate)
    own = decode_audio(file, rate)
    expected = sinc_resample(own, rate, 16_000)
    given_ = np.concatenate(
        list(decode_blocks(file, 16_000, DecodeLimits(), Resampling.TORCHAUDIO))
    )
    np.testing.assert_allclose(given_, expected, atol=1e-6)
    assert np.abs(decode_audio(file, 16_000) - expected).max() > 1e-3  # the other filter
    pool = DecoderPool(1)
    try:
        read = await pool.decode(file, 16_000, DecodeLimits(), Resampling.TORCHAUDIO)
        np.testing.assert_array_equal(read, given_)
    finally:
        pool.stop()
