"""Assign rows of the codec-state arena to streams. Knows no tensors.

A stream that does not run keeps its row until another stream needs it. Then the state moves to a
lower tier, or is rebuilt from the log when the stream resumes.
"""

from __future__ import annotations

from typing import Protocol

from izwi.request.sequence import AudioCursor


class CodecRowStore(Protocol):
    """The rows of the arena."""

    @property
    def num_free(self) -> int:
        """Free rows."""
        ...

    def allocate(self) -> int:
        """Allocate a row, in the state of a stream's start."""
        ...

    def release(self, row: int) -> None:
        """Free a row."""
        ...

    def save(self, row: int) -> int | None:
        """Save a row's contents in a lower tier; return a handle, or None if there is no room."""
        ...

    def restore(self, row: int, handle: int) -> bool:
        """Restore saved contents and forget them; False if they were dropped."""
        ...

    def forget(self, handle: int) -> None:
        """Drop saved contents."""
        ...


class CodecRows:
    """The codec rows of one model's streams."""

    def __init__(self, states: CodecRowStore):
        self._states = states
        self._idle: dict[int, AudioCursor] = {}  # streams that do not run, the longest idle first

    @property
    def num_available(self) -> int:
        """Rows that a stream can get."""
        return self._states.num_free + len(self._idle)

    def assign_row(self, audio: AudioCursor) -> bool:
        """Give a stream a row; True if its state must be rebuilt from the log."""
        if audio.state_row is not None:
            self._idle.pop(id(audio), None)
            return False
        if self._states.num_free == 0:
            self._reclaim()
        audio.state_row = self._states.allocate()
        handle, audio.saved_state = audio.saved_state, None
        if handle is not None and self._states.restore(audio.state_row, handle):
            return False
        return audio.num_vocoded > 0

    def make_idle(self, audio: AudioCursor) -> None:
        """Keep a stream's row until another stream needs it."""
        if audio.state_row is not None:
            self._idle[id(audio)] = audio

    def release(self, audio: AudioCursor) -> None:
        """Free the row or saved state of a stream that has ended."""
        self._idle.pop(id(audio), None)
        if audio.state_row is not None:
            self._states.release(audio.state_row)
            audio.state_row = None
        if audio.saved_state is not None:
            self._states.forget(audio.saved_state)
            audio.saved_state = None

    def _reclaim(self) -> None:
        """Take the row of the stream that has been idle for longest."""
        owner = self._idle.pop(next(iter(self._idle)))
        assert owner.state_row is not None
        if owner.num_vocoded:
            owner.saved_state = self._states.save(owner.state_row)
        self._states.release(owner.state_row)
        owner.state_row = None
