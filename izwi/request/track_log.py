"""The tracks of a log's entries, for a model that has several. Pure: knows no model, no tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Entry = tuple[int, ...]


class Progress(NamedTuple):
    """State after an entry that determines the next track. The model computes the next state.

    Attributes:
        track: Track of the next entry.
        state: Further counts of the model, such as entries left before the track changes.
    """

    track: int
    state: tuple[int, ...] = ()


# (request, progress, ids of the entry) -> progress after it, None at the end. Ids of None mean that
# they are not known yet, and return the most likely progress.
Following = Callable[[Any, Progress, Entry | None], Progress | None]


@dataclass(slots=True, eq=False)
class TrackLog:
    """The tracks of one sequence's entries, known ones and those that steps in flight draw.

    Attributes:
        progress: Track and counts after the known entries.
        frame_track: The track whose entries become audio, or None.
        silent_ids: First ids of entries of that track that give no audio.
        end_frame: Added after the last frame, if the codec's audio lags; otherwise None.
        of: Track of each known entry.
        frames: Known entries that become audio, and the end frame.
        in_flight: Tracks that the steps in flight draw on, in order.
        predicted: Most likely progress after those; None if the log ends.
    """

    progress: Progress
    frame_track: int | None
    silent_ids: frozenset[int] = frozenset()
    end_frame: Entry | None = None
    of: list[int] = field(default_factory=list)
    frames: list[Entry] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)
    predicted: Progress | None = None

    @property
    def next(self) -> int:
        """Track of the entry that the next row draws."""
        if not self.in_flight:
            return self.progress.track
        assert self.predicted is not None  # else no row would run
        return self.predicted.track

    @property
    def num_frames(self) -> int:
        """Number of known frames, and those that steps in flight most likely draw."""
        return len(self.frames) + sum([track == self.frame_track for track in self.in_flight])

    @property
    def next_is_frame(self) -> bool:
        """Whether the entry that the next row draws most likely becomes audio."""
        following = self.predicted if self.in_flight else self.progress
        return following is not None and following.track == self.frame_track

    def launch(self, following: Following, request: Any) -> bool:
        """Record that a row is launched; return whether the log most likely ends with its entry."""
        before = self.predicted if self.in_flight else self.progress
        assert before is not None
        self.in_flight.append(before.track)
        self.predicted = following(request, before, None)
        return self.predicted is None

    def drop_in_flight(self) -> None:
        """Drop the entries in flight, which are drawn again."""
        self.in_flight.clear()

    def append(self, ids: Entry, after: Progress | None) -> None:
        """Record an entry of track `progress.track`, and the progress after it."""
        track = self.progress.track
        self.of.append(track)
        if track == self.frame_track and ids[0] not in self.silent_ids:
            self.frames.append(ids)
        if self.in_flight:
            del self.in_flight[0]
        if after is not None:
            self.progress = after

    def end(self) -> None:
        """Record that no entry follows; frames get their end frame."""
        if self.end_frame is not None and self.frames:
            self.frames.append(self.end_frame)

    def reconcile(self, following: Following, request: Any) -> bool:
        """Compare the log with the tracks for which steps in flight were launched.

        Returns:
            Whether they draw on the right tracks. The progress after them is predicted again.
        """
        progress: Progress | None = self.progress
        for track in self.in_flight:
            if progress is None or progress.track != track:
                return False
            progress = following(request, progress, None)
        self.predicted = progress
        return True
