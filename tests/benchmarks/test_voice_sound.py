"""The figures of a voice distinguish harmonics from noise, and tones and gaps from both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.quality.voice_sound import (
    RATE,
    draw,
    gap_level_db,
    high_periodicity,
    line_db,
    spectrogram,
)

AT = np.arange(RATE) / RATE


def harmonics(up_to_hz: float, f0_hz: float = 150.0) -> np.ndarray:
    count = int(up_to_hz / f0_hz)
    parts = [np.sin(2 * np.pi * f0_hz * n * AT + n * n) / n for n in range(1, count + 1)]
    return (0.2 * np.sum(parts, 0)).astype(np.float32)


def noise(level: float) -> np.ndarray:
    return (level * np.random.default_rng(0).standard_normal(RATE)).astype(np.float32)


def test_harmonics_repeat_and_noise_does_not() -> None:
    clean = high_periodicity(harmonics(5000))
    noisy = high_periodicity(harmonics(1900) + noise(0.01))
    assert clean > 0.95
    assert noisy < 0.4
    assert noisy < high_periodicity(harmonics(5000) + noise(0.01)) < clean
    assert np.isnan(high_periodicity(np.zeros(RATE, np.float32)))


def test_gaps_are_as_quiet_as_they_are() -> None:
    speech = harmonics(3000)
    gap = np.zeros(RATE // 2, np.float32)
    for level in (0.001, 0.01):
        audio = np.concatenate([speech, gap + level, speech])
        expected = 20 * np.log10(level / np.sqrt(np.square(speech).mean()))
        assert gap_level_db(audio) == pytest.approx(expected, abs=0.5)
    assert gap_level_db(speech) > -3


def test_a_tone_stands_out_where_it_is() -> None:
    tone = (0.01 * np.sin(2 * np.pi * 8000 * AT)).astype(np.float32)
    assert line_db(noise(0.01)) < 5
    assert line_db(noise(0.01) + tone) > 20
    assert line_db(noise(0.01) + tone, 6000.0) < 5


def test_pictures_are_small(tmp_path: Path) -> None:
    assert spectrogram(noise(0.1)).shape[0] == 481
    draw(tmp_path / "a.png", harmonics(5000), noise(0.1))
    content = (tmp_path / "a.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) < 150_000
