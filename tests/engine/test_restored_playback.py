"""Streams that come from another engine run in the order in which their listeners need them."""

from __future__ import annotations

import numpy as np
import pytest

from izwi.request.log import Log
from izwi.scheduler.playback import PlaybackClocks
from tests.engine.test_deadlines import endless
from tests.engine.world import SPEECH, World
from tests.engine.world import Log as Received

FRAME_S = SPEECH.frame_samples / SPEECH.sample_rate
NUM_FRAMES = 3


@pytest.fixture(scope="module")
def entries() -> list[list[int]]:
    world = World()
    world.submit(endless("a", frames=NUM_FRAMES))
    world.run()
    return world.logs["a"].entries


def resumed(world: World, name: str, entries: list[list[int]], played_s: float) -> None:
    """Submit a stream of which a listener has played so much of its first frames."""
    samples = (SPEECH.frame_samples, 2 * SPEECH.frame_samples)
    log = Log(np.array(entries), chunk_samples=samples, chunk_ages_s=(played_s, played_s))
    world.logs[name] = Received()
    world.engine.submit(endless(name, frames=40), log)


def slack_of(world: World, name: str) -> float:
    worker, sequence = world.engine._live[name]
    return worker.scheduler.clocks.urgency(sequence.arrival, world.clock.now_s)[0]


def test_slack_is_that_of_the_listener(entries: list[list[int]]) -> None:
    world = World()
    world.clock.now_s = 50.0
    for name, played_s in (("ahead", 0.0), ("late", NUM_FRAMES * FRAME_S + 0.5)):
        resumed(world, name, entries, played_s)
    assert slack_of(world, "ahead") == pytest.approx(NUM_FRAMES * FRAME_S)
    assert slack_of(world, "late") == pytest.approx(-0.5)
    world.submit(endless("new"))
    assert slack_of(world, "new") == pytest.approx(world.config.ttfa_target_s)


def test_those_next_to_an_underrun_have_the_places(entries: list[list[int]]) -> None:
    played_s = [0.0, 2.9 * FRAME_S, FRAME_S, 2.5 * FRAME_S, 0.5 * FRAME_S]
    world = World(max_running=2)
    for number, seconds in enumerate(played_s):
        resumed(world, f"s{number}", entries, seconds)
    running: set[str] = set()
    while len(running) < 2:
        world.step()
        live = world.engine._live.items()
        running = {name for name, (worker, one) in live if worker.scheduler.runs(one)}
    assert running == {"s1", "s3"}


@pytest.mark.parametrize("late_s", [0.0, 1.0])
def test_the_gap_of_a_move_is_counted_once_the_stream_goes_on(
    entries: list[list[int]], late_s: float
) -> None:
    world = World()
    resumed(world, "a", entries, late_s and NUM_FRAMES * FRAME_S + late_s)
    world.run()
    assert late_s <= world.engine.load["toy"]["gap_seconds"] < late_s + 0.5


def test_a_gap_before_the_move_does_not_make_a_stream_late() -> None:
    clocks = PlaybackClocks(0.1, 0.2)
    clocks.add(1, "listener", 10.0)
    clocks.restore(1, [(8.0, 0.5), (9.5, 1.0)])  # played until 8.5, and from 9.5 on
    assert clocks.urgency(1, 10.0) == (pytest.approx(0.5), True)
    clocks.add(2, "listener", 10.0)
    clocks.restore(2, [(9.9, 3.0)])  # the next piece is played after it
    assert clocks.urgency(2, 10.0)[0] > 3.0
    clocks.add(3, "another", 10.0)
    clocks.restore(3, [])
    assert clocks.urgency(3, 10.0) == (pytest.approx(0.2), False)
