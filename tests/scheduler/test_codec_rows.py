"""Codec rows: which sequences have one, which give it up, and what is saved of those."""

from __future__ import annotations

import pytest

from izwi.request.sequence import AudioCursor
from izwi.scheduler.codec_rows import CodecRows


class Rows:
    """Rows and a lower tier, as plain values."""

    def __init__(self, num_rows: int, room_below: int = 9):
        self.free = list(range(num_rows))
        self.below: dict[int, int] = {}  # handle to the row that it was
        self.num_saved = 0
        self.room_below = room_below

    @property
    def num_free(self) -> int:
        return len(self.free)

    def allocate(self) -> int:
        return self.free.pop(0)

    def release(self, row: int) -> None:
        assert row not in self.free
        self.free.append(row)

    def save(self, row: int) -> int | None:
        if len(self.below) >= self.room_below:
            return None
        self.num_saved += 1
        self.below[self.num_saved] = row
        return self.num_saved

    def restore(self, row: int, handle: int) -> bool:
        return self.below.pop(handle, None) is not None

    def forget(self, handle: int) -> None:
        del self.below[handle]


def streams(count: int, num_vocoded: int = 3) -> list[AudioCursor]:
    return [AudioCursor(num_vocoded) for _ in range(count)]


def test_a_stream_that_resumes_soon_gets_its_row_back() -> None:
    states = Rows(2)
    rows, (one, other) = CodecRows(states), streams(2)
    assert rows.assign_row(one), "the frames vocoded before are vocoded again"
    own = one.state_row
    rows.make_idle(one)
    assert rows.num_available == 2
    assert not rows.assign_row(one)
    assert one.state_row == own
    assert rows.num_available == 1
    assert rows.assign_row(other)
    assert rows.num_available == 0


def test_the_longest_idle_gives_way_and_comes_back_from_below() -> None:
    states = Rows(2)
    rows, (first, second, third) = CodecRows(states), streams(3)
    for sequence in (first, second):
        rows.assign_row(sequence)
        rows.make_idle(sequence)
    rows.assign_row(third)
    assert (first.state_row, second.state_row) == (None, 1)
    assert states.below == {first.saved_state: 0}
    rows.make_idle(third)
    assert not rows.assign_row(first), "its state came back"
    assert first.saved_state is None
    assert second.state_row is None
    assert list(states.below) == [second.saved_state]


def test_codec_state_without_room_below_is_rebuilt() -> None:
    states = Rows(1, room_below=0)
    rows, (one, other) = CodecRows(states), streams(2)
    rows.assign_row(one)
    rows.make_idle(one)
    rows.assign_row(other)
    assert one.saved_state is None
    rows.make_idle(other)
    assert rows.assign_row(one)


@pytest.mark.parametrize("lost", [False, True])
def test_a_state_that_is_gone_from_below_is_made_again(lost: bool) -> None:
    states = Rows(1)
    rows, (one, other) = CodecRows(states), streams(2)
    rows.assign_row(one)
    rows.make_idle(one)
    rows.assign_row(other)
    rows.release(other)
    if lost:
        states.below.clear()
    assert rows.assign_row(one) is lost


def test_a_stream_without_audio_has_no_state_to_keep() -> None:
    states = Rows(1)
    rows, (one, other) = CodecRows(states), streams(2, num_vocoded=0)
    assert not rows.assign_row(one)
    rows.make_idle(one)
    rows.assign_row(other)
    assert (states.num_saved, one.saved_state) == (0, None)


def test_the_end_of_a_stream_frees_its_row_and_what_is_below() -> None:
    states = Rows(1)
    rows, (one, other) = CodecRows(states), streams(2)
    rows.assign_row(one)
    rows.make_idle(one)
    rows.assign_row(other)  # what one had is below now
    rows.release(one)
    assert states.below == {}
    rows.release(other)
    assert states.free == [0]
    rows.release(other)  # nothing twice
    assert states.free == [0]
    idle = streams(1)[0]
    rows.assign_row(idle)
    rows.make_idle(idle)
    rows.release(idle)
    assert rows.num_available == 1
