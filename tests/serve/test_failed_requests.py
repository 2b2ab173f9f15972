"""A request that an engine failed to run goes to another one, if nothing of its answer was sent."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from izwi.backends.torch.backend import TorchBackend
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.errors import EngineFault
from izwi.request.request import Reason
from izwi.router.breaker import MOST_FAILURES, CircuitEvent
from tests.engine.toy import ToySpeech, ToyText, toy_request
from tests.serve.over_sockets import EngineSide
from tests.serve.test_remote_engine import endless, entries, read
from tests.serve.test_replica_router import Replicas


class Fallible(Replicas):
    """Engines with a model that speaks and one that writes, either of which a test can break."""

    def _side(self):
        models = {"toy": ToySpeech(), "text": ToyText()}
        config = EngineConfig(page_size=4, **self.settings)
        engine = Engine(models, TorchBackend(models["toy"].ops), config)  # type: ignore[arg-type]
        side = EngineSide(engine, self.codec, publishes=True)
        side.models = models  # type: ignore[attr-defined]
        return side

    def poison(self, number, *names):
        for model in self.sides[number].models.values():
            model.poison.update(names)


async def answer(world, request):
    return await asyncio.wait_for(read(world.router.submit(request)), 60)


TASKS = {
    "speech": endless("a", 1, 20),
    "cloned speech": replace(toy_request("a", 5, 1, 20, audio=1), stop_ids=()),
    "text": replace(toy_request("a", 5, 1, 20, model="text"), stop_ids=()),
    "transcription": replace(toy_request("a", 5, 1, 20, audio=2, model="text"), stop_ids=()),
    "alignment": toy_request("a", 6, 1, 3, model="text", output_positions=(1, 3, 5)),
}


@pytest.mark.parametrize("task", TASKS)
async def test_a_request_that_fails_before_its_first_output_is_answered_by_another_engine(task):
    async with Fallible() as world:
        expected = await answer(world, TASKS[task])
        world.router._placement._number = 0  # the first engine is next again
        world.poison(0, "a")
        chunks = await answer(world, TASKS[task])
        assert world.router._loads[0].circuits, "it was not tried there"
        assert chunks[-1].error is None
        assert entries(chunks) == entries(expected)
        assert [load.num_in_flight for load in world.router._loads] == [0, 0]


async def test_an_answer_that_was_begun_is_not_repeated():
    async with Fallible() as world:
        stream = world.router.submit(endless("a", 1, 400))
        first = await anext(stream)
        world.poison(world.where("a"), "a")
        chunks = [first, *await asyncio.wait_for(read(stream), 60)]
        assert isinstance(chunks[-1].error, EngineFault)
        assert len(entries(chunks)) < 400


async def test_a_request_that_fails_on_two_engines_ends():
    async with Fallible(3) as world:
        for number in range(3):
            world.poison(number, "a")
        chunks = await answer(world, endless("a", 1, 20))
        assert isinstance(chunks[-1].error, EngineFault)
        assert sum(bool(load.circuits) for load in world.router._loads) == 2


async def test_text_that_was_written_before_goes_along():
    request = toy_request("a", 4, seed=1, frames=30, open_input=True)
    heard = []
    for is_poisoned in (False, True):
        async with Fallible() as world:
            if is_poisoned:
                world.poison(0, "a")
            stream = world.router.submit(request)
            stream.write([3, 1, 4], False)
            stream.write([1, 5], True)
            heard.append(entries(await asyncio.wait_for(read(stream), 60)))
    assert heard[0] == heard[1]
    assert heard[0]


async def test_a_model_that_keeps_failing_gets_no_requests_there():
    async with Fallible() as world:
        world.poison(0, *(f"r{n}" for n in range(40)))
        shared = []
        world.router.share_circuits(lambda *change: shared.append(change))
        for n in range(2 * MOST_FAILURES):
            assert (await answer(world, endless(f"r{n}", n, 9)))[-1].reason is Reason.LENGTH
        broken, whole = world.router.replicas
        assert (dict(broken.circuits), dict(whole.circuits)) == ({"toy": "open"}, {})
        assert shared == [(0, "toy", CircuitEvent.FAILED)] * MOST_FAILURES
        asked_before = world.sides[0].lines._engine._arrivals
        for n in range(20, 26):
            assert (await answer(world, endless(f"r{n}", n, 9)))[-1].reason is Reason.LENGTH
        assert world.sides[0].lines._engine._arrivals == asked_before
        text = toy_request("t", 5, 1, 9, model="text")  # other models are not concerned
        for n in range(2):
            assert (await answer(world, replace(text, request_id=f"t{n}")))[-1].error is None
        assert world.sides[0].lines._engine._arrivals > asked_before
        world.die(0)
        await world.restart(0)
        assert not world.router.replicas[0].circuits
        for change in shared:  # another API server has seen the same
            world.router.change_circuit(*change)
        assert world.router.replicas[0].circuits == {"toy": "open"}


async def test_readers_that_leave_do_not_open_a_circuit():
    async with Fallible() as world:
        for n in range(3 * MOST_FAILURES):
            stream = world.router.submit(endless(f"a{n}", n, 400))
            await anext(stream)
            stream.abort()
            await asyncio.wait_for(read(stream), 60)
        assert not any(load.circuits for load in world.router._loads)
