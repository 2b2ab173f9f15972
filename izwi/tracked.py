"""Append to the log of a sequence whose model has several tracks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from izwi.sequence import Sequence
from izwi.track_log import Entry, Following, TrackLog


def append_tracked(sequence: Sequence, ids: Entry, following: Following) -> tuple[bool, bool]:
    """Append an entry that was drawn, unless it is a stop id of its track.

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
    """Append the entries of a log; one that nothing follows is left out, to be drawn again.

    Args:
        sequence: A new one.
        entries: As they are in `Log.entries`, all of one width.
        following: Of the model.
        num_ids: Ids of an entry of a track.
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
    """Whether the last entry is no frame, so that it is delivered without audio."""
    tracks = sequence.tracks
    return tracks is not None and tracks.of[-1] != tracks.frame_track


def _tracks(sequence: Sequence) -> TrackLog:
    assert sequence.tracks is not None
    return sequence.tracks
