"""A stepping thread that dies fails every request and readiness; nothing waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from izwi.engine.async_engine import AsyncEngine
from izwi.engine.step_thread import SteppingThread
from izwi.engine_client.output_stream import Stream, aborted
from izwi.errors import EngineStopped, InvalidRequest
from izwi.request.request import Chunk, Reason
from tests.engine.toy import ToySpeech, toy_request
from tests.serve.over_sockets import toy_engine


def bug(*_: object, **__: object) -> Any:
    raise RuntimeError("a bug")


def in_recovery(engine: AsyncEngine) -> None:
    engine._engine.step = engine._engine.abort = bug  # type: ignore[method-assign]


def in_publishing(engine: AsyncEngine) -> None:
    engine.deliver = bug  # type: ignore[method-assign]


def in_settling(engine: AsyncEngine) -> None:
    engine._thread._settle_changes = bug  # type: ignore[method-assign]


def in_figures(engine: AsyncEngine) -> None:
    engine.stepped = bug  # type: ignore[method-assign]


async def read(stream: Stream) -> list[Chunk]:
    return [chunk async for chunk in stream]


@pytest.mark.parametrize("breaks", [in_recovery, in_publishing, in_settling, in_figures])
async def test_streams_end_and_nothing_more_is_taken(
    breaks: Callable[[AsyncEngine], None],
) -> None:
    engine = AsyncEngine(toy_engine(max_models=2))
    engine.start()
    streams = [engine.submit(toy_request(str(i), 4, seed=i, frames=300)) for i in range(3)]
    leaving = asyncio.ensure_future(engine.remove("toy"))
    for stream in streams:
        await anext(stream)
    engine._thread.enqueue(lambda: breaks(engine))
    for stream in streams:
        last = (await asyncio.wait_for(read(stream), 60))[-1]
        assert last.reason is Reason.ERROR
        assert isinstance(last.error, EngineStopped | RuntimeError)
    with pytest.raises(EngineStopped):
        await asyncio.wait_for(leaving, 60)
    await asyncio.to_thread(engine._thread._thread.join, 10)
    assert not engine.alive
    with pytest.raises(EngineStopped):
        engine.submit(toy_request("late", 4, seed=1, frames=3))
    with pytest.raises(EngineStopped):
        await engine.add("more", ToySpeech(), Path())
    await asyncio.wait_for(engine.stop(), 60)


async def test_what_was_asked_just_before_its_death_ends_too() -> None:
    engine = AsyncEngine(toy_engine())
    stepping, asked = threading.Event(), threading.Event()

    def die() -> None:
        stepping.set()
        asked.wait(60)
        raise RuntimeError("a bug")

    engine._thread._step_until_notified = die  # type: ignore[method-assign]
    engine.start()
    await asyncio.to_thread(stepping.wait, 10)
    stream = engine.submit(toy_request("a", 4, seed=1, frames=3))
    removed = asyncio.ensure_future(engine.remove("toy"))
    await asyncio.sleep(0)
    asked.set()
    (last,) = await asyncio.wait_for(read(stream), 60)
    assert isinstance(last.error, EngineStopped)
    with pytest.raises(EngineStopped):
        await asyncio.wait_for(removed, 60)


async def test_an_observer_that_fails_costs_the_recording_alone() -> None:
    class Full:
        reported = 0

        def submitted(self, request: object) -> None:
            self.reported += 1

        def chunk(self, chunk: object) -> None:
            self.reported += 1
            raise OSError(28, "No space left on device")

    observer = Full()
    engine = AsyncEngine(toy_engine())
    engine.observe(observer)
    engine.start()
    for name in ("a", "b"):
        chunks = await asyncio.wait_for(read(engine.submit(toy_request(name, 4, 1, 9))), 60)
        assert chunks[-1].reason in (Reason.STOP, Reason.LENGTH)
    assert observer.reported == 2
    assert engine.alive
    await engine.stop()


@pytest.mark.parametrize("leaves", [False, True])
async def test_an_id_in_use_is_rejected_and_its_first_request_continues(leaves: bool) -> None:
    engine = AsyncEngine(toy_engine())
    engine.start()
    alone = await read(engine.submit(toy_request("x", 4, seed=4, frames=60)))
    first = engine.submit(toy_request("a", 4, seed=4, frames=60))
    await anext(first)
    second = engine.submit(toy_request("a", 9, seed=5, frames=60))
    if leaves:
        second.abort()
    for refused in (second, *engine.submit_all([toy_request(n, 3, 1, 5) for n in "bab"])):
        (last,) = await asyncio.wait_for(read(refused), 60)
        assert isinstance(last.error, InvalidRequest)
    rest = await asyncio.wait_for(read(first), 60)
    assert rest[-1].reason is alone[-1].reason
    frames = 1 + sum(len(chunk.entries) for chunk in rest)
    assert frames >= sum(len(chunk.entries) for chunk in alone)
    again = await read(engine.submit(toy_request("a", 4, seed=4, frames=60)))
    assert [c.entries.tolist() for c in again] == [c.entries.tolist() for c in alone]
    await engine.stop()


def test_the_thread_itself_refuses_the_second_alone() -> None:
    heard: list[Chunk] = []

    class Listener:
        def deliver(self, chunks: list[Chunk]) -> None:
            heard.extend(chunks)

        def stepped(self) -> None: ...

        def ended(self, broken: BaseException | None) -> None: ...

    engine = toy_engine()
    thread = SteppingThread(engine, Listener())
    thread.take_in([toy_request("a", 4, 1, 9)])
    thread.take_in([toy_request("b", 4, 1, 9), toy_request("a", 4, 1, 9)])
    assert [(chunk.request_id, chunk.reason) for chunk in heard] == [("b", Reason.ERROR)]
    assert set(engine._live) == {"a"}


async def test_a_stream_that_has_its_last_chunk_asks_its_source_for_nothing() -> None:
    """Its id may be another request's by then."""
    asked: list[object] = []

    class Source:
        max_backlog = 4

        def abort(self, request_id: str) -> None:
            asked.append("abort")

        def set_backpressure(self, request_id: str, backpressured: bool) -> None:
            asked.append(backpressured)

    stream = Stream("a", Source(), asyncio.get_running_loop())
    for _ in range(4):
        stream.put(replace(aborted("a"), reason=None))
    stream.put(aborted("a"))
    stream.abort()
    assert len(await read(stream)) == 5
    stream.abort()
    assert asked == [True]
    stream = Stream("a", Source(), asyncio.get_running_loop())
    for number in range(4):
        stream.put(replace(aborted("a"), reason=None if number < 3 else Reason.STOP))
    assert asked == [True]
