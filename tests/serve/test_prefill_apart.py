"""One engine computes a long prompt, another goes on with its pages: the bytes of one engine."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from izwi.errors import InvalidRequest
from izwi.router.options import RouterOptions
from izwi_api.serve import moved_pages
from izwi_api.serve.options import ReplicaOptions
from tests.engine.toy import ToyPrompt, toy_request
from tests.serve.over_sockets import until
from tests.serve.test_engine_restart import given
from tests.serve.test_remote_engine import read
from tests.serve.test_replica_router import Replicas, counts, lose, undisturbed

APART = RouterOptions("least_load", page_size=4, num_prefill=1, prefill_positions=16)


def long(name, length=42, seed=1, entries=12):
    return replace(
        toy_request(name, 2, seed, entries),
        prompt=ToyPrompt(tuple((seed + n * n) % 29 for n in range(length))),
        stop_ids=(),
    )


def figure(world, number, name):
    return world.sides[number].lines._engine.load["toy"][name]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(moved_pages, "_PART_BYTES", 1)  # a page in each part


async def all_freed(world):
    """No engine holds memory, pages or ids of a prompt that was moved."""
    sides = [side.lines for side in world.sides]
    await until(lambda: not any(one._moves._written or one._prefills for one in sides))
    await until(lambda: not any(line.prefills for one in sides for line in one._lines.values()))
    for side in sides:
        load = side._engine.load["toy"]
        assert load["available_pages"] == load["pages"]
    assert counts(world) == [(0, 0.0)] * len(world.sides)
    for engine in world.engines:
        assert [engine._awaiting, engine._taken, engine._prefills] == [{}, {}, {}]


async def test_a_long_prompt_is_computed_elsewhere_and_its_answer_is_the_same():
    requests = [long("a"), long("b", 23, seed=2)]
    expected = [given(chunks) for chunks in await undisturbed(requests)]
    async with Replicas(options=APART) as world:
        answers = [world.router.submit(one) for one in requests]
        assert world.running(1) == {"a", "b"}
        heard = await asyncio.gather(*map(read, answers))
        assert [given(chunks) for chunks in heard] == expected
        # the last positions were computed where the entries are drawn, all others came
        assert [chunks[0].timing.num_cached for chunks in heard] == [40, 20]
        assert figure(world, 0, "positions") >= 42
        assert figure(world, 1, "positions") < 42
        await all_freed(world)


async def test_short_and_cached_prompts_are_computed_where_they_are_answered():
    async with Replicas(options=APART) as world:
        await read(world.router.submit(long("short", 15)))
        assert figure(world, 0, "steps") == 0
        await read(world.router.submit(long("long")))
        steps = figure(world, 0, "steps")
        assert steps > 0
        await read(world.router.submit(long("again", 44)))
        assert figure(world, 0, "steps") == steps


@pytest.mark.slow
async def test_requests_that_start_together_wait_for_the_first_prompt_together():
    requests = [long("a"), long("b", 44)]
    expected = [given(chunks) for chunks in await undisturbed(requests)]
    async with Replicas(options=APART) as world:
        heard = await asyncio.gather(*map(read, world.router.submit_all(requests)))
        assert [given(chunks) for chunks in heard] == expected
        await all_freed(world)


@pytest.mark.parametrize(
    ("number", "how"),
    [
        (0, "dies"),
        (1, "hangs"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0, "hangs"), (1, "dies"))),
    ],
)
async def test_if_an_engine_is_lost_meanwhile_another_computes_the_prompt(number, how):
    request = long("a", 60)
    (expected,) = await undisturbed([request])
    async with Replicas(3, options=APART) as world:
        answer = world.router.submit(request)
        assert world.engines[1]._awaiting == {"a": ["a"]}
        assert list(world.engines[0]._prefills) == ["a/prompt"]
        lose(world, number, how)
        assert not world.engines[1]._awaiting
        assert given(await asyncio.wait_for(read(answer), 30)) == given(expected)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
async def test_if_an_engine_dies_while_pages_are_written_the_answer_is_the_same(number):
    request = long("a", 60)
    (expected,) = await undisturbed([request])
    async with Replicas(3, options=APART) as world:
        answer = world.router.submit(request)
        await until(lambda: world.engines[1]._taken)
        world.die(number)
        assert given(await asyncio.wait_for(read(answer), 30)) == given(expected)


@pytest.mark.slow
async def test_pages_that_are_gone_are_computed(caplog):
    request = long("a")
    (expected,) = await undisturbed([request])
    async with Replicas(options=APART) as world:
        write = world.sides[1].lines._moves.write
        world.sides[1].lines._moves.write = lambda _, done: write("/proc/1/fd/none", done)
        heard = await read(world.router.submit(request))
        assert given(heard) == given(expected)
        assert heard[0].timing.num_cached == 0
        assert "a prompt is computed again" in caplog.text
        await all_freed(world)


async def test_without_room_the_rest_of_a_prompt_is_computed():
    """Another request holds all but a few pages."""
    request = long("a")
    (expected,) = await undisturbed([request])
    async with Replicas(options=APART, kv_bytes=1 << 14) as world:
        memory = world.sides[1].lines._engine._workers["toy"].scheduler.memory
        occupied = memory.allocate(memory.num_available - 5)
        answer = world.router.submit(request)
        await until(lambda: not world.engines[1]._awaiting)
        world.sides[1].lines.thread.enqueue(lambda: memory.release(occupied))
        assert given(await asyncio.wait_for(read(answer), 30)) == given(expected)


async def test_what_callers_want_meanwhile_is_done_when_it_starts():
    async with Replicas(options=APART) as world:
        world.router.submit(long("aborted"))  # its answer is dropped at once
        gone = world.router.submit(long("gone", seed=2))
        paused = world.router.submit(long("paused", seed=3))
        paused.pause()
        gone.abort()
        assert (await read(gone))[-1].reason == "aborted"
        await until(lambda: not world.engines[1]._awaiting)
        await asyncio.sleep(0.1)
        assert world.running(1) == {"paused"}
        paused.resume()
        assert (await read(paused))[-1].reason == "length"
        await all_freed(world)


def test_one_replica_must_be_left():
    with pytest.raises(InvalidRequest, match="leaves none of 2 replicas"):
        ReplicaOptions(("cpu", "cpu"), RouterOptions(num_prefill=2))
    with pytest.raises(InvalidRequest, match="num_prefill must be at least 0"):
        RouterOptions(num_prefill=-1)
