"""Features of audio that arrives in pieces are the features of the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.audio.mel import (
    WHISPER_LOOKAHEAD,
    StreamLogMel,
    whisper_closing_frames,
    whisper_log_mel,
    whisper_scaled,
)
from izwi.errors import InvalidAudio
from tests.examples import examples
from tests.models.tiny_asr import waveform

SAMPLES = waveform(3.0)


def streamed(samples: np.ndarray, sizes: list[int]) -> np.ndarray:
    stream, frames, start = StreamLogMel(), [], 0
    for size in sizes:
        frames.append(stream.write(samples[start : start + size]))
        start += size
    frames += [stream.write(samples[start:]), whisper_closing_frames(samples)]
    return np.concatenate(frames, axis=1)


@examples(40)
@given(st.integers(201, len(SAMPLES)), st.lists(st.integers(0, 5000), max_size=12))
def test_streamed_mel_does_not_depend_on_chunk_sizes(length: int, sizes: list[int]) -> None:
    samples = SAMPLES[:length]
    log_power = streamed(samples, sizes)
    assert log_power.shape == (128, length // 160)
    scaled = whisper_scaled(log_power, float(log_power.max()))
    np.testing.assert_allclose(scaled, whisper_log_mel(samples), atol=1e-6, rtol=0)


@pytest.mark.parametrize("length", [201, 239, 240, 360, 399, 400, 401, 16_000, 16_040, 48_000])
def test_in_one_go_it_is_the_same_to_the_bit(length: int) -> None:
    samples = SAMPLES[:length]
    log_power = streamed(samples, [length])
    scaled = whisper_scaled(log_power, float(log_power.max()))
    np.testing.assert_array_equal(scaled, whisper_log_mel(samples))


def test_a_frame_is_ready_as_soon_as_its_window_is_full() -> None:
    for frames in (1, 2, 3, 10, 200):
        needed = frames * 160 + WHISPER_LOOKAHEAD
        before, now = StreamLogMel(), StreamLogMel()
        assert before.write(SAMPLES[: needed - 1]).shape[1] == frames - 1
        assert now.write(SAMPLES[: max(needed, 201)]).shape[1] == frames


def test_each_frame_is_computed_once() -> None:
    stream = StreamLogMel()
    counts = [stream.write(SAMPLES[i : i + 320]).shape[1] for i in range(0, 32_000, 320)]
    assert sum(counts) == 199
    assert set(counts[2:]) == {2}
    assert len(stream._buffered) < 400 + 320


def test_the_left_edge_is_mirrored_as_in_the_whole() -> None:
    # a click at the first samples shows in the first frame only through the mirror
    samples = np.zeros(800, np.float32)
    samples[1:20] = 1.0
    pieces, whole = streamed(samples, [100, 50, 60]), streamed(samples, [800])
    assert whole[:, 0].max() > whole[:, 3].max() + 3
    np.testing.assert_allclose(pieces, whole, atol=1e-5, rtol=0)


def test_stereo_is_invalid_audio() -> None:
    with pytest.raises(InvalidAudio, match="mono"):
        StreamLogMel().write(np.zeros((2, 400), np.float32))
    with pytest.raises(InvalidAudio, match="at least 201"):
        whisper_closing_frames(np.zeros(200, np.float32))
