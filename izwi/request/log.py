"""The log of a request as delivered to its reader: enough for another engine to resume it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from izwi.arrays import Float32, Int64
from izwi.request.sequence import Sequence
from izwi.request.track_log import Following, TrackLog


class FrameSizes(Protocol):
    """How audio is divided into frames; implemented by every `Codec`."""

    @property
    def frame_samples(self) -> int:
        """Number of samples in one frame."""
        ...

    @property
    def lookahead_samples(self) -> int:
        """Number of samples by which audio lags its frames."""
        ...


class Log(Struct, frozen=True, eq=False, omit_defaults=True):
    """The log of a request that one engine has begun and another engine resumes.

    It has no tracks, because the track of an entry is a function of the entries before it.

    Attributes:
        entries: (n, codebooks) int64, all delivered entries.
        logprobs: As in `Chunk`, or None if not requested.
        chunk_samples: Samples of each delivered chunk of audio. A chunk may be smaller than in the
            ramp, and the last bits of the codec's state depend on the sizes.
        chunk_ages_s: Seconds since each of these was delivered, without pauses by a caller.
        written: Text ids that were written to a request with open input.
        closed: Its input is complete.
        paused: It was paused by a caller, and stays so until it is resumed.
    """

    entries: Int64
    logprobs: Float32 | None = None
    chunk_samples: tuple[int, ...] = ()
    written: tuple[int, ...] = ()
    closed: bool = False
    paused: bool = False
    chunk_ages_s: tuple[float, ...] = ()

    @property
    def num_samples(self) -> int:
        """Number of delivered samples."""
        return sum(self.chunk_samples)

    def restore(self, sequence: Sequence, codec: FrameSizes | None) -> None:
        """Set a new sequence to where the log ends.

        Args:
            sequence: Of the log's request.
            codec: Of the model; None for one that writes text.
        """
        sequence.emitted = list(map(tuple, self.entries.tolist()))
        sequence.output.num_delivered = len(sequence.emitted)
        if self.logprobs is not None:
            sequence.output.logprobs = self.logprobs.tolist()
        sequence.input.written = self.written
        sequence.input.is_open = sequence.request.open_input and not self.closed
        if codec is not None:
            audio, num_samples = sequence.audio, codec.lookahead_samples
            for samples in self.chunk_samples:
                num_samples += samples
                audio.chunks.append(num_samples // codec.frame_samples - audio.num_vocoded)
                audio.num_vocoded += audio.chunks[-1]


def retrace(sequence: Sequence, following: Following, num_ids: Callable[[int], int]) -> None:
    """Record the tracks of a restored sequence's entries.

    The last entry is dropped if it ends the log: it is drawn again.

    Args:
        sequence: Its entries are all of one width.
        following: The model's function for the next track.
        num_ids: Returns the ids of an entry on a track.
    """
    tracks = sequence.tracks
    if not isinstance(tracks, TrackLog):  # one track: all entries are there already
        return
    entries, sequence.emitted = sequence.emitted, []
    for padded in entries:
        ids = padded[: num_ids(tracks.progress.track)]
        if following(sequence.request, tracks.progress, ids) is None:
            return
        sequence.emitted.append(ids)
        tracks.append(ids, following, sequence.request)
