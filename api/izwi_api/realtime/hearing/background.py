"""Detect background sound that resembles speech: music and distant voices.

A frame counts as speech if both hold:

* It is well above the quietest frames of the last 1.5 s. A speaker near the microphone pauses; many
  voices together do not.
* Its spectrum changes. The harmonics of a voice glide; the tones of an instrument stay.

The thresholds were measured on espeak-ng, sox and the embedded voices.
`tests/realtime/hearing/test_background.py` has the shares.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from izwi.arrays import Float32
from izwi_api.realtime.protocol.formats import INPUT_RATE

# Level: power of the last three frames relative to a low quantile of the last 1.5 s.
_LEVEL_FRAMES = 3
_PAST_FRAMES = 75
_QUANTILE = 0.1
_LEAST_ABOVE_DB = 6.0
# A speaker pauses within this time.
_LONGEST_BREATH_FRAMES = 200
# Tones: magnitudes of 64 ms, compared with those of 120 ms before.
_WINDOW = INPUT_RATE * 64 // 1000
_TAPER = np.hanning(_WINDOW)
_BAND = slice(5, 256)  # 80 to 4000 Hz, of 15.6 Hz
_SMOOTHED = np.ones(9) / 9
_APART_FRAMES = 6
# 97 % of speech frames are below this; 90 % of the frames of dial tones and held chords are above.
_STEADY = 0.9
# It is music if this share of the last second's speech-like frames is steady.
_TONE_FRAMES = 50
_LEAST_VOICED = 5
_MUSIC_SHARE = 0.3


class Background:
    """Detects background sound frame by frame. All frames must have the same length."""

    def __init__(self) -> None:
        self._powers: deque[float] = deque(maxlen=_LEVEL_FRAMES)
        self._levels_db: deque[float] = deque(maxlen=_PAST_FRAMES)
        self._recent = np.zeros(_WINDOW, np.float32)
        self._shapes: deque[Float32] = deque(maxlen=_APART_FRAMES + 1)
        self._has_paused = False
        self._num_since_pause = 0
        self._steady: deque[tuple[bool, bool]] = deque(maxlen=_TONE_FRAMES)

    def hides(self, frame: Float32, is_voiced: bool, *, knows_pauses: bool = False) -> bool:
        """Process the next frame and return whether it is background that sounds like a voice.

        Args:
            frame: Samples at 16 kHz.
            is_voiced: Whether the speech detector classified it as speech.
            knows_pauses: The detector takes no noise for speech. Then the level counts only
                where it has found no pause for 4 s, as with many voices together.
        """
        is_low = self._is_low(frame)
        is_music = self._is_music(frame, is_voiced)
        self._num_since_pause = self._num_since_pause + 1 if is_voiced else 0
        has_paused = self._has_paused and self._num_since_pause < _LONGEST_BREATH_FRAMES
        self._has_paused |= not is_voiced
        return is_music or (is_low and not (knows_pauses and has_paused))

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
    """Return the spectrum without its envelope, scaled to unit length."""
    magnitudes = np.sqrt(np.abs(np.fft.rfft(samples * _TAPER)[_BAND]))
    peaks = magnitudes - np.convolve(magnitudes, _SMOOTHED, "same")
    unit: Float32 = (peaks / (float(np.linalg.norm(peaks)) + 1e-9)).astype(np.float32)
    return unit
