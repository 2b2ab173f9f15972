"""Steps in flight: their launch, and the predicted state that the next step is planned with."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from izwi.arrays import Float32
from izwi.backends.protocol import PendingAudio
from izwi.request.sequence import Sequence
from izwi.request.track_log import Following
from izwi.runner.runner import Drawn, Forward
from izwi.scheduler.cost import StepWork
from izwi.scheduler.playback import frames_to_vocode
from izwi.scheduler.work import PlannedRow, Work


class Launched:
    """A step in flight.

    Attributes:
        work: The planned work.
        failed: Errors, by arrival of the sequence.
        rows: Rows of the forward pass.
        forward: Waits for the rows' results; None if the pass was not launched.
        began_s: Time of the launch, on the engine's clock.
        seconds: Duration of the launch.
        num_compiled: `Runner.num_compiled` before it was launched.
        reads_log: The next step cannot be planned before its results are known.
    """

    def __init__(
        self,
        work: Work,
        failed: dict[int, BaseException],
        rows: Seq[PlannedRow],
        forward: Forward | None,
        began_s: float,
        num_compiled: int,
    ):
        self.work, self.failed, self.rows = work, failed, rows
        self.forward, self.began_s, self.seconds = forward, began_s, 0.0
        self.num_compiled = num_compiled
        sequences = [row.sequence for row in rows]
        self.reads_log = any(one.drawing.reads_log or one.output_positions for one in sequences)
        self._epochs = [row.sequence.pending.epoch for row in rows]
        self._several: dict[int, int] = {}  # entries of rows that draw several, by arrival
        self._vocoded: list[tuple[Sequence, int, int]] = []  # sequence, epoch, frames

    @property
    def size(self) -> StepWork:
        """Work that ends with the step; later audio is computed during the next one."""
        lengths = [stop - start for _, start, stop in self.rows]
        return StepWork.from_rows(lengths, len(self.work.encode), ())

    @property
    def is_done(self) -> bool:
        """Whether the device has finished, so that waiting for results would not block."""
        return self.forward is not None and self.forward.is_done

    def fresh(self) -> list[bool]:
        """Return for each row whether its sequence has kept its pages since the launch."""
        pairs = zip(self.rows, self._epochs, strict=True)
        return [row.sequence.pending.epoch == epoch for row, epoch in pairs]

    def predict(self, limit: Callable[[Sequence], int], following: Following) -> None:
        """Predict the state of the sequences at the end of this step.

        Args:
            limit: Returns the number of entries at which a sequence ends.
            following: The model's function for the next track.
        """
        for sequence, _, stop in self.rows:
            sequence.kv.num_computed = stop
            pending = sequence.pending
            entries = len(sequence.emitted) + pending.entries
            if sequence.output_positions:
                count = len(sequence.drawn_before(stop))
                self._several[sequence.arrival] = count
            else:
                count = stop == sequence.num_prompt + entries
            for drawn in range(entries + 1, entries + count + 1):
                known, is_last = sequence.tracks.progress, drawn >= limit(sequence)
                pending.launch(known, following, sequence.request, is_last=is_last)
        for sequence, chunk in self.work.vocode:
            pending = sequence.pending
            num_pending = sequence.num_frames - sequence.audio.num_vocoded - pending.frames
            ended = sequence.status.ended or pending.ends
            frames = frames_to_vocode(num_pending, chunk, ended=ended)
            if frames:
                pending.vocode(frames)
                self._vocoded.append((sequence, sequence.pending.epoch, frames))

    def reconcile(self, rows: Seq[PlannedRow], every: Seq[Drawn | BaseException]) -> None:
        """Reconcile the prediction with the results.

        Args:
            rows: The rows whose sequences have kept their pages.
            every: The results of each row.
        """
        for row, drawn in zip(rows, every, strict=True):
            if isinstance(drawn, BaseException) or drawn.entries:
                row.sequence.pending.arrive(self._several.get(row.sequence.arrival, 1))
        for sequence, epoch, frames in self._vocoded:
            if sequence.pending.epoch == epoch:
                sequence.pending.vocoded(frames)


@dataclass(slots=True)
class Results:
    """The results of a step.

    Attributes:
        work: The planned work.
        failed: Errors, by arrival of the sequence.
        drawn: Rows that ran: sequence, drawn entries, computed positions.
        seconds: Duration so far.
        num_compiled: `Runner.num_compiled` before the step.
    """

    work: Work
    failed: dict[int, BaseException] = field(default_factory=dict)
    drawn: list[tuple[Sequence, Drawn, int]] = field(default_factory=list)
    seconds: float = 0.0
    num_compiled: int = 0


def awaited(
    begun: dict[int, tuple[Sequence, PendingAudio]], results: Results
) -> dict[int, Float32]:
    """Wait for pieces of audio; return them by arrival, and add errors to the results."""
    done: dict[int, Float32] = {}
    for arrival, (_, pending) in begun.items():
        try:
            done[arrival] = pending()
        except Exception as error:  # a failed request must not end the engine
            results.failed[arrival] = error
    return done
