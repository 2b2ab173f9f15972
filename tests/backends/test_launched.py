"""MLX with a step in flight: the next one is launched on ids that the host does not know yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from msgspec.structs import replace

from izwi.model.layers import KVSpec, StateSpec
from izwi.request.request import Reason, Request, SamplingParams, TrackParams
from izwi.request.sequence import Sequence
from izwi.runner.batch import row_of
from izwi.runner.runner import Runner
from tests.backends.kinds import AHEAD, backend_of, needs_mlx
from tests.engine.talk_world import TalkWorld
from tests.engine.toy import toy_request
from tests.engine.toy_talk import talk_request
from tests.engine.world import PAGE, World, alone, run, toys
from tests.several import check_mixed_batch

pytestmark = needs_mlx


def endless(name: str, seed: int, frames: int, model: str = "toy") -> Request:
    return replace(toy_request(name, 5, seed, frames, model=model), stop_ids=())


@contextmanager
def counted() -> Iterator[list[int]]:
    """For each launched step, the number of its rows whose last entry the host does not know."""
    counts: list[int] = []
    launch = Runner.launch

    def counting(self: Runner, rows: Any) -> Any:
        unknown = sum(row.sequence.pending.entries for row in rows)
        launched = launch(self, rows)
        if launched is not None:
            counts.append(unknown)
        return launched

    with patch.object(Runner, "launch", counting):
        yield counts


def test_logs_are_those_of_steps_that_wait_for_each_other() -> None:
    """Frames and text, greedy and drawn with a repetition penalty, to a stop id or the limit."""
    requests = [
        toy_request(str(i), 3 + 5 * i, i, frames=30, audio=i % 3, model=("toy", "text")[i % 2])
        for i in range(10)
    ]
    requests[5] = replace(requests[5], min_entries=29)
    plain = run(World(max_running=4, backend="mlx"), requests)
    assert {log.reason for log in plain.values()} == {Reason.STOP, Reason.LENGTH}
    with counted() as counts:
        world = World(max_running=4, backend=AHEAD)
        found = run(world, requests)
    world.check_nothing_is_lost()
    assert sum(count > 0 for count in counts) > 0.8 * len(counts) > 20
    for worker in world.engine._workers.values():  # earlier steps' ids are let go
        assert len(worker.runner._graphs._drawn) <= 4
    for name, log in plain.items():
        assert found[name].error is None, found[name].error
        assert found[name].entries == log.entries
        assert found[name].pcm == log.pcm
        assert found[name].reason is log.reason


def test_an_end_that_is_drawn_while_the_next_step_is_in_flight_drops_its_row() -> None:
    asked = replace(endless("a", 4, frames=16, model="text"), min_entries=0)
    neighbour = endless("b", 5, frames=20, model="text")
    said = [entry[0] for entry in alone(asked, backend="mlx").entries]
    other = alone(neighbour, backend="mlx").entries
    ends = [at for at in range(2, len(said)) if said[at] not in said[:at]]
    assert len(ends) >= 3
    for at in ends[:3]:
        world = World(backend=AHEAD)
        logs = run(world, [replace(asked, stop_ids=(said[at],)), neighbour])
        assert logs["a"].reason is Reason.STOP
        assert [entry[0] for entry in logs["a"].entries] == said[:at]
        assert logs["b"].entries == other
        world.check_nothing_is_lost()


def test_an_abort_and_a_pause_drop_what_is_in_flight() -> None:
    requests = [endless(name, seed, frames=24) for name, seed in (("a", 4), ("b", 7), ("c", 8))]
    expected = {r.request_id: alone(r, backend="mlx") for r in requests}
    world = World(backend=AHEAD, max_running=3)
    for request in requests:
        world.submit(request)
    for _ in range(7):
        world.step()
    assert all(sequence.pending.entries for _, sequence in world.engine._live.values())
    world.deliver(world.engine.abort("a"))
    world.engine.pause("b")
    world.submit(endless("d", 7, frames=24))  # takes their pages while the step is in flight
    for _ in range(4):
        world.step()
    world.engine.resume("b")
    world.run()
    world.check_nothing_is_lost()
    aborted = world.logs["a"]
    assert aborted.reason is Reason.ABORTED
    assert aborted.entries == expected["a"].entries[: len(aborted.entries)]
    for name, same in (("b", "b"), ("c", "c"), ("d", "b")):
        assert world.logs[name].entries == expected[same].entries
        assert world.logs[name].pcm == expected[same].pcm


def test_sequences_that_lose_their_pages_while_a_step_is_in_flight_draw_it_again() -> None:
    requests = [endless(str(n), n, frames=40) for n in range(4)]
    world = World(pages=26, backend=AHEAD, max_running=4)
    found = run(world, requests)
    assert world.engine.load["toy"]["preempted"] > 0
    world.check_nothing_is_lost()
    for request in requests:
        expected = alone(request, backend="mlx")
        assert found[request.request_id].entries == expected.entries
        assert found[request.request_id].pcm == expected.pcm


@pytest.mark.slow
def test_entries_of_another_track_in_flight_are_not_repetitions() -> None:
    """A frame is in flight where text follows it, and a token where a frame does."""
    strong = SamplingParams(repetition_penalty=30.0)
    found, expected = [], []
    for seed in range(8):
        request = talk_request("a", 9, seed, entries=40)
        request = replace(
            request,
            stop_ids=(),
            sampling=strong,
            other_tracks=(TrackParams(strong, SamplingParams()),),
        )
        for backend, logs in (("mlx", expected), (AHEAD, found)):
            world = TalkWorld(backend=backend)
            world.submit(request)
            world.run()
            logs.append(world.heard["a"].logged)
    assert found == expected
    tracks = [[track for track, _ in logged] for logged in expected]
    assert sum(a != b for one in tracks for a, b in pairwise(one)) > 16


def two_in_flight() -> tuple[World, list[Request]]:
    """Two requests in the middle of their entries, with a step in flight."""
    requests = [endless(name, seed, frames=20) for name, seed in (("a", 4), ("b", 7))]
    world = World(backend=AHEAD)
    for request in requests:
        world.submit(request)
    for _ in range(6):
        world.step()
    return world, requests


@pytest.mark.parametrize("fails", ["once", "always"])
def test_a_draw_that_cannot_be_evaluated_fails_its_own_row_alone(fails: str) -> None:
    """As with no memory left: it fails when it is handed over, while a step is in flight."""
    from izwi.backends.mlx import launched

    speech, _ = toys(AHEAD)
    begin, ids_of, names, failed = launched._start_evaluation, speech.inputs, [], 0
    world, requests = two_in_flight()

    def inputs(rows: Any) -> Any:
        names[:] = [row.request.request_id for row in rows]
        return ids_of(rows)

    def without_memory(drawn: Any) -> None:
        nonlocal failed
        if isinstance(drawn, list) and "a" in names and not (failed and fails == "once"):
            failed += 1
            raise RuntimeError("[malloc] Unable to allocate 4 bytes")
        begin(drawn)

    with (
        patch.object(speech, "inputs", inputs),
        patch.object(launched, "_start_evaluation", without_memory),
    ):
        world.run()
    assert failed == (1 if fails == "once" else 3), "launched, with others, and alone"
    world.check_nothing_is_lost()
    for request in requests:
        log, expected = world.logs[request.request_id], alone(request, backend="mlx")
        ends = fails == "once" or request.request_id == "b"
        assert log.reason is (Reason.LENGTH if ends else Reason.ERROR)
        assert log.entries == expected.entries[: len(log.entries)]


def test_an_error_of_the_device_ends_the_requests_of_its_step() -> None:
    from izwi.backends.mlx import launched

    world, requests = two_in_flight()
    with patch.object(launched, "_in_order", side_effect=RuntimeError("the device failed")):
        for _ in range(3):
            world.step()
    assert [type(log.error) for log in world.logs.values()] == [RuntimeError] * 2
    world.check_nothing_is_lost()
    assert run(world, [replace(requests[0], request_id="c")])["c"].entries == (
        alone(requests[0], backend="mlx").entries
    )


SPEC = KVSpec(1, 2, 32, 1e4)
NUM_PAGES = 1 << 12
PLANE_BYTES = NUM_PAGES * PAGE * 2 * 32 * 4


def sequence_of(stop: int) -> Sequence:
    sequence = Sequence(toy_request("a", stop, 0, 1), 0)
    sequence.kv.pages = list(range(-(-stop // PAGE)))
    return sequence


def test_pages_are_written_in_place_while_a_step_in_flight_reads_them() -> None:
    """A copy of the pages for each step would cost more than the step."""
    import mlx.core as mx

    made = backend_of(AHEAD)
    kv: Any = made.paged_kv(SPEC, NUM_PAGES, PAGE, "auto")
    kv.duplicate()
    slow = mx.eye(160)
    mx.eval(slow)
    keys, outputs, launched = [], [], []
    sequence = sequence_of(12)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    for stop in range(1, 13):
        x = slow
        for _ in range(3):  # so that the step is still in flight when the next one is launched
            x = x @ slow
        keys.append(mx.full((1, 2, 32), stop / 12) * x[0, 0])
        context = kv.context([row_of(sequence, stop - 1, stop)])
        launched.append(context.attend(0, mx.ones((1, 4, 32)) * x[0, 0], keys[-1], keys[-1]))
        mx.async_eval(launched[-1], kv.arrays)
        outputs += [np.array(launched[-2])] if len(launched) > 1 else []
    assert mx.get_peak_memory() - before < PLANE_BYTES / 2
    found = kv.read_pages(range(3)).view(np.float32).reshape(3, 2, PAGE, 64)
    assert np.array_equal(
        found[:, 0].reshape(12, 64), np.array(mx.concatenate(keys)).reshape(12, 64)
    )
    for stop, output in enumerate(outputs, 1):  # each saw all keys before its own
        weights = np.exp(np.arange(1, stop + 1) / 12 * np.sqrt(32))
        mean = (weights / weights.sum()) @ (np.arange(1, stop + 1) / 12)
        np.testing.assert_allclose(output, mean, rtol=1e-4)


@pytest.mark.parametrize("backend", ["mlx", AHEAD])
def test_copying_a_part_of_a_page_does_not_copy_all_pages(backend: str) -> None:
    import mlx.core as mx

    kv: Any = backend_of(backend).paged_kv(SPEC, NUM_PAGES, PAGE, "auto")
    slow = mx.eye(160)
    mx.eval(slow)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.async_eval(slow @ slow @ slow)  # what reads the pages is still in the queue when they are
    kv.copy([(3, 5, 2), (4, 7, 1)])  # written
    assert mx.get_peak_memory() - before < PLANE_BYTES / 2


def test_states_are_written_in_place_though_the_chunk_before_has_read_them() -> None:
    import mlx.core as mx

    arena: Any = backend_of(AHEAD).state_arena({"x": StateSpec((1 << 14,))}, 64)
    rows = [arena.allocate() for _ in range(2)]
    mx.eval(arena.arrays)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    for n in range(4):
        with arena.side_stream():
            state = {"x": arena.gather(rows)["x"] + n}
        arena.scatter(rows, state)
        mx.eval(state["x"])
    assert mx.get_peak_memory() - before < 32 * (4 << 14)
    saved = np.array(arena.gather(rows)["x"])
    assert np.array_equal(saved, np.full((2, 1 << 14), 6, np.float32))
    arena.scatter(rows[:1], {"x": mx.full((1, 1 << 14), 9.0)})
    saved_row = arena.save(rows[0])
    arena.scatter(rows, {"x": mx.zeros((2, 1 << 14))})
    arena.restore(rows[1], saved_row)
    assert np.array(arena.gather(rows)["x"])[:, 0].tolist() == [0.0, 9.0]


def test_pages_from_a_lower_tier_are_written_in_place_while_a_step_reads_them() -> None:
    import mlx.core as mx

    kv: Any = backend_of(AHEAD).paged_kv(SPEC, NUM_PAGES, PAGE, "auto")
    kv.duplicate()
    slow = mx.eye(160)
    mx.eval(slow)
    pages = kv.read_pages([1])
    for step in range(2):
        x = slow @ slow @ slow
        context = kv.context([row_of(sequence_of(1), 0, 1)])
        out = context.attend(0, *[mx.ones((1, n, 32)) * x[0, 0] for n in (4, 2, 2)])
        if not step:
            mx.eval(out, kv.arrays)
    mx.async_eval(out, kv.arrays)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    kv.write_pages([2], pages)
    assert mx.get_peak_memory() - before < PLANE_BYTES / 2


def test_work_ends_without_waiting_for_the_device_and_the_codec_has_its_own_stream() -> None:
    import mlx.core as mx

    for name in ("mlx", AHEAD):
        made: Any = backend_of(name)
        arena: Any = made.state_arena({"x": StateSpec((1,))}, 1)
        usual = mx.default_stream(mx.default_device())
        with arena.side_stream():
            assert (mx.default_stream(mx.default_device()) != usual) == (name == AHEAD)
    with patch.object(mx, "eval", side_effect=AssertionError("it waits")), made.running():
        pass


def test_half_of_the_pages_fit_because_each_exists_twice() -> None:
    plain, ahead = (World(pages=40, backend=name) for name in ("mlx", AHEAD))
    assert plain.engine.load["toy"]["pages"] == ahead.engine.load["toy"]["pages"] == 40
    assert ahead.config.kv_bytes == 2 * plain.config.kv_bytes
    runners: Any = [w.engine._workers["toy"].runner for w in (plain, ahead)]
    assert [runner.codec_overlaps for runner in runners] == [False, True]
    assert [len(runner._kv._other) for runner in runners] == [0, 2]
    runner = World(pages=40, backend=AHEAD, graphs=False).engine._workers["toy"].runner
    assert runner.num_pages == 80
    assert not runner.codec_overlaps


def test_on_a_cpu_steps_wait_for_each_other_unless_asked() -> None:
    import mlx.core as mx

    from izwi.backends.mlx.backend import mlx_backend

    if mx.default_device().type == mx.cpu:
        assert not mlx_backend().launches_ahead
    assert mlx_backend(launches_ahead=True).launches_ahead


def test_chunks_of_any_lengths_are_decoded_in_one_call() -> None:
    steps: Any = World(backend=AHEAD).engine._workers["toy"].runner._graphs
    chunks = [np.full((length, 3), 5 + n) for n, length in enumerate((1, 3, 1, 2))]
    rows = [steps._arena.allocate() for _ in chunks]
    together = [pending() for pending in steps.vocode(chunks, rows)]
    for chunk, row, audio in zip(chunks, rows, together, strict=True):
        steps._arena.clear(row)
        expected = np.sin(np.cumsum(np.repeat(chunk.sum(1), 4)))
        np.testing.assert_allclose(audio, expected, atol=1e-5)
        assert np.array_equal(steps.vocode([chunk], [row])[0](), audio)


@pytest.mark.parametrize("model", ["toy", "text"])
def test_rows_that_draw_several_entries_run_beside_decodes_and_prompts(model: str) -> None:
    requests = [endless(str(n), n, frames=9, model=model) for n in range(4)]
    logs = [alone(request, backend="mlx").entries for request in requests]
    runner = World(backend=AHEAD).engine._workers[model].runner
    with runner.backend.running():
        check_mixed_batch(runner, requests, [list(map(tuple, log)) for log in logs])
