"""Append to the log of a sequence whose model has several tracks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from izwi.request.sequence import Sequence
from izwi.request.track_log import Entry, Following, TrackLog


def append_tracked(sequence: Sequence, ids: Entry, following: Following) -> tuple[bool, bool]:
    """Append a drawn entry, unless it is a stop id of its track.

    Returns:
        Whether it was appended, and whether another one follows it.
    """
    tracks, request = _tracks(sequence), sequence.request
    if ids[0] in request.params(tracks.progress.track).stop_ids:
        return False, False
    after = following(request, tracks.progress, ids)
    sequence.emitted.append(ids)
    tracks.append(ids, after)
    return True, after is not None


def resume_tracked(
    sequence: Sequence,
    entries: Iterable[Entry],
    following: Following,
    num_ids: Callable[[int], int],
) -> None:
    """Append the entries of a log, except for a last one that ends it, which is drawn again.

    Args:
        sequence: A new sequence.
        entries: Entries as in `Log.entries`, all of one width.
        following: The model's function for the next track.
        num_ids: Returns the ids of an entry on a track.
    """
    tracks = _tracks(sequence)
    for padded in entries:
        ids = padded[: num_ids(tracks.progress.track)]
        after = following(sequence.request, tracks.progress, ids)
        if after is None:
            return
        sequence.emitted.append(ids)
        tracks.append(ids, after)


def ends_with_text(sequence: Sequence) -> bool:
    """Whether the last entry is not a frame, so that it is delivered without audio."""
    tracks = sequence.tracks
    return tracks is not None and tracks.of[-1] != tracks.frame_track


def _tracks(sequence: Sequence) -> TrackLog:
    assert sequence.tracks is not None
    return sequence.tracks
