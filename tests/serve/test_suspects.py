"""A request that kills every engine that runs it ends, and the others survive it."""

from __future__ import annotations

import asyncio

import pytest

from izwi.errors import EngineStopped
from izwi.request.request import Reason
from izwi_api.serve.resumable_request import ResumableRequest
from izwi_api.serve.suspects import Trials, count_death
from tests.engine.toy import toy_request
from tests.serve.test_engine_restart import given
from tests.serve.test_remote_engine import endless, read
from tests.serve.test_replica_router import Replicas, undisturbed


def resumables(*num_deaths: int) -> list[ResumableRequest]:
    return [
        ResumableRequest(toy_request(f"r{n}", 5, n, 9), lambda: None, num_deaths=count)
        for n, count in enumerate(num_deaths)
    ]


@pytest.mark.parametrize(
    ("before", "after", "causes"),
    [
        ([0], [1], []),
        ([0, 0, 0], [1, 1, 1], []),
        ([1, 0, 0], [2, 0, 0], [0]),  # alone on both engines
        ([1, 1, 0], [2, 2, 0], []),
        ([2, 0, 1], [3, 0, 1], [0]),  # it was on trial
        ([], [], []),
    ],
)
def test_a_death_counts_for_those_that_have_seen_most(before, after, causes):
    ran = resumables(*before)
    count_death(ran)
    assert [one.num_deaths for one in ran] == after
    assert [n for n, one in enumerate(ran) if one.is_cause] == causes
    assert all(one.num_seen == 1 for one in ran)


async def test_suspects_run_one_at_a_time_and_are_cleared_by_output():
    started: list[ResumableRequest] = []
    trials, suspects = Trials(started.append), resumables(2, 2, 2)
    for one in suspects:
        trials.hold(one)
    assert started == suspects[:1]
    trials.given(suspects[0])
    trials.given(suspects[0])
    assert (started, suspects[0].num_deaths) == (suspects[:1], 2)
    trials.given(suspects[0])
    assert (started, suspects[0].num_deaths) == (suspects[:2], 0)
    trials.forget(suspects[1])  # it has ended
    assert started == suspects
    assert not any(trials.holds(one.request.request_id) for one in suspects)
    trials.clear()


async def test_a_paused_suspect_has_its_turn_when_it_resumes():
    started: list[ResumableRequest] = []
    trials, (paused, other) = Trials(started.append), resumables(2, 2)
    paused.paused = True
    trials.hold(paused)
    trials.hold(other)
    assert started == [other]
    trials.forget(other)
    assert trials.holds("r0")
    paused.paused = False
    trials.try_next()
    assert started == [other, paused]
    trials.clear()


async def test_a_suspect_without_output_does_not_keep_others_waiting(monkeypatch):
    monkeypatch.setattr("izwi_api.serve.suspects._TRIAL_S", 0.0)
    started: list[ResumableRequest] = []
    trials, suspects = Trials(started.append), resumables(2, 2)
    for one in suspects:
        trials.hold(one)
    while len(started) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert suspects[0].num_deaths == 1
    trials.clear()


@pytest.mark.slow
async def test_innocent_streams_survive_a_request_that_kills_every_engine():
    requests = [endless(f"s{n}", n, 60) for n in range(5)]
    expected = [given(chunks) for chunks in await undisturbed(requests)]
    tried: list[str] = []
    async with Replicas() as world:
        world.router.drain(1)
        streams = [world.router.submit(request) for request in requests]
        firsts = [[await anext(stream)] for stream in streams]
        world.router.accept(1)
        world.die(0)
        assert world.running(1) == {f"s{n}" for n in range(5)}
        world.die(1)  # before it was heard of
        engine, loop = world.engines[0], asyncio.get_running_loop()
        start = engine._trials._start

        def watch(resumable):
            tried.append(resumable.request.request_id)
            start(resumable)
            if tried[-1] == "s2":
                loop.call_soon(world.die, 0)

        engine._trials._start = watch
        await world.restart(0)
        assert isinstance((await asyncio.wait_for(read(streams[2]), 60))[-1].error, EngineStopped)
        assert tried[-1] == "s2"
        await world.restart(0)
        innocent = [0, 1, 3, 4]
        rests = await asyncio.wait_for(asyncio.gather(*(read(streams[n]) for n in innocent)), 60)
        for n, rest in zip(innocent, rests, strict=True):
            assert given(firsts[n] + rest) == expected[n]
        assert tried.count("s2") == 1


async def test_a_request_whose_reader_leaves_while_it_waits_for_its_trial_ends():
    async with Replicas() as world:
        world.router.drain(1)
        streams = [world.router.submit(endless(f"s{n}", n, 450)) for n in range(2)]
        for stream in streams:
            await anext(stream)
        world.router.accept(1)
        world.die(0)
        world.die(1)
        started = []  # and nowhere else, so that the first never gets on
        world.engines[0]._trials._start = started.append
        await world.restart(0)
        assert world.engines[0]._trials.holds("s1")
        streams[1].abort()
        assert (await asyncio.wait_for(read(streams[1]), 60))[-1].reason is Reason.ABORTED
        assert world.running(0) == {"s0"}


async def test_a_request_that_gets_on_between_deaths_survives_three():
    async with Replicas() as world:
        stream = world.router.submit(endless("a", 1, 4000))
        await anext(stream)
        for _ in range(3):
            number = world.where("a")
            resumable = world.engines[number]._resumables["a"]
            world.die(number)
            await world.restart(number)
            while resumable.num_deaths:
                await anext(stream)
        world.die(world.where("a"))
        assert isinstance((await asyncio.wait_for(read(stream), 60))[-1].error, EngineStopped)
