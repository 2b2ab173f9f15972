"""Models are added while others run, and removed after their last request, without effect."""

from __future__ import annotations

import asyncio
import weakref
from pathlib import Path

import pytest
from msgspec.structs import replace

from izwi.backends.memory_plan import DeviceMemory
from izwi.backends.torch.backend import TorchBackend
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi.errors import EngineStopped, InvalidRequest, ModelNotFound
from izwi.request.request import Reason
from tests.engine.toy import ToySpeech, toy_request
from tests.engine.world import World, alone


def test_loading_a_model_does_not_change_other_models_output() -> None:
    request = toy_request("a", 9, seed=3, frames=40)
    expected = alone(request)
    world = World(max_models=3)
    world.submit(request)
    for _ in range(5):
        world.step()
    world.engine.add("new", ToySpeech())
    world.submit(replace(toy_request("b", 7, seed=5, frames=12), model="new"))
    for _ in range(3):
        world.step()
    world.engine.remove("new")
    assert world.engine.leaving == {"new"}, "it left before its request had ended"
    world.run()
    assert world.engine.leaving == frozenset()
    assert set(world.engine.load) == {"toy", "text"}
    log, other = world.logs["a"], world.logs["b"]
    assert (log.entries, log.pcm) == (expected.entries, expected.pcm)
    undisturbed = alone(toy_request("b", 7, seed=5, frames=12))
    assert (other.entries, other.pcm) == (undisturbed.entries, undisturbed.pcm)
    world.check_nothing_is_lost()


def test_a_removed_model_refuses_requests_and_ends_with_its_last() -> None:
    world = World(max_models=3)
    world.submit(toy_request("a", 5, seed=1, frames=30))
    world.step()
    world.engine.remove("toy")
    with pytest.raises(ModelNotFound):
        world.submit(toy_request("late", 5, seed=1, frames=3))
    with pytest.raises(ModelNotFound):
        world.engine.remove("toy")
    with pytest.raises(InvalidRequest, match="still loaded"):
        world.engine.add("toy", ToySpeech())
    world.deliver(world.engine.abort("a"))
    assert world.logs["a"].reason is Reason.ABORTED
    assert set(world.engine.load) == {"text"}


def test_removed_model_frees_its_memory() -> None:
    model = ToySpeech()
    engine = Engine(
        {"toy": model}, TorchBackend(model.ops), EngineConfig(page_size=4, kv_bytes=1 << 20)
    )
    engine.submit(toy_request("a", 5, seed=1, frames=9))
    while engine.has_work:
        engine.step()
    runner = weakref.ref(engine._workers["toy"].runner)
    engine.remove("toy")
    assert runner() is None, "somebody still holds its pages"
    engine.add("toy", model)
    assert engine.load["toy"]["pages"] == engine.load["toy"]["free_pages"] > 0


def test_a_new_request_gets_a_share_or_is_refused() -> None:
    model = ToySpeech()
    config = EngineConfig(page_size=4, kv_bytes=3 << 14, max_models=3)
    engine = Engine({"first": model}, TorchBackend(model.ops), config)
    engine.add("second", model)
    engine.add("third", model)
    assert len({load["pages"] for load in engine.load.values()}) == 1
    pages = engine.load["first"]["pages"] * engine.load["first"]["page_bytes"]
    assert pages <= 1 << 14
    with pytest.raises(InvalidRequest, match="unload one"):
        engine.add("fourth", model)
    engine.remove("second")
    engine.add("fourth", model)


def test_a_model_that_is_added_gets_its_share_of_what_is_free_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = ToySpeech()
    backend = TorchBackend(model.ops)
    monkeypatch.setattr(backend, "memory", lambda: DeviceMemory(3 << 14, 3 << 14, is_shared=True))
    engine = Engine({"first": model}, backend, EngineConfig(page_size=4, max_models=3))
    monkeypatch.setattr(backend, "memory", lambda: DeviceMemory(3 << 13, 3 << 13, is_shared=True))
    engine.add("second", model)  # its weights, and another program, took half of it
    taken = {name: load["pages"] * load["page_bytes"] for name, load in engine.load.items()}
    assert (1 << 13) < taken["first"] <= 1 << 14
    assert (1 << 12) < taken["second"] <= 1 << 13


async def test_models_come_and_go_between_steps() -> None:
    model = ToySpeech()
    config = EngineConfig(page_size=4, kv_bytes=1 << 20, max_models=2)
    engine = AsyncEngine(Engine({"toy": model}, TorchBackend(model.ops), config))
    with pytest.raises(EngineStopped):
        await engine.add("new", model, Path())
    engine.start()
    await engine.add("new", model, Path())
    stream = engine.submit(replace(toy_request("a", 5, seed=1, frames=200), model="new"))
    await anext(stream)
    leaving = asyncio.create_task(engine.remove("new"))
    await asyncio.sleep(0.01)
    assert not leaving.done()
    with pytest.raises(ModelNotFound):
        await engine.remove("nobody")
    stream.abort()
    await leaving
    assert set(engine.load) == {"toy"}
    # one after the other, before the engine looks
    both = [engine.remove("toy"), engine.add("toy", model, Path())]
    await asyncio.gather(*both)
    assert set(engine.load) == {"toy"}
    stream = engine.submit(toy_request("b", 5, seed=1, frames=400))
    await anext(stream)
    leaving = asyncio.create_task(engine.remove("toy"))
    await asyncio.sleep(0)
    await engine.stop()
    with pytest.raises(EngineStopped):
        await leaving
