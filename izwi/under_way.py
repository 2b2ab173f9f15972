"""Steps between their launch and their results: what the next one may be planned with."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from izwi.model import Row
from izwi.request import Sequence
from izwi.runner.runner import Drawn, Forward
from izwi.scheduler.cost import StepWork
from izwi.scheduler.playback import frames_to_vocode
from izwi.scheduler.work import Work


class Launched:
    """A step under way.

    Attributes:
        work: What was planned.
        failed: What failed, by arrival.
        rows: What runs.
        forward: Waits for what the rows gave; None: they do not run yet.
        began_s: When it was launched, on the engine's clock.
        seconds: Time that launching took.
    """

    def __init__(
        self,
        work: Work,
        failed: dict[int, BaseException],
        rows: Seq[Row],
        forward: Forward | None,
        began_s: float,
    ):
        self.work, self.failed, self.rows = work, failed, rows
        self.forward, self.began_s, self.seconds = forward, began_s, 0.0
        self._epochs = [row.sequence.epoch for row in rows]
        self._sounds: list[tuple[Sequence, int, int]] = []  # sequence, epoch, frames

    @property
    def size(self) -> StepWork:
        """What runs before the step ends; sound is made beside the next one."""
        lengths = [stop - start for _, start, stop in self.rows]
        return StepWork.of(lengths, len(self.work.encode), ())

    def fresh(self) -> list[bool]:
        """Of each row, whether its sequence has not let go of its pages since the launch."""
        pairs = zip(self.rows, self._epochs, strict=True)
        return [row.sequence.epoch == epoch for row, epoch in pairs]

    def foretell(self, limit: Callable[[Sequence], int], ramp: Seq[int]) -> None:
        """Tell the sequences what they will have when this step has ended.

        Args:
            limit: Entries after which a sequence ends.
            ramp: Frames of a stream's first, second, ... chunk of sound.
        """
        for sequence, _, stop in self.rows:  # no marks among them, whose steps are not recorded
            sequence.num_computed = stop
            coming = sequence.coming
            entries = len(sequence.emitted) + coming.entries
            if stop == sequence.num_prompt + entries:  # it emits
                coming.entries += 1
                coming.ends = entries + 1 >= limit(sequence)
        for sequence in self.work.vocode:
            coming = sequence.coming
            frames = frames_to_vocode(
                num_frames=sequence.num_entries,
                num_vocoded=sequence.num_vocoded + coming.frames,
                num_chunks=sequence.num_chunks + coming.chunks,
                ended=sequence.ended or coming.ends,
                ramp=ramp,
            )
            if frames:
                coming.frames += frames
                coming.chunks += 1
                self._sounds.append((sequence, sequence.epoch, frames))

    def arrived(self, rows: Seq[Row], every: Seq[Drawn | BaseException]) -> None:
        """Take back what was foretold, since it is there now.

        Args:
            rows: Those that are fresh.
            every: What each of them gave.
        """
        for row, drawn in zip(rows, every, strict=True):
            coming = row.sequence.coming
            if isinstance(drawn, BaseException) or drawn.entries:
                coming.entries -= 1
                coming.ends = coming.ends and coming.entries > 0
        for sequence, epoch, frames in self._sounds:
            if sequence.epoch == epoch:
                sequence.coming.frames -= frames
                sequence.coming.chunks -= 1


@dataclass(slots=True)
class Results:
    """What a step's execution gave.

    Attributes:
        work: What was planned.
        failed: What failed, by arrival.
        drawn: Rows that ran: sequence, entries drawn, positions computed.
        seconds: Time that it took so far.
    """

    work: Work
    failed: dict[int, BaseException] = field(default_factory=dict)
    drawn: list[tuple[Sequence, Drawn, int]] = field(default_factory=list)
    seconds: float = 0.0
