"""The tracks of a log's entries. Pure: knows no model, no tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from izwi.request.request import Request

Entry = tuple[int, ...]


class TrackProgress(NamedTuple):
    """State after an entry that determines the next track. The model computes the next state.

    Attributes:
        track: Track of the next entry.
        state: Further counts of the model, such as entries left before the track changes.
    """

    track: int
    state: tuple[int, ...] = ()


# (request, progress, ids of the entry) -> progress after it, None at the end. Ids of None mean that
# they are not known yet, and return the most likely progress.
Following = Callable[[Any, TrackProgress, Entry | None], TrackProgress | None]


class Tracks(Protocol):
    """The tracks of one sequence's known entries."""

    @property
    def of_entries(self) -> list[int] | None:
        """Track of each known entry, in a list that only grows; None if there is one track."""
        ...

    @property
    def progress(self) -> TrackProgress:
        """Track and counts after the known entries."""
        ...

    @property
    def ends_with_text(self) -> bool:
        """Whether the last known entry is no frame, beside frames."""
        ...

    def frames(self, entries: list[Entry]) -> list[Entry]:
        """Return the known entries that become audio, of a model that makes any."""
        ...

    def num_frames(self, num_entries: int, ahead: list[int]) -> int:
        """Return the number of frames, known and most likely drawn by steps in flight.

        Args:
            num_entries: Number of entries, likewise.
            ahead: Tracks of the entries in flight.
        """
        ...

    def is_frame(self, track: int) -> bool:
        """Return whether an entry of a track most likely becomes audio, if any does."""
        ...

    def stops(self, ids: Entry, request: Request) -> bool:
        """Return whether the next entry ends the log, of which it is then no part."""
        ...

    def append(self, ids: Entry, following: Following, request: Request) -> bool:
        """Record an entry; return whether another one follows it."""
        ...

    def end(self) -> None:
        """Record that no entry follows; frames get their end frame."""
        ...


class OneTrack:
    """The tracks of a model that has one: nothing to record. Implements `Tracks`."""

    of_entries = None
    progress = TrackProgress(0)
    ends_with_text = False

    def frames(self, entries: list[Entry]) -> list[Entry]:
        """Return all entries."""
        return entries

    def num_frames(self, num_entries: int, ahead: list[int]) -> int:  # noqa: ARG002
        """Return the number of entries."""
        return num_entries

    def is_frame(self, track: int) -> bool:  # noqa: ARG002
        """Return true."""
        return True

    def stops(self, ids: Entry, request: Request) -> bool:
        """Return whether the next entry is a stop id."""
        return ids[0] in request.stop_ids

    def append(self, ids: Entry, following: Following, request: Request) -> bool:  # noqa: ARG002
        """Return that another entry follows."""
        return True

    def end(self) -> None:
        """Do nothing."""


ONE_TRACK = OneTrack()


@dataclass(slots=True, eq=False)
class TrackLog:
    """The tracks of a model with several. Implements `Tracks`.

    Attributes:
        progress: Track and counts after the known entries.
        frame_track: The track whose entries become audio, or None.
        silent_ids: First ids of entries of that track that give no audio.
        end_frame: Added after the last frame, if the codec's audio lags; otherwise None.
        of_entries: Track of each known entry.
        known_frames: Known entries that become audio, and the end frame.
    """

    progress: TrackProgress
    frame_track: int | None
    silent_ids: frozenset[int] = frozenset()
    end_frame: Entry | None = None
    of_entries: list[int] = field(default_factory=list)
    known_frames: list[Entry] = field(default_factory=list)

    def frames(self, entries: list[Entry]) -> list[Entry]:  # noqa: ARG002
        """Return the known entries that become audio, and the end frame."""
        return self.known_frames

    def num_frames(self, num_entries: int, ahead: list[int]) -> int:  # noqa: ARG002
        """Return the number of known frames, and of those in flight most likely."""
        return len(self.known_frames) + sum(map(self.is_frame, ahead))

    def is_frame(self, track: int) -> bool:
        """Return whether the track is that of the frames."""
        return track == self.frame_track

    @property
    def ends_with_text(self) -> bool:
        """Whether the last entry is not a frame, so that it is delivered without audio."""
        return self.of_entries[-1] != self.frame_track

    def stops(self, ids: Entry, request: Request) -> bool:
        """Return whether the next entry is a stop id of its track."""
        return ids[0] in request.params(self.progress.track).stop_ids

    def append(self, ids: Entry, following: Following, request: Request) -> bool:
        """Record an entry of track `progress.track`; return whether another one follows it."""
        track = self.progress.track
        after = following(request, self.progress, ids)
        self.of_entries.append(track)
        if track == self.frame_track and ids[0] not in self.silent_ids:
            self.known_frames.append(ids)
        if after is not None:
            self.progress = after
        return after is not None

    def end(self) -> None:
        """Record that no entry follows; frames get their end frame."""
        if self.end_frame is not None and self.known_frames:
            self.known_frames.append(self.end_frame)
