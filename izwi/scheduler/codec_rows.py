"""Assign rows of the codec-state arena to streams. Knows no tensors.

A stream that does not run keeps its row until another stream needs it; then the state moves to a
lower tier, or is made again from the log when the stream goes on.
"""

from __future__ import annotations

from typing import Protocol

from izwi.sequence import Sequence


class StateRows(Protocol):
    """The rows of the arena."""

    @property
    def num_free(self) -> int:
        """Free rows."""
        ...

    def allocate(self) -> int:
        """Hand out a row: the start of a stream."""
        ...

    def release(self, row: int) -> None:
        """Take a row back."""
        ...

    def save(self, row: int) -> int | None:
        """Keep a row's contents in a lower tier; a handle, or None where there is no room."""
        ...

    def restore(self, row: int, handle: int) -> bool:
        """Bring back what `save` kept and forget it; False if it is gone."""
        ...

    def forget(self, handle: int) -> None:
        """Let go of what `save` kept."""
        ...


class CodecRows:
    """The codec rows of one model's streams."""

    def __init__(self, states: StateRows):
        self._states = states
        self._idle: dict[int, Sequence] = {}  # do not run; the longest idle first

    @property
    def num_available(self) -> int:
        """Rows that a stream can get."""
        return self._states.num_free + len(self._idle)

    def take(self, sequence: Sequence) -> bool:
        """Give a stream a row. True if its state must be made again from the log."""
        if sequence.sound.state_row is not None:
            self._idle.pop(sequence.arrival, None)
            return False
        if self._states.num_free == 0:
            self._reclaim()
        sequence.sound.state_row = self._states.allocate()
        handle, sequence.sound.saved_state = sequence.sound.saved_state, None
        if handle is not None and self._states.restore(sequence.sound.state_row, handle):
            return False
        return sequence.sound.num_vocoded > 0

    def rest(self, sequence: Sequence) -> None:
        """Let a stream keep its row until another stream needs it."""
        if sequence.sound.state_row is not None:
            self._idle[sequence.arrival] = sequence

    def release(self, sequence: Sequence) -> None:
        """Free what a stream that has ended holds."""
        self._idle.pop(sequence.arrival, None)
        if sequence.sound.state_row is not None:
            self._states.release(sequence.sound.state_row)
            sequence.sound.state_row = None
        if sequence.sound.saved_state is not None:
            self._states.forget(sequence.sound.saved_state)
            sequence.sound.saved_state = None

    def _reclaim(self) -> None:
        """Take the row of the stream that has not run for longest."""
        owner = self._idle.pop(next(iter(self._idle)))
        assert owner.sound.state_row is not None
        if owner.sound.num_vocoded:
            owner.sound.saved_state = self._states.save(owner.sound.state_row)
        self._states.release(owner.sound.state_row)
        owner.sound.state_row = None
