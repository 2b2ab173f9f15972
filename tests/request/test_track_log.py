"""Logs with several tracks: which entries become audio, known ones and those in flight."""

from __future__ import annotations

from typing import Any

import pytest

from izwi.request.request import Request
from izwi.request.sequence import Pending
from izwi.request.track_log import ONE_TRACK, Entry, Following, TrackLog, TrackProgress
from tests.engine.toy import ToyPrompt

TEXT, FRAMES = 0, 1
SILENT, END = 9, (8,)
REQUEST = Request("a", "m", ToyPrompt(()))


def following(_: Any, progress: TrackProgress, drawn: Entry | None) -> TrackProgress | None:
    """Text, frame, text, frame; the id 7 ends the log."""
    if drawn == (7,):
        return None
    return TrackProgress(FRAMES if progress.track == TEXT else TEXT)


def log_of(*entries: int, end_frame: Entry | None = END) -> TrackLog:
    log = TrackLog(TrackProgress(TEXT), FRAMES, frozenset([SILENT]), end_frame)
    for entry in entries:
        log.append((entry,), following, REQUEST)
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
    assert log.known_frames == frames
    without = log_of(*entries, end_frame=None)
    without.end()
    assert without.known_frames == frames[:-1]


class Ahead:
    """A log, and what steps in flight will add to it."""

    def __init__(self, log: TrackLog):
        self.log, self.pending = log, Pending()

    @property
    def num_frames(self) -> int:
        return self.log.num_frames(0, self.pending.tracks)

    @property
    def next(self) -> TrackProgress | None:
        return self.pending.after(self.log.progress)

    def launch(self, follows: Following = following) -> bool:
        """Launch a row; return whether the log most likely ends with its entry."""
        self.pending.launch(self.log.progress, follows, REQUEST, is_last=False)
        return self.pending.ends

    def append(self, ids: Entry, follows: Following = following) -> None:
        self.pending.arrive()
        self.log.append(ids, follows, REQUEST)

    def reconcile(self) -> bool:
        return self.pending.reconcile(self.log.progress, following, REQUEST)


def test_frames_in_flight_are_counted_until_they_are_known() -> None:
    ahead = Ahead(log_of())
    counts = [ahead.num_frames]
    for _ in range(2):  # text, then a frame
        assert not ahead.launch()
        counts.append(ahead.num_frames)
    assert counts == [0, 0, 1]
    assert (ahead.pending.tracks, ahead.next) == ([TEXT, FRAMES], TrackProgress(TEXT))
    ahead.append((1,))
    assert (ahead.num_frames, ahead.pending.tracks, ahead.log.known_frames) == (1, [FRAMES], [])
    ahead.append((2,))
    assert (ahead.num_frames, ahead.pending.tracks, ahead.log.known_frames) == (1, [], [(2,)])


def test_a_frame_in_flight_that_is_silent_or_dropped_is_not_counted_any_more() -> None:
    ahead = Ahead(log_of(1))
    ahead.launch()
    assert ahead.num_frames == 1
    ahead.append((SILENT,))
    assert ahead.num_frames == 0
    ahead.launch()
    ahead.launch()
    assert ahead.num_frames == 1
    ahead.pending.drop()
    assert (ahead.num_frames, ahead.next) == (0, TrackProgress(TEXT))
    assert ahead.pending == Pending(epoch=1)


def test_steps_in_flight_are_compared_with_the_tracks_that_follow() -> None:
    ahead = Ahead(log_of())
    for _ in range(3):
        ahead.launch()
    ahead.append((1,))
    assert ahead.reconcile()
    assert ahead.next == TrackProgress(FRAMES), "predicted again, after the two in flight"
    ahead.append((2,), lambda *_: TrackProgress(FRAMES))  # otherwise than predicted
    assert not ahead.reconcile()


def test_a_launch_that_most_likely_ends_the_log_says_so() -> None:
    def ends(_: Any, progress: TrackProgress, drawn: Entry | None) -> TrackProgress | None:
        return None if progress.track == FRAMES else TrackProgress(FRAMES)

    ahead = Ahead(log_of())
    assert not ahead.launch(ends)
    assert ahead.next == TrackProgress(FRAMES)
    assert ahead.launch(ends)
    assert ahead.next is None


def test_a_log_of_one_track_goes_on_and_all_of_it_is_frames() -> None:
    pending = Pending()
    pending.launch(ONE_TRACK.progress, lambda _, progress, __: progress, REQUEST, is_last=False)
    assert (pending.tracks, pending.ends) == ([0], False)
    assert ONE_TRACK.num_frames(5, pending.tracks) == 5
    assert ONE_TRACK.append((1,), following, REQUEST)
    pending.launch(ONE_TRACK.progress, lambda _, progress, __: progress, REQUEST, is_last=True)
    assert (pending.entries, pending.ends) == (2, True)
