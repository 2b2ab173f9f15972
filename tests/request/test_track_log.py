"""Logs with several tracks: which entries become audio, known ones and those in flight."""

from __future__ import annotations

from typing import Any

import pytest

from izwi.request.track_log import Entry, Progress, TrackLog

TEXT, FRAMES = 0, 1
SILENT, END = 9, (8,)


def following(_: Any, progress: Progress, drawn: Entry | None) -> Progress | None:
    """Text, frame, text, frame; the id 7 ends the log."""
    if drawn == (7,):
        return None
    return Progress(FRAMES if progress.track == TEXT else TEXT)


def log_of(*entries: int, end_frame: Entry | None = END) -> TrackLog:
    log = TrackLog(Progress(TEXT), FRAMES, frozenset([SILENT]), end_frame)
    for entry in entries:
        log.append((entry,), following(None, log.progress, (entry,)))
    return log


@pytest.mark.parametrize(
    ("entries", "frames"),
    [
        ((), []),
        ((1,), []),  # text alone
        ((1, SILENT), []),  # and a frame that is no audio
        ((1, 2), [(2,), END]),
        ((1, 2, 3, 4), [(2,), (4,), END]),
        ((1, 2, 3, SILENT), [(2,), END]),
    ],
)
def test_only_a_log_with_frames_gets_an_end_frame(entries, frames) -> None:
    log = log_of(*entries)
    log.end()
    assert log.frames == frames
    without = log_of(*entries, end_frame=None)
    without.end()
    assert without.frames == frames[:-1]


def test_frames_in_flight_are_counted_until_they_are_known() -> None:
    log = log_of()
    counts = [log.num_frames]
    for _ in range(2):  # text, then a frame
        assert not log.launch(following, None)
        counts.append(log.num_frames)
    assert counts == [0, 0, 1]
    assert (log.in_flight, log.next, log.next_is_frame) == ([TEXT, FRAMES], TEXT, False)
    log.append((1,), following(None, log.progress, (1,)))
    assert (log.num_frames, log.in_flight, log.frames) == (1, [FRAMES], [])
    log.append((2,), following(None, log.progress, (2,)))
    assert (log.num_frames, log.in_flight, log.frames) == (1, [], [(2,)])


def test_a_frame_in_flight_that_is_silent_or_dropped_is_not_counted_any_more() -> None:
    log = log_of(1)
    log.launch(following, None)
    assert log.num_frames == 1
    log.append((SILENT,), following(None, log.progress, (SILENT,)))
    assert log.num_frames == 0
    log.launch(following, None)
    log.launch(following, None)
    assert log.num_frames == 1
    log.drop_in_flight()
    assert (log.num_frames, log.next) == (0, TEXT)


def test_steps_in_flight_are_compared_with_the_tracks_that_follow() -> None:
    log = log_of()
    for _ in range(3):
        log.launch(following, None)
    log.append((1,), Progress(FRAMES))
    assert log.reconcile(following, None)
    assert log.next == FRAMES, "predicted again, after the two in flight"
    log.append((2,), Progress(FRAMES))  # otherwise than predicted
    assert not log.reconcile(following, None)


def test_a_launch_that_most_likely_ends_the_log_says_so() -> None:
    def ends(_: Any, progress: Progress, drawn: Entry | None) -> Progress | None:
        return None if progress.track == FRAMES else Progress(FRAMES)

    log = log_of()
    assert not log.launch(ends, None)
    assert log.next_is_frame
    assert log.launch(ends, None)
    assert not log.next_is_frame
