"""On an asynchronous device the next step is launched before the last one's results are known."""

from __future__ import annotations

import random
from unittest.mock import patch

import numpy as np
import pytest
from msgspec.structs import replace

from izwi.request.request import Reason
from izwi.scheduler.work import Work
from tests.engine.ahead import one_step_ahead
from tests.engine.toy import toy_request
from tests.engine.world import SPEECH, STEP_S, World, alone, run


def test_every_request_gets_the_same_output_in_one_step_more() -> None:
    requests = [toy_request(str(i), 3 + 5 * i, seed=i, frames=25, audio=i % 3) for i in range(8)]
    plain = World(max_running=5)
    logs = run(plain, requests)
    with one_step_ahead() as counts:
        world = World(max_running=5)
        found = run(world, requests)
    world.check_nothing_is_lost()
    assert sum(count > 0 for count in counts) > 0.9 * len(counts)
    for name, log in logs.items():
        assert found[name].entries == log.entries
        assert found[name].pcm == log.pcm
        assert found[name].reason is log.reason
    steps = [w.engine.load["toy"]["steps"] for w in (plain, world)]
    assert steps[1] <= 1.1 * steps[0] + 1


def test_a_sequence_that_ends_by_its_limit_costs_no_row_more() -> None:
    request = replace(toy_request("a", 5, seed=3, frames=9), stop_ids=())
    with one_step_ahead():
        world = World()
        before = SPEECH.num_tokens
        log = run(world, [request])["a"]
    assert SPEECH.num_tokens - before == 5 + 8  # the last entry is never an input
    assert log.reason is Reason.LENGTH
    assert log.pcm == alone(request).pcm


def test_pausing_in_mid_step_drops_what_is_in_flight_and_draws_it_again() -> None:
    request = replace(toy_request("a", 5, seed=4, frames=30), stop_ids=())
    with one_step_ahead():
        world = World()
        world.submit(request)
        for _ in range(8):
            world.step()
        sequence = world.engine._live["a"][1]
        known = len(sequence.emitted)
        assert sequence.pending.entries == 1
        world.engine.pause("a")
        assert sequence.pending.entries == 0
        for _ in range(3):
            world.step()
        assert len(sequence.emitted) == known
        world.engine.resume("a")
        world.run()
    assert world.logs["a"].entries == alone(request).entries
    assert world.logs["a"].pcm == alone(request).pcm
    world.check_nothing_is_lost()


def test_leaving_while_a_step_is_in_flight_ends_once() -> None:
    with one_step_ahead():
        world = World()
        for name in "ab":
            world.submit(replace(toy_request(name, 5, seed=4, frames=20), stop_ids=()))
        for _ in range(6):
            world.step()
        world.deliver(world.engine.abort("a"))
        world.run()
    assert world.logs["a"].reason is Reason.ABORTED
    assert world.logs["b"].reason is Reason.LENGTH
    world.check_nothing_is_lost()


def test_a_model_is_let_go_after_its_last_step() -> None:
    with one_step_ahead():
        world = World()
        world.submit(toy_request("a", 5, seed=4, frames=20))
        for _ in range(6):
            world.step()
        world.engine.remove("toy")
        world.deliver(world.engine.abort("a"))
        assert world.engine.leaving == {"toy"}
        world.step()
        assert not world.engine.leaving
        assert not world.engine.has_work


def test_text_that_is_not_written_is_waited_for() -> None:
    request = replace(toy_request("a", 5, seed=4, frames=12), open_input=True, stop_ids=())
    text = list(range(1, 13))
    with one_step_ahead():
        world = World()
        world.submit(request)
        for at in range(0, 12, 3):
            for _ in range(6):
                world.step()
            world.engine.write("a", text[at : at + 3], closed=at == 9)
        world.run()
    prompt = replace(request.prompt, track=tuple(text))  # type: ignore[type-var]
    single = alone(replace(request, prompt=prompt, open_input=False))
    assert world.logs["a"].entries == single.entries
    assert np.array_equal(world.logs["a"].pcm, single.pcm)


def test_there_is_time_for_new_requests_until_the_device_is_nearly_done() -> None:
    with one_step_ahead():
        world = World()
        world.submit(replace(toy_request("a", 5, seed=4, frames=60), stop_ids=()))
        assert world.engine.spare_s <= 0.0
        for _ in range(40):  # each takes STEP_S
            world.step()
        assert world.engine._workers["toy"].is_in_flight
        begun_s = world.clock.now_s - STEP_S
        world.clock.now_s = begun_s
        polls = 0
        while (spare_s := world.engine.spare_s) > 0.0:
            world.clock.now_s += spare_s
            polls += 1
        assert STEP_S / 2 < world.clock.now_s - begun_s < 0.8 * STEP_S
        assert polls < 20
    world = World()
    world.submit(replace(toy_request("a", 5, seed=4, frames=60), stop_ids=()))
    for _ in range(40):
        world.step()
    assert world.engine.spare_s <= 0.0
    assert not world.engine._workers["toy"].is_in_flight


def test_a_codec_state_is_made_again_in_a_step_that_does_nothing_else() -> None:
    with one_step_ahead():
        world = World()
        world.submit(replace(toy_request("a", 5, seed=4, frames=30), stop_ids=()))
        for _ in range(6):
            world.step()
        worker, sequence = world.engine._live["a"]
        assert worker.is_in_flight
        with patch.object(worker.runner, "rebuild", return_value={}) as rebuild:
            worker._waits = True  # as where there was no room for the row that it started for
            worker.launch(Work(rebuild=(sequence,)))
        rebuild.assert_called_once_with((sequence,))


@pytest.mark.parametrize("seed", range(3))
def test_pending_of_a_sequence_equals_its_steps_in_flight(seed: int) -> None:
    rng = random.Random(seed)
    with one_step_ahead():
        world = World(max_running=4, chunk_ramp=(1, 2, 3))
        for i in range(5):
            world.submit(replace(toy_request(str(i), 5, seed=i, frames=40), stop_ids=()))
        for _ in range(160):
            name = str(rng.randrange(5))
            rng.choice([world.engine.pause, world.engine.resume, world.engine.resume])(name)
            world.step()
            for worker, sequence in world.engine._live.values():
                flying = [step for step in worker._in_flight if step.forward is not None]
                now = sequence.pending.epoch
                vocoded = [x for step in flying for x in step._vocoded if x[:2] == (sequence, now)]
                pending = sequence.pending
                assert pending.frames == sum(frames for _, _, frames in vocoded)
                assert pending.chunks == len(vocoded)
        for i in range(5):
            world.engine.resume(str(i))
        world.run()


def test_text_that_comes_while_the_last_entry_is_drawn_lets_it_go_on() -> None:
    """Where the limit grows with what is written, no step that ran before says that it ends."""
    request = replace(toy_request("a", 5, seed=4, frames=40), open_input=True, stop_ids=())
    with (
        one_step_ahead(),
        patch.object(SPEECH, "max_entries", lambda span: 2 + len(span.written) // 2),
    ):
        world = World()
        world.submit(request)
        world.engine.write("a", [1] * 12, closed=False)
        sequence = world.engine._live["a"][1]
        for _ in range(60):
            if sequence.pending.ends:
                break
            world.step()
        else:
            raise AssertionError("the end was not predicted")
        known = len(sequence.emitted)
        world.engine.write("a", [3] * 10, closed=True)
        world.run()
    assert len(world.logs["a"].entries) == 2 + 22 // 2 > known
    assert world.logs["a"].chunks == [1, 2, 4, 6], "the rest before the predicted end did not go"
