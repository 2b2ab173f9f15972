"""Whether sound over an answer is its listener, who speaks, or the room.

Two things of the room sound like speech: the answer's own echo (`echo.py`), and people further
away, who are much quieter than the user was in the turns before.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from izwi.arrays import Float32
from izwi_api.realtime.echo import EchoCheck
from izwi_api.realtime.vad import FRAME_MS, SpeechFrame

# The user's level: that which one in five of the last frames of speech exceed.
_LEVEL_FRAMES = 10_000 // FRAME_MS
_LEAST_LEVELS = 500 // FRAME_MS
_LEVEL_QUANTILE = 0.8
# How far below that speech counts, over an answer and else. Sound is 20 dB quieter from ten times
# the distance.
_OVER_ANSWER_DB = 10.0
_ELSE_DB = 20.0
# The longest time after sound was sent until its echo has died away.
_ECHO_FRAMES = 2_500 // FRAME_MS


class OverlapCheck:
    """Follows what the microphone hears and what its loudspeaker is sent, both at 16 kHz."""

    def __init__(self) -> None:
        self._echo = EchoCheck()
        self._levels_db: deque[float] = deque(maxlen=_LEVEL_FRAMES)
        self._user_db: float | None = None
        self._num_since_sent = _ECHO_FRAMES

    def begin_answer(self) -> None:
        """Note that what is sent next is not played right behind what was sent before."""
        self._echo.begin_answer()
        if len(self._levels_db) >= _LEAST_LEVELS:
            self._user_db = float(np.quantile(self._levels_db, _LEVEL_QUANTILE))

    def write_sent(self, samples: Float32) -> None:
        """Take sound that is sent to the client now."""
        self._echo.write_sent(samples)
        self._num_since_sent = 0

    def is_room(self, frame: SpeechFrame, is_audible: bool) -> bool:
        """Take a frame of the microphone in; whether it is not the user, although it is speech.

        Args:
            frame: Sound.
            is_audible: An answer is played.
        """
        self._echo.write_heard(frame.samples)
        self._num_since_sent += 1
        if frame.speech == 0.0:
            return False
        if self._num_since_sent < _ECHO_FRAMES and self._echo.is_echo():
            return True
        if not is_audible:
            self._levels_db.append(frame.level_db)
        below_db = _OVER_ANSWER_DB if is_audible else _ELSE_DB
        return self._user_db is not None and frame.level_db < self._user_db - below_db
