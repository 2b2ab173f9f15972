"""What steps in flight will add to a sequence: predicted at the launch, reconciled with results.

The next step is planned and built on this prediction. A launch predicts, with `launch` and
`vocode`; results take its place, with `arrive` and `vocoded`; `reconcile` tells whether the log
went another way.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from izwi.request.request import Request
from izwi.request.track_log import Following, TrackProgress


@dataclass(slots=True)
class Pending:
    """What steps in flight will add to a sequence.

    Attributes:
        entries: Number of entries that they draw; at most 1 when a step is planned, because steps
            with rows that draw several are waited for.
        frames: Number of frames that they decode to audio.
        chunks: Number of chunks of these frames.
        ends: No more entries follow.
        epoch: How often what was in flight was dropped. Work launched before is ignored.
        tracks: Track that each of the entries is drawn on, in order.
        progress: Most likely progress after them; None if the log ends.
    """

    entries: int = 0
    frames: int = 0
    chunks: int = 0
    ends: bool = False
    epoch: int = 0
    tracks: list[int] = field(default_factory=list, compare=False)
    progress: TrackProgress | None = field(default=None, compare=False)

    def after(self, known: TrackProgress) -> TrackProgress | None:
        """Return the most likely progress after the entries in flight; None if the log ends.

        Args:
            known: The progress after the known entries.
        """
        return self.progress if self.tracks else known

    def launch(
        self, known: TrackProgress, following: Following, request: Request, *, is_last: bool
    ) -> None:
        """Predict the entry of a row that is launched.

        Args:
            known: The progress after the known entries.
            following: The model's function for the next track.
            request: The request.
            is_last: Whether the log reaches its limit with the entry.
        """
        before = self.after(known)
        assert before is not None  # else no row would run
        self.entries += 1
        self.tracks.append(before.track)
        self.progress = following(request, before, None)
        self.ends = is_last or self.progress is None

    def vocode(self, frames: int) -> None:
        """Predict a chunk of audio."""
        self.frames += frames
        self.chunks += 1

    def arrive(self, count: int = 1) -> None:
        """Replace the oldest entries by the results of a row."""
        self.entries -= count
        self.ends = self.ends and self.entries > 0
        del self.tracks[:count]

    def vocoded(self, frames: int) -> None:
        """Replace a chunk of audio by a result."""
        self.frames -= frames
        self.chunks -= 1

    def reconcile(self, known: TrackProgress, following: Following, request: Request) -> bool:
        """Compare the log with the tracks for which steps in flight were launched.

        Args:
            known: The progress after the known entries.
            following: The model's function for the next track.
            request: The request.

        Returns:
            Whether they draw on the right tracks. The progress after them is predicted again.
        """
        progress: TrackProgress | None = known
        for track in self.tracks:
            if progress is None or progress.track != track:
                return False
            progress = following(request, progress, None)
        self.progress = progress
        return True

    def drop(self) -> None:
        """Drop all that is in flight: what is needed of it is drawn again."""
        self.entries = self.frames = self.chunks = 0
        self.ends, self.progress = False, None
        self.tracks.clear()
        self.epoch += 1
