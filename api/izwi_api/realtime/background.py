"""What sounds behind a speaker: music, by tones that stay where they are, and steady voices.

A frame counts as speech if it is well above the quietest of the last 1.5 s, since a speaker near
the microphone pauses and many voices together do not; and if its spectrum changes, since the
harmonics of a voice glide and the tones of an instrument stay. Measured over espeak-ng, sox and the
embedded voices; `tests/realtime/test_background.py` has the shares.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from izwi.arrays import Float32
from izwi_api.realtime.formats import HEARD_RATE

# Level: power of the last three frames, against a low quantile of the last 1.5 s.
_LEVEL_FRAMES = 3
_PAST_FRAMES = 75
_QUANTILE = 0.1
_LEAST_ABOVE_DB = 6.0
# Tones: magnitudes of 64 ms, compared with those of 120 ms before.
_WINDOW = HEARD_RATE * 64 // 1000
_TAPER = np.hanning(_WINDOW)
_BAND = slice(5, 256)  # 80 to 4000 Hz, of 15.6 Hz
_SMOOTHED = np.ones(9) / 9
_APART_FRAMES = 6
# Of frames with speech, 97 in 100 have less; of dialling tones and sustained chords, 9 in 10 more.
_STEADY = 0.9
# Of the frames of the last second that may be speech, the share of steady ones that makes it music.
_TONE_FRAMES = 50
_LEAST_VOICED = 5
_MUSIC_SHARE = 0.3


class Background:
    """Follows a stream frame by frame; all frames have one length."""

    def __init__(self) -> None:
        self._powers: deque[float] = deque(maxlen=_LEVEL_FRAMES)
        self._levels_db: deque[float] = deque(maxlen=_PAST_FRAMES)
        self._recent = np.zeros(_WINDOW, np.float32)
        self._shapes: deque[Float32] = deque(maxlen=_APART_FRAMES + 1)
        self._steady: deque[tuple[bool, bool]] = deque(maxlen=_TONE_FRAMES)

    def hides(self, frame: Float32, is_voiced: bool) -> bool:
        """Take the next frame in; whether it is background although it sounds like a voice.

        Args:
            frame: Samples at 16 kHz.
            is_voiced: A detector takes it for speech.
        """
        is_low = self._is_low(frame)
        is_music = self._is_music(frame, is_voiced)
        return is_low or is_music

    def _is_low(self, frame: Float32) -> bool:
        self._powers.append(float(np.mean(np.square(frame))))
        level_db = 10.0 * float(np.log10(np.mean(self._powers) + 1e-7))
        self._levels_db.append(level_db)
        quiet_db = sorted(self._levels_db)[int(_QUANTILE * len(self._levels_db))]
        return level_db < quiet_db + _LEAST_ABOVE_DB

    def _is_music(self, frame: Float32, is_voiced: bool) -> bool:
        self._recent = np.concatenate([self._recent[len(frame) :], frame])
        self._shapes.append(_peaks(self._recent))
        is_steady = (
            len(self._shapes) > _APART_FRAMES
            and float(self._shapes[-1] @ self._shapes[0]) > _STEADY
        )
        self._steady.append((is_voiced, is_steady))
        voiced = [steady for voice, steady in self._steady if voice]
        is_tonal = len(voiced) >= _LEAST_VOICED and sum(voiced) > _MUSIC_SHARE * len(voiced)
        return is_steady or is_tonal


def _peaks(samples: Float32) -> Float32:
    """Harmonics without the envelope over them, as a vector of length 1."""
    magnitudes = np.sqrt(np.abs(np.fft.rfft(samples * _TAPER)[_BAND]))
    peaks = magnitudes - np.convolve(magnitudes, _SMOOTHED, "same")
    unit: Float32 = (peaks / (float(np.linalg.norm(peaks)) + 1e-9)).astype(np.float32)
    return unit
