"""The loop waits for new requests only while the device works."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import PropertyMock, patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from izwi.request.request import Request
from izwi.runner.runner import Runner
from izwi.scheduler.cost import StepWork
from izwi.scheduler.work import PlannedRow
from tests.engine.ahead import PaperDevice, one_step_ahead
from tests.engine.toy import toy_request
from tests.engine.virtual import VirtualLoop
from tests.engine.world import World
from tests.examples import examples

STEP_S = 0.004
ENCODE_S = 0.02


class Timed:
    """A world whose device takes time: encoders make the host wait, steps do not."""

    def __init__(self, **settings: Any):
        self.world = World(**settings)
        self.loop = VirtualLoop(self.world)
        self.encode_s, self.step_s = ENCODE_S, STEP_S
        self.device = PaperDevice(self.world.clock, self._seconds)

    def _seconds(self, rows: Sequence[PlannedRow]) -> float:
        return self.step_s

    @contextmanager
    def running(self) -> Iterator[None]:
        encode = Runner.encode

        def timed(runner: Runner, pieces: Sequence[Any]) -> list[Any]:
            self.world.clock.now_s += self.encode_s if pieces else 0.0
            return encode(runner, pieces)

        with one_step_ahead(self.device), patch.object(Runner, "encode", timed):
            yield


def clip(name: str, seed: int) -> Request:
    """A transcription of a new clip."""
    return toy_request(name, 5, seed=seed, frames=4, audio=1, model="text")


def test_a_clip_after_slow_ones_waits_for_the_device_alone() -> None:
    timed = Timed()
    with timed.running():
        before = max(timed.loop.run([(0.0, clip("first", 1))]).values())
        timed.encode_s = 0.7
        slow = [clip(f"slow {i}", 100 + i) for i in range(12)]
        for request in slow:
            timed.loop.run([(0.0, request)])
        timed.encode_s = ENCODE_S
        for i in range(40):
            took_s = timed.loop.run([(0.1, clip(f"later {i}", 200 + i))])
            assert max(took_s.values()) < before + timed.step_s, i


def spoken(name: str, seed: int, frames: int) -> Request:
    return replace(toy_request(name, 5, seed=seed, frames=frames), stop_ids=())


@examples(10)
@given(
    outliers=st.dictionaries(st.integers(10, 120), st.floats(3.0, 500.0), min_size=1, max_size=8),
    burst=st.integers(0, 12),
    seed=st.integers(0, 99),
)
@pytest.mark.slow
def test_outliers_delay_what_comes_after_them_by_no_more_than_a_step(
    outliers: dict[int, float], burst: int, seed: int
) -> None:
    """Requests one at a time, once with slow steps among theirs and once without.

    Those that meet no slow step themselves take as long both times.
    """
    took_s = []
    for factors in ({}, outliers):
        timed = Timed()
        rows = iter(range(10**6))

        def seconds(_: object, factors: dict[int, float] = factors, rows: Any = rows) -> float:
            return STEP_S * factors.get(next(rows), 1.0)

        timed.device._seconds = seconds
        took = []
        with timed.running():
            for i in range(30):
                slow = factors and 6 <= i < 6 + burst
                timed.encode_s = ENCODE_S * (30 if slow else 1)
                make = clip if i % 3 else partial(spoken, frames=4)
                took += timed.loop.run([(0.05, make(f"{i}", seed=1000 * seed + i))]).values()
        took_s.append(took)
    met = sum(d > c + STEP_S for c, d in zip(*took_s, strict=True))
    assert met <= len(outliers) + burst


def test_steps_that_overlap_are_priced_by_their_own_time() -> None:
    """The next step is launched while one runs: its time begins when that one ends."""
    timed = Timed()
    requests = [spoken(str(i), seed=i, frames=150) for i in range(4)]
    with timed.running():
        timed.loop.run([(0.0, request) for request in requests])
        cost = timed.world.engine._workers["toy"].scheduler.cost.cost
        assert cost.seconds(StepWork(decode_rows=4)) == pytest.approx(STEP_S, rel=0.2)
        assert timed.device.steps[50][0] == pytest.approx(timed.device.steps[49][1]), "no overlap"


def test_steps_that_compiled_teach_no_prices() -> None:
    timed = Timed()
    compiled = 0
    with (
        timed.running(),
        patch.object(Runner, "num_compiled", PropertyMock(side_effect=lambda: compiled)),
    ):
        timed.loop.run([(0.0, spoken("a", seed=1, frames=100))])
        cost = timed.world.engine._workers["toy"].scheduler.cost
        learnt, launch = cost._num_steps, Runner.launch

        def compiling(runner: Runner, rows: Sequence[PlannedRow]) -> Any:
            nonlocal compiled
            compiled += 1
            timed.world.clock.now_s += 1.0
            return launch(runner, rows)

        with patch.object(Runner, "launch", compiling):
            timed.loop.run([(0.0, spoken("b", seed=2, frames=50))])
        assert cost._num_steps == learnt
        timed.loop.run([(0.0, spoken("c", seed=3, frames=50))])
        assert cost._num_steps > learnt


@pytest.mark.parametrize("slow", ["launch", "encode"])
def test_one_late_launch_and_audio_leave_time_for_new_requests(slow: str) -> None:
    """Otherwise requests that arrive during a step would miss the next one for a while."""
    timed = Timed()
    world = timed.world
    with timed.running():
        world.submit(spoken("a", seed=1, frames=200))
        worker = world.engine._workers["toy"]
        for _ in range(80):
            timed.world.deliver(world.engine.step())
        method = getattr(Runner, slow)

        def late(runner: Runner, batch: Any) -> Any:
            world.clock.now_s += 1.0
            return method(runner, batch)

        for _ in range(1 if slow == "launch" else 2):
            world.submit(toy_request(f"b{world.clock.now_s}", 5, seed=2, frames=2, audio=1))
            with patch.object(Runner, slow, late):
                world.deliver(world.engine.step())
        for _ in range(3):
            world.deliver(world.engine.step())
        assert worker.is_in_flight
        assert worker.spare_s > 0.0


@pytest.mark.parametrize("ahead", [False, True])
def test_a_step_is_priced_by_all_that_it_waited_for(ahead: bool) -> None:
    """Encoders and vocoding count if nothing else runs; beside the next step vocoding is free."""
    timed = Timed()
    clock, learnt = timed.world.clock, list[tuple[StepWork, float]]()
    forward, vocode, encode = Runner.forward, Runner.vocode, Runner.encode

    def taking(seconds: float, work: Any) -> Any:
        def run(runner: Runner, batch: Sequence[Any]) -> Any:
            clock.now_s += seconds if batch else 0.0
            return work(runner, batch)

        return run

    worker = timed.world.engine._workers["toy"]
    request = replace(spoken("a", seed=1, frames=30), prompt=clip("b", 7).prompt)
    timed.world.submit(request)
    with (
        one_step_ahead(timed.device)
        if ahead
        else patch.object(Runner, "forward", taking(STEP_S, forward)),
        patch.object(Runner, "encode", taking(ENCODE_S, encode)),
        patch.object(Runner, "vocode", taking(0.001, vocode)),
        patch.object(worker.scheduler.cost, "add", lambda *step: learnt.append(step)),
    ):
        for _ in range(25):
            timed.world.deliver(timed.world.engine.step())
    encoding = [s for work, s in learnt if work.encodes]
    assert encoding == [pytest.approx(ENCODE_S + STEP_S, abs=0.0011)]
    vocoded = [s for work, s in learnt[5:] if work.vocode_calls and not work.encodes]
    assert len(vocoded) > 2
    for seconds in vocoded:
        assert seconds == pytest.approx(STEP_S if ahead else STEP_S + 0.001)


def test_requests_that_arrive_during_one_step_join_the_next_together() -> None:
    """The first does not end the wait for the second."""
    timed = Timed()
    stream = spoken("stream", seed=1, frames=200)
    with timed.running():
        arrivals = [(0.3005, spoken("a", 2, 9)), (0.3015, spoken("b", 3, 9))]
        timed.loop.run([(0.0, stream), *arrivals])
    first, second = (timed.loop.chunk_s[name][0] for name in "ab")
    assert first == second
