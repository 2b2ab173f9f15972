"""A model worker over a runner that computes nothing: what it delivers, and what a step took."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks.simulation.device import Device, SimulatedModel, SimulatedPrompt, SimulatedRunner
from benchmarks.simulation.machine import Machine
from izwi.config import EngineConfig
from izwi.engine.model_worker import Results
from izwi.request.request import Reason, Request
from izwi.request.sequence import Sequence
from izwi.runner.runner import Drawn
from izwi.scheduler.cost import StepCost, StepWork
from izwi.scheduler.work import PlannedRow, Work

STOP = 9
COST = StepCost(base_s=0.25, decode_row_s=0.125, prefill_token_s=0.5, vocode_call_s=1.0)


def device_of(frame_s: float | None, *entries: tuple[int, ...], **settings: Any) -> Device:
    """A device on which one request, "a" of three positions, emits these entries."""
    config = EngineConfig(policy="fcfs", max_running=4, max_step_tokens=64, **settings)
    machine = Machine(COST, StepCost(), {})
    device = Device(SimulatedModel(frame_s, 1, 64), machine, config, {"a": entries}, seed=0)
    device.submit(Request("a", "m", SimulatedPrompt(3, 0, 0), stop_ids=(STOP,), max_entries=9))
    return device


def only(device: Device) -> Sequence:
    (sequence,) = device.worker.scheduler._running.values()
    return sequence


def test_frames_are_delivered_with_their_audio_and_text_at_once() -> None:
    spoken = device_of(0.1, (1,), (2,), (3,), chunk_ramp=(2,))
    assert spoken.step(0.0) == []
    (chunk,) = spoken.step(1.0)
    assert chunk.entries.tolist() == [[1], [2]]
    assert chunk.pcm is not None
    assert len(chunk.pcm) == 2
    written = device_of(None, (1,), (2,))
    for number in (1, 2):
        (chunk,) = written.step(float(number))
        assert chunk.entries.tolist() == [[number]]
        assert (chunk.pcm, chunk.reason) == (None, None)
    (last,) = written.step(3.0)
    assert (last.entries.tolist(), last.reason) == ([], Reason.STOP)


@pytest.mark.parametrize(("frame_s", "frames"), [(None, [0.0, 0.0]), (0.1, [1.0, 1.0])])
def test_a_clock_counts_the_frames_that_were_delivered(
    frame_s: float | None, frames: list[float]
) -> None:
    device = device_of(frame_s, (1,), (2,), (3,), chunk_ramp=(1,))
    reported: list[float] = []

    def delivered(sequence: Sequence, frames: float, now_s: float) -> None:
        assert (sequence.arrival, now_s > 0.0) == (0, True)
        reported.append(frames)

    scheduler: Any = device.worker.scheduler
    scheduler.delivered = delivered
    device.step(0.0)
    device.step(1.0)
    assert reported == frames


def test_audio_is_due_with_its_frames_unless_its_stream_has_failed() -> None:
    device = device_of(0.1, (1,), (2,), (3,), chunk_ramp=(4,))
    for number in range(2):
        device.step(float(number))
    worker, sequence = device.worker, only(device)

    def due(chunk: int, failed: bool = False) -> list[tuple[Sequence, int]]:
        results = Results(Work(vocode=((sequence, chunk),)))
        if failed:
            results.failed[sequence.arrival] = RuntimeError()
        return worker._due(results)

    assert due(2) == [(sequence, 2)]
    assert due(3) == []
    assert due(2, failed=True) == []
    assert due(3, failed=True) == []
    worker.finish_request(sequence, Reason.ABORTED)
    assert due(2) == []


def test_a_step_that_is_not_launched_takes_what_its_parts_take() -> None:
    device = device_of(0.1, (1,), (2,), (3,), chunk_ramp=(1,))
    learnt: list[tuple[StepWork, float]] = []
    device.worker.scheduler.cost.add = (  # type: ignore[method-assign]
        lambda work, seconds: learnt.append((work, seconds))
    )
    device.step(5.0)
    device.step(9.0)
    assert learnt == [
        (StepWork(0, 3, 0, 1, 1), 0.25 + 1.5 + 1.0),
        (StepWork(1, 0, 0, 1, 1), 0.25 + 0.125 + 1.0),
    ]


@dataclass
class InFlight:
    """The forward pass of a device that works by itself."""

    rows: Any
    ends_s: float
    runner: SimulatedRunner
    is_done: bool = False

    def __call__(self) -> list[Drawn]:
        self.runner.now_s = max(self.runner.now_s, self.ends_s)
        return [Drawn(((1,),)) for _ in self.rows]


@dataclass
class Ahead:
    """Launches steps that end when the test says so."""

    runner: SimulatedRunner
    ends_s: list[float] = field(default_factory=list)

    def launch(self, rows: list[PlannedRow]) -> InFlight | None:
        return InFlight(rows, self.ends_s.pop(0), self.runner) if rows else None


def test_a_step_in_flight_begins_when_the_one_before_it_ends() -> None:
    device = device_of(None, *[(1,)] * 8)
    worker, runner = device.worker, device.runner
    runner.launch = Ahead(runner, [3.0, 4.5, 9.0]).launch
    runner.now_s = 1.0
    worker.launch(worker.schedule(1.0))
    assert worker.is_in_flight
    assert [*worker.results()] == [], "the newest stays in flight"
    worker.launch(worker.schedule(1.5))
    taken = []
    for results in worker.results():
        taken.append(results.seconds)
        worker.process(results, runner.now_s)
    assert taken == [2.0]
    worker.launch(worker.schedule(3.0))
    for results in worker.results():
        taken.append(results.seconds)
        worker.process(results, runner.now_s)
    assert taken == [2.0, 1.5]
    assert worker.is_in_flight
