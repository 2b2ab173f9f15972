"""The loop: batching, cancelling, backpressure and failures never change a request's output."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from izwi import config
from izwi.errors import InvalidRequest, Overloaded
from izwi.metrics import LOAD_KEYS
from izwi.request.log import Log
from izwi.request.request import Reason
from izwi.sampling.draws import uniforms
from izwi.scheduler import policy
from izwi.scheduler.cost import StepCost
from tests.backends.kinds import each_backend, mlx_at_night
from tests.engine.toy import CODEBOOKS, toy_request
from tests.engine.world import SPEECH, World, alone, run, toys
from tests.engine.world import Log as Received


def test_every_frame_becomes_audio_in_ramped_chunks() -> None:
    log = alone(toy_request("a", 7, seed=4, frames=40))
    assert len(log.pcm) == len(log.entries) * SPEECH.frame_samples
    assert log.chunks[: min(4, len(log.chunks) - 1)] == [1, 2, 4, 8][: len(log.chunks) - 1]
    assert all(len(entry) == CODEBOOKS for entry in log.entries)
    assert all(entry[0] < 30 for entry in log.entries), "suppressed or stop ids were emitted"


def test_rows_of_a_step_share_one_forward_pass() -> None:
    SPEECH.batch_sizes.clear()
    run(World(), [toy_request(str(i), 5 + i, seed=i * 3, frames=10) for i in range(6)])
    assert max(SPEECH.batch_sizes) == 6
    assert len(SPEECH.batch_sizes) < 30


@each_backend
def test_same_seed_same_codes_alone_and_in_any_batch_on_every_backend(backend: str) -> None:
    requests = [toy_request(str(i), 3 + 5 * i, seed=i, frames=25, audio=i % 3) for i in range(8)]
    together = run(World(max_step_tokens=64, backend=backend), requests)
    for request in requests:
        single, torchs = alone(request, backend=backend), alone(request)
        assert together[request.request_id].entries == single.entries == torchs.entries
        assert together[request.request_id].pcm == single.pcm
        np.testing.assert_allclose(single.pcm, torchs.pcm, atol=1e-4)


@mlx_at_night
def test_steps_of_a_long_prompt_draw_nothing_before_its_end(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = toy_request("a", 30, seed=4, frames=6)
    expected = alone(request, backend=backend)
    speech, _ = toys(backend)
    drawn, draw = list[int](), speech.draw

    def noting(hidden: Any, *more: Any) -> Any:
        drawn.append(len(hidden))
        return draw(hidden, *more)

    monkeypatch.setattr(speech, "draw", noting)
    log = run(World(max_step_tokens=8, max_running=2, backend=backend), [request])["a"]
    assert log.entries == expected.entries
    assert drawn == [1] * len(log.entries)


def test_seeds_differ_and_streams_of_noise_are_uniform() -> None:
    noise = np.array(
        [uniforms(range(2000), [step] * 2000, book) for step in range(4) for book in range(4)]
    )
    assert abs(noise.mean() - 0.5) < 0.01
    assert np.unique(noise).size == noise.size
    assert abs(np.corrcoef(noise)[np.triu_indices(16, 1)]).max() < 0.1


def test_what_is_counted_is_named_and_policies_are_those_that_there_are() -> None:
    world = World()
    world.submit(toy_request("a", 6, seed=3, frames=20))
    world.run()
    for load in world.engine.load.values():
        assert load.keys() == set(LOAD_KEYS)
    assert tuple(sorted(policy.POLICIES, key=config.POLICY_NAMES.index)) == config.POLICY_NAMES


def test_abort_frees_everything_at_once() -> None:
    world = World()
    world.submit(toy_request("a", 30, seed=1, frames=100))
    for _ in range(4):
        world.step()
    chunks = world.engine.abort("a")
    assert [chunk.reason for chunk in chunks] == [Reason.ABORTED]
    assert not world.engine.has_work
    world.check_nothing_is_lost()
    assert world.engine.abort("a") == []


@mlx_at_night
def test_streams_with_audio_still_to_make_keep_their_rows(backend: str) -> None:
    requests = [toy_request(str(i), 4, seed=i, frames=6 + i % 3) for i in range(12)]
    logs = run(World(max_running=4, max_step_vocodes=1, backend=backend), requests)
    for request in requests:
        assert logs[request.request_id].pcm == alone(request, backend=backend).pcm


@mlx_at_night
def test_a_failing_row_fails_alone(backend: str) -> None:
    requests = [toy_request(str(i), 6, seed=i, frames=12) for i in range(4)]
    speech, _ = toys(backend)
    speech.poison = {"2"}
    try:
        logs = run(World(backend=backend), requests)
    finally:
        speech.poison = set()
    assert logs["2"].reason is Reason.ERROR
    assert isinstance(logs["2"].error, RuntimeError)
    for i in (0, 1, 3):
        assert logs[str(i)].entries == alone(requests[i], backend=backend).entries


def test_a_backpressured_request_emits_nothing_and_resumes_where_it_was() -> None:
    world, request = World(), toy_request("a", 6, seed=3, frames=20)
    world.submit(request)
    for _ in range(5):
        world.step()
    world.engine.set_backpressure("a", True)
    before = len(world.logs["a"].entries)
    for _ in range(5):
        world.step()
    assert len(world.logs["a"].entries) == before
    assert world.engine.is_idle
    world.engine.set_backpressure("a", False)
    world.run()
    assert world.logs["a"].entries == alone(request).entries
    assert world.logs["a"].pcm == alone(request).pcm


def test_encode_only_answers_with_the_encoded_audio() -> None:
    request = replace(toy_request("a", 1, seed=3, frames=5, audio=2), encode_only=True)
    world = World()
    world.submit(request)
    (chunk,) = world.engine.step()
    assert chunk.reason is Reason.STOP
    assert len(chunk.encoded) == 2
    assert not world.engine.has_work


def test_a_full_queue_and_a_too_long_prompt_are_refused_at_once() -> None:
    world = World(max_waiting=2)
    world.submit(toy_request("a", 3, seed=1, frames=5))
    world.submit(toy_request("b", 3, seed=1, frames=5))
    with pytest.raises(Overloaded):
        world.submit(toy_request("c", 3, seed=1, frames=5))
    with pytest.raises(InvalidRequest):
        World(pages=3).submit(toy_request("d", 12, seed=1, frames=5))


def test_a_log_that_ends_at_the_limit_gives_its_remaining_audio_and_ends() -> None:
    """Its last entry is drawn again; it is the same, and was delivered already."""
    request = replace(toy_request("a", 5, seed=3, frames=20), stop_ids=())
    whole = alone(request)
    entries = np.array(whole.entries)
    heard = sum(whole.chunks[:2])
    for known in (20, 19):
        world = World()
        samples = tuple(frames * SPEECH.frame_samples for frames in whole.chunks[:2])
        reported = Log(entries[:known], None, samples)
        world.logs["a"] = Received()
        world.engine.submit(request, reported)
        world.run()
        received = world.logs["a"]
        assert received.reason is Reason.LENGTH
        assert received.pcm == whole.pcm[heard * SPEECH.frame_samples :]
        assert received.entries == whole.entries[known:]


def test_a_runner_without_graphs_overlaps_nothing_and_learns_what_rebuilding_costs() -> None:
    runner = World().engine._workers["toy"].runner
    assert runner.codec_overlaps is False
    before = runner.store.costs.rebuild_s_per_position
    runner.learn(StepCost())
    assert runner.store.costs.rebuild_s_per_position == before, "nothing was measured"
    runner.learn(StepCost(prefill_token_s=3e-3))
    assert runner.store.costs.rebuild_s_per_position == 3e-3
