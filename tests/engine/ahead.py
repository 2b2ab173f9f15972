"""A simulated device that runs one step ahead of the host: draws are known a step later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import PropertyMock, patch

from izwi.backends.in_flight import InFlight
from izwi.request.track_log import TrackLog
from izwi.runner.runner import Drawn, Runner
from izwi.scheduler.work import PlannedRow
from tests.backends.kinds import AHEAD
from tests.engine.world import Clock


class PaperDevice:
    """Steps take simulated time, one after the other.

    Args:
        clock: The engine's.
        seconds: Time that rows take.
    """

    def __init__(self, clock: Clock, seconds: Callable[[Sequence[PlannedRow]], float]):
        self._clock, self._seconds = clock, seconds
        self._free_s = 0.0  # when what was launched has ended
        self.idle_s = 0.0  # time between steps
        self.steps: list[tuple[float, float]] = []

    def launch(self, rows: Sequence[PlannedRow]) -> PaperStep:
        """Queue a step behind the others."""
        began_s = max(self._clock.now_s, self._free_s)
        self.idle_s += began_s - self._free_s
        self._free_s = began_s + self._seconds(rows)
        self.steps.append((began_s, self._free_s))
        return PaperStep(self._clock, self._free_s)


class PaperStep:
    """One step of it."""

    def __init__(self, clock: Clock, ends_s: float):
        self._clock, self._ends_s = clock, ends_s

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self._clock.now_s >= self._ends_s

    def wait(self) -> None:
        """Wait for its end."""
        self._clock.now_s = max(self._clock.now_s, self._ends_s)


class _Endless:
    is_done = False

    def wait(self) -> None:
        """Results are there when they are asked for, and not before."""


@contextmanager
def one_step_ahead(device: PaperDevice | None = None) -> Iterator[list[int]]:
    """Run rows when they are launched, and let the host know when it waits for them.

    Args:
        device: Takes time; without one a step ends when the host waits for it.

    Yields:
        Grows by the number of rows of each step whose last entry the host did not know.
    """
    drawn: dict[tuple[int, int], tuple[int, ...]] = {}  # what the device alone knows
    counts: list[int] = []

    def launch(
        self: Runner, rows: Sequence[PlannedRow]
    ) -> InFlight[list[Drawn | BaseException]] | None:
        if not rows:
            return None
        unknown = [row.sequence for row in rows if row.sequence.pending.entries]
        counts.append(len(unknown))
        for sequence in unknown:
            assert sequence.pending.entries == 1
            sequence.emitted.append(drawn[id(self), sequence.arrival])
            if isinstance(sequence.tracks, TrackLog):
                sequence.tracks.of_entries.append(sequence.pending.tracks[0])
            sequence.pending.entries = 0
        results = self.forward(rows)
        for sequence in unknown:
            sequence.emitted.pop()
            if isinstance(sequence.tracks, TrackLog):
                sequence.tracks.of_entries.pop()
            sequence.pending.entries = 1
        for row, result in zip(rows, results, strict=True):
            if isinstance(result, Drawn) and result.entries:
                drawn[id(self), row.sequence.arrival] = result.entries[-1]
        step = device.launch(rows) if device else _Endless()

        def wait() -> list[Drawn | BaseException]:
            step.wait()
            return results

        return InFlight(wait, [step])

    with (
        patch.object(Runner, "launch", launch),
        patch.object(Runner, "codec_overlaps", PropertyMock(return_value=True)),
    ):
        yield counts


@contextmanager
def ahead_of(backend: str) -> Iterator[str]:
    """Yield a backend that runs one step ahead: MLX by itself, torch in a simulation."""
    if backend == "mlx":
        yield AHEAD
        return
    with one_step_ahead():
        yield backend
