"""A request that kills every engine that runs it ends, and the others survive it."""

from __future__ import annotations

import asyncio
from math import ceil, log2

import pytest
from hypothesis import example
from hypothesis import given as given_by_hypothesis
from hypothesis import strategies as st

from izwi.errors import EngineStopped
from izwi.request.request import Reason
from izwi_api.serve.resumable_request import ResumableRequest
from izwi_api.serve.suspects import Trials, count_death, is_suspect
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
    trials.hold(suspects)
    await asyncio.sleep(0)
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
    trials.hold([paused, other])
    await asyncio.sleep(0)
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
    trials.hold(suspects)
    await asyncio.sleep(0)
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


async def test_a_request_that_gets_on_as_far_before_each_death_survives_three():
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
        resumable.num_since = resumable.reach
        world.die(world.where("a"))
        assert isinstance((await asyncio.wait_for(read(stream), 60))[-1].error, EngineStopped)


class Lives:
    """An engine that is started again whenever a request kills it; every request is endless.

    Args:
        num: Requests; all but one are innocent.
        killer: Index of the one that kills an engine after some chunks on it.
        num_chunks: These chunks, for each of its lives; the last ones repeat.
        ages: Chunks that requests were given before the killer's first.
    """

    def __init__(self, num, killer, num_chunks, ages):
        self.all = resumables(*[0] * num)
        self.killer, self.num_chunks = self.all[killer], num_chunks
        self.running, self.trials = [], Trials(self.running_append)
        self.num_deaths = self.most_held = 0
        for one, age in zip(self.all, ages, strict=True):
            one.num_since = 0 if one is self.killer else age

    def running_append(self, resumable):
        self.running.append(resumable)

    async def start(self):
        alive = [one for one in self.all if not one.is_cause]
        self.running.extend(one for one in alive if not is_suspect(one))
        self.trials.hold([one for one in alive if is_suspect(one)])
        await asyncio.sleep(0)

    def live(self):
        """Give chunks until the engine is killed; return whether it was."""
        after = self.num_chunks[min(self.num_deaths, len(self.num_chunks) - 1)]
        for _ in range(100_000):
            if self.killer in self.running and self.killer.num_since >= after:
                return True
            self.most_held = max(self.most_held, len(self.trials._held))
            for one in list(self.running):
                self.trials.given(one)
            if not self.trials._held and self.killer not in self.running:
                return False
        raise AssertionError("the killer never runs")

    async def run(self):
        await self.start()
        while self.killer in [one for one in self.all if not one.is_cause]:
            assert self.live()
            self.num_deaths += 1
            count_death(self.running, self.trials.spared, 0.0)
            self.trials.clear()
            self.running.clear()
            await self.start()
        self.trials.clear()


NUMS = st.integers(1, 12).flatmap(
    lambda num: st.tuples(
        st.just(num),
        st.integers(0, num - 1),
        st.lists(st.integers(0, 99), min_size=num, max_size=num),
    )
)


def lives(world, num_chunks):
    num, killer, ages = world
    return Lives(num, killer, num_chunks, ages)


@given_by_hypothesis(NUMS, st.integers(0, 60))
@example((10, 0, [0, 0, 0, 8, 8, 8, 8, 8, 8, 8]), 3)
def test_what_kills_engines_after_any_number_of_chunks_ends_and_the_innocent_do_not(
    world, num_chunks
):
    made = lives(world, [num_chunks])
    asyncio.run(made.run())
    assert [one for one in made.all if one.is_cause] == [made.killer]
    assert made.num_deaths <= 5 + ceil(log2(len(made.all)))


@given_by_hypothesis(NUMS, st.integers(0, 60), st.integers(10, 40), st.data())
def test_it_may_kill_them_a_little_earlier_or_later_and_late_at_first(
    world, first, num_chunks, data
):
    fewest, most = num_chunks, num_chunks + num_chunks // 4
    later = data.draw(st.lists(st.integers(fewest, most), min_size=12, max_size=12))
    made = lives(world, [first, *later])
    asyncio.run(made.run())
    assert [one for one in made.all if one.is_cause] == [made.killer]
    assert made.num_deaths <= 6 + ceil(log2(len(made.all)))


def test_half_of_those_that_got_as_far_are_tried_together_and_the_rest_is_spared():
    made = lives((8, 5, [50] * 8), [50])
    asyncio.run(made.run())
    assert made.num_deaths <= 3 + 3 + 1
    assert made.most_held == 4


async def test_a_long_stream_is_no_suspect_because_it_saw_deaths_at_other_times():
    (stream,) = resumables(0)
    trials = Trials(lambda _: None)
    for num_chunks in (1000, 200, 20, 700, 40):
        for _ in range(num_chunks):
            trials.given(stream)
        count_death([stream])
        assert not is_suspect(stream)


async def test_a_trial_of_those_that_got_far_lasts_as_long_as_the_engine_that_died(monkeypatch):
    waits_s = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(
        loop, "call_later", lambda seconds, *_: waits_s.append(seconds) or asyncio.Handle
    )
    far, near = resumables(0, 2)
    far.num_far, far.lived_s, near.lived_s = 3, 40.0, 40.0
    for one in (far, near):
        trials = Trials(lambda _: None)
        trials.hold([one])
        trials.try_next()
    assert waits_s == [80.0, 5.0]
    monkeypatch.undo()
