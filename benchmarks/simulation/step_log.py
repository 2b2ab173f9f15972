"""Record what each step of a real engine ran and how long it took."""

from __future__ import annotations

from typing import Any, NamedTuple

from izwi.engine.engine import Engine
from izwi.request.request import Chunk
from izwi.scheduler.cost import OnlineCost, StepWork

# Whether a step is cold, has part of a prompt, runs the codec.
Kind = tuple[bool, bool, bool]


def kind_of(work: StepWork, cold: bool) -> Kind:
    """Return the kind of a step."""
    return cold, work.prefill_tokens > 0, work.vocode_frames > 0


class Step(NamedTuple):
    """One step of one model.

    Linear prices do not depend on the kind of step: after a pause the processor's caches are cold,
    and a prompt's positions or the codec's frames may cost more or less than in proportion.

    Attributes:
        work: What it ran.
        compute_s: Encoders, forward pass and codec, as in the scheduler's cost model.
        whole_s: Time until the next step can begin, with planning, logs and delivery of chunks.
        began_s: Start on the engine's clock.
        cold: The engine slept before it.
    """

    work: StepWork
    compute_s: float
    whole_s: float
    began_s: float
    cold: bool = False

    @property
    def kind(self) -> Kind:
        """Kind of step that it is compared with."""
        return kind_of(self.work, self.cold)


class _RecordedCost(OnlineCost):
    """A cost model that also keeps the last step's work."""

    def __init__(self) -> None:
        super().__init__()
        self.last: tuple[StepWork, float] | None = None

    def add(self, work: StepWork, seconds: float) -> None:
        super().add(work, seconds)
        self.last = work, seconds


class RecordedEngine(Engine):
    """An engine of one model that records its steps."""

    def __init__(self, *args: Any, **rest: Any):
        """As for `Engine`."""
        super().__init__(*args, **rest)
        (worker,) = self._workers.values()
        self._cost = worker.scheduler.cost = _RecordedCost()
        self._open: Step | None = None  # a step whose end is not known yet
        self.steps: list[Step] = []

    def step(self) -> list[Chunk]:
        """Run one step, and record the previous one, which ended when this one began."""
        began_s = self.clock()
        cold = self._open is None
        self._close(began_s)
        chunks = super().step()
        if self._cost.last is not None and any(self._cost.last[0]):
            self._open = Step(*self._cost.last, 0.0, began_s, cold)
        self._cost.last = None
        if not self.has_work:
            self._close(self.clock())  # the engine waits for work after it
        return chunks

    def _close(self, now_s: float) -> None:
        if self._open is not None:
            self.steps.append(self._open._replace(whole_s=now_s - self._open.began_s))
            self._open = None
