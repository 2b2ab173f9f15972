"""The microphone of one client: which of its frames are the user's, and silence where none come."""

from __future__ import annotations

import numpy as np

from izwi_api.realtime.hearing.input_audio import InputBuffer
from izwi_api.realtime.hearing.overlap import OverlapCheck
from izwi_api.realtime.hearing.quiet_input import QuietInput
from izwi_api.realtime.hearing.vad import SpeechFrame
from izwi_api.realtime.turns.state import State


class Microphone:
    """Reads frames of the input buffer. Use it from one event loop.

    Args:
        buffer: Where the audio is kept.
        overlap: Tells the user's speech from the room's.
    """

    def __init__(self, buffer: InputBuffer, overlap: OverlapCheck):
        self._buffer, self._overlap = buffer, overlap
        self._quiet = QuietInput()

    def note_piece(self, audio: bytes) -> None:
        """Note that a piece of audio came from the client."""
        self._quiet = self._quiet.append(self._buffer.wire.duration_ms(len(audio)))

    def missing_silence(self, now_s: float) -> bytes:
        """Return the silence for which the client has sent nothing."""
        self._quiet, silence_ms = self._quiet.tick(1000 * now_s)
        return self._buffer.wire.silence(silence_ms)

    def frame(self, frame: SpeechFrame, state: State) -> SpeechFrame:
        """Return a frame as the user's speech: what the room says is not, and not transcribed."""
        is_over, in_turn = state.answer is not None, state.turn_ms is not None
        if not self._overlap.is_room(frame, is_over, in_turn):
            return frame
        if not (self._overlap.may_be_ending or self._overlap.is_soft):
            self._buffer.silence(frame)
            frame = frame._replace(samples=np.zeros_like(frame.samples))
        return frame._replace(speech=0.0)
