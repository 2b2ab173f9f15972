"""Decide whether speech over an answer comes from the user or from the room.

Two sounds in a room resemble the user's speech: the echo of the answer (`echo.py`), and people
further away, who are much quieter than the user was in earlier turns.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from izwi.arrays import Float32
from izwi_api.realtime.echo import EchoCheck
from izwi_api.realtime.vad import FRAME_MS, SpeechFrame

# The user's level: the 80th percentile of the last speech frames.
_LEVEL_FRAMES = 10_000 // FRAME_MS
_LEAST_LEVELS = 500 // FRAME_MS
_LEVEL_QUANTILE = 0.8
# Speech counts down to this far below that level, over an answer and otherwise. Ten times the
# distance makes sound 20 dB quieter.
_OVER_ANSWER_DB = 10.0
_ELSE_DB = 20.0
# The end of a word, such as its last consonant, is much quieter than its vowels.
_ENDING_FRAMES = 200 // FRAME_MS
# Longest time from sending audio until its echo has decayed.
_ECHO_FRAMES = 2_500 // FRAME_MS


class OverlapCheck:
    """Tracks the microphone signal and the audio sent to the loudspeaker, both at 16 kHz."""

    def __init__(self) -> None:
        self._echo = EchoCheck()
        self._levels_db: deque[float] = deque(maxlen=_LEVEL_FRAMES)
        self._user_db: float | None = None
        self._num_since_sent = _ECHO_FRAMES
        self._num_since_user = _ENDING_FRAMES + 1

    def begin_answer(self) -> None:
        """Mark a gap: the audio sent next does not directly follow the audio sent before."""
        self._echo.begin_answer()
        if len(self._levels_db) >= _LEAST_LEVELS:
            self._user_db = float(np.quantile(self._levels_db, _LEVEL_QUANTILE))

    def write_sent(self, samples: Float32) -> None:
        """Add audio that is being sent to the client."""
        self._echo.write_sent(samples)
        self._num_since_sent = 0

    def is_room(self, frame: SpeechFrame, is_audible: bool) -> bool:
        """Process a microphone frame with speech; return whether it is not the user's.

        Args:
            frame: Samples.
            is_audible: Whether an answer is playing.
        """
        self._echo.write_heard(frame.samples)
        self._num_since_sent += 1
        self._num_since_user += 1
        if frame.speech == 0.0:
            return False
        if self._num_since_sent < _ECHO_FRAMES and self._echo.is_echo():
            self._num_since_user = _ENDING_FRAMES + 1
            return True
        if not is_audible:
            self._levels_db.append(frame.level_db)
        below_db = _OVER_ANSWER_DB if is_audible else _ELSE_DB
        if self._user_db is not None and frame.level_db < self._user_db - below_db:
            return True
        self._num_since_user = 0
        return False

    @property
    def may_be_ending(self) -> bool:
        """Return whether the last frame may be the quiet end of the user's last word."""
        return self._num_since_user <= _ENDING_FRAMES
