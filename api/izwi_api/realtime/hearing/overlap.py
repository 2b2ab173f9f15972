"""Decide whether speech over an answer comes from the user or from the room.

Two sounds in a room resemble the user's speech: the echo of the answer (`echo.py`), and people
further away, who are much quieter than the user was in earlier turns.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from izwi.arrays import Float32
from izwi_api.realtime.hearing.echo import EchoCheck
from izwi_api.realtime.hearing.vad import FRAME_MS, SpeechFrame

# The user's level: the 80th percentile of the last speech frames.
_LEVEL_FRAMES = 10_000 // FRAME_MS
_LEAST_LEVELS = 500 // FRAME_MS
_LEVEL_QUANTILE = 0.8
# Speech counts down to this far below that level: over an answer, or where a turn begins, and
# within a turn. Ten times the distance makes sound 20 dB quieter.
_NEAR_DB = 10.0
_ELSE_DB = 20.0
# Within a turn, softer speech than at its beginning counts for so long behind louder speech: the
# end of a sentence is soft, but a television that goes on is not the user's.
_SOFT_FRAMES = 500 // FRAME_MS
# Speech that was rejected lowers the level, so that a user who speaks softly from now on is heard
# in the end: 3 dB a minute.
_FORGOTTEN_DB = 3.0 * FRAME_MS / 60_000
# The end of a word, such as its last consonant, is much quieter than its vowels.
_ENDING_FRAMES = 200 // FRAME_MS
# Longest time from sending audio until its echo has decayed.
_ECHO_FRAMES = 2_500 // FRAME_MS


class OverlapCheck:
    """Tracks the microphone signal and the audio sent to the loudspeaker, both at 16 kHz.

    Attributes:
        is_soft: The last frame with speech may be the user's, although it is soft: no turn begins
            with it, but within a turn it is transcribed.
    """

    def __init__(self) -> None:
        self._echo = EchoCheck()
        self._levels_db: deque[float] = deque(maxlen=_LEVEL_FRAMES)
        self._user_db: float | None = None
        self._num_since_sent = _ECHO_FRAMES
        self._num_since_user = _ENDING_FRAMES + 1
        self._num_since_loud = 0
        self.is_soft = False

    def begin_answer(self) -> None:
        """Mark a gap: the audio sent next does not directly follow the audio sent before."""
        self._echo.begin_answer()
        if len(self._levels_db) >= _LEAST_LEVELS:
            self._user_db = float(np.quantile(self._levels_db, _LEVEL_QUANTILE))

    def write_sent(self, samples: Float32) -> None:
        """Add audio that is being sent to the client."""
        self._echo.write_sent(samples)
        self._num_since_sent = 0

    def is_room(self, frame: SpeechFrame, is_audible: bool, in_turn: bool = True) -> bool:
        """Process a microphone frame with speech; return whether it is not the user's.

        Args:
            frame: Samples.
            is_audible: Whether an answer is playing.
            in_turn: Whether the user has the turn.
        """
        self.is_soft = False
        self._echo.write_heard(frame.samples)
        self._num_since_sent += 1
        self._num_since_user += 1
        self._num_since_loud += 1
        if frame.speech == 0.0:
            return False
        if self._num_since_sent < _ECHO_FRAMES and self._echo.is_echo():
            self._num_since_user = _ENDING_FRAMES + 1
            return True
        if self._is_far(frame.level_db, is_audible, in_turn):
            return True
        if not is_audible:
            self._levels_db.append(frame.level_db)
        self._num_since_user = 0
        return False

    def _is_far(self, level_db: float, is_audible: bool, in_turn: bool) -> bool:
        """Return whether speech is too quiet to be the user's, compared with earlier turns."""
        below_db = 0.0 if self._user_db is None else self._user_db - level_db
        if self._user_db is None or below_db <= _NEAR_DB:
            self._num_since_loud = 0
            return False
        self.is_soft = not is_audible and below_db <= _ELSE_DB
        if self.is_soft and in_turn and self._num_since_loud <= _SOFT_FRAMES:
            return False
        self._user_db -= _FORGOTTEN_DB
        return True

    @property
    def may_be_ending(self) -> bool:
        """Return whether the last frame may be the quiet end of the user's last word."""
        return self._num_since_user <= _ENDING_FRAMES
