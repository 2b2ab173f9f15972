"""Streams: in order, complete, abortable, never hanging; here, and over sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from izwi.engine.async_engine import AsyncEngine
from izwi.engine.model_worker import Results
from izwi.errors import EngineStopped, Overloaded
from izwi.request.request import Chunk, Reason, Request
from tests.engine.toy import toy_request
from tests.serve.over_sockets import OverSockets, toy_engine, until

AnyEngine = AsyncEngine | OverSockets
Open = Callable[..., Awaitable[AnyEngine]]


def async_engine(**settings: int) -> AsyncEngine:
    return AsyncEngine(toy_engine(**settings))


@pytest.fixture(params=[AsyncEngine, OverSockets])
async def open_engine(request: pytest.FixtureRequest) -> AsyncIterator[Open]:
    """Makes engines that run, in this process or over sockets."""
    opened: list[AnyEngine] = []

    async def make(**settings: int) -> AnyEngine:
        engine = request.param(toy_engine(**settings))
        opened.append(engine)
        if isinstance(engine, OverSockets):
            await engine.open()
        else:
            engine.start()
        return engine

    yield make
    for engine in opened:
        if engine.alive:
            await engine.stop()


async def read(stream) -> list[Chunk]:
    return [chunk async for chunk in stream]


async def test_streams_are_whole_and_in_order(open_engine: Open) -> None:
    engine = await open_engine()
    streams = [engine.submit(toy_request(str(i), 4 + i, seed=i, frames=20)) for i in range(5)]
    logs = await asyncio.gather(*(read(stream) for stream in streams))
    for i, chunks in enumerate(logs):
        assert {chunk.request_id for chunk in chunks} == {str(i)}
        assert [chunk.reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1].reason in (Reason.STOP, Reason.LENGTH)
        frames = sum(len(chunk.entries) for chunk in chunks)
        assert sum(len(chunk.pcm) for chunk in chunks if chunk.pcm is not None) == 4 * frames
    await engine.stop()
    assert not engine.alive


async def test_a_reader_that_leaves_frees_its_place_within_two_steps(open_engine: Open) -> None:
    engine = await open_engine()
    stream = engine.submit(toy_request("a", 5, seed=1, frames=400))
    async for _ in stream:
        break
    stream.abort()
    rest = await read(stream)
    assert rest[-1].reason is Reason.ABORTED
    if isinstance(engine, OverSockets):  # figures follow what they count
        await until(lambda: not engine.load["toy"]["running"])
    assert engine.load["toy"]["running"] == 0
    assert engine.load["toy"]["available_pages"] == engine.load["toy"]["pages"]
    stream.abort()
    await engine.stop()


async def nothing_runs(engine: AnyEngine) -> None:
    def is_idle() -> bool:
        load = engine.load["toy"]  # of one moment
        used = load["pages"] - load["available_pages"]
        return not load["running"] + load["waiting"] + used

    await until(is_idle)  # pages are given back in the step after


def endless(name: str) -> Request:
    return toy_request(name, 5, seed=1, frames=4000)


async def test_left_context_aborts_its_request(open_engine: Open) -> None:
    engine = await open_engine()
    async with engine.submit(endless("a")) as answer:
        await anext(answer)
    assert (await read(answer))[-1].reason is Reason.ABORTED
    await nothing_runs(engine)


async def test_error_before_the_first_chunk_aborts_the_request(open_engine: Open) -> None:
    engine = await open_engine()
    with pytest.raises(ValueError, match="no"):
        async with engine.submit_all([endless("a"), endless("b")]):
            raise ValueError("no")
    await nothing_runs(engine)


async def test_cancelled_reader_aborts_its_request(open_engine: Open) -> None:
    engine = await open_engine()
    begun = asyncio.Event()

    async def reads() -> None:
        async with engine.submit(endless("a")) as answer:
            await anext(answer)
            begun.set()
            await asyncio.Event().wait()

    reading = asyncio.create_task(reads())
    await begun.wait()
    reading.cancel()
    await asyncio.wait({reading})
    assert reading.cancelled()
    await nothing_runs(engine)


async def test_generator_that_never_starts_has_submitted_nothing(open_engine: Open) -> None:
    engine = await open_engine()

    async def chunks() -> AsyncIterator[Chunk]:
        async with engine.submit(endless("a")) as answer:
            async for chunk in answer:
                yield chunk

    never, left = chunks(), chunks()
    await anext(left)
    await left.aclose()
    await never.aclose()
    await nothing_runs(engine)


async def test_answer_that_has_ended_sends_no_commands(open_engine: Open) -> None:
    """Its id may be in use again."""
    engine = await open_engine()
    async with engine.submit(toy_request("a", 5, seed=1, frames=3)) as ended:
        await read(ended)
        async with engine.submit(toy_request("a", 5, seed=1, frames=9)) as second:
            ended.pause()
            ended.write([1], True)
            ended.abort()
            chunks = await asyncio.wait_for(read(second), 60)
    assert chunks[-1].reason is not Reason.ABORTED
    assert sum(len(chunk.entries) for chunk in chunks) == 9


async def test_a_stalled_reader_causes_backpressure_and_loses_nothing(
    open_engine: Open,
) -> None:
    engine = await open_engine(max_backlog=6)
    stream = engine.submit(toy_request("a", 5, seed=4, frames=60))
    other = engine.submit(toy_request("b", 5, seed=4, frames=60))
    whole = [entry for chunk in await read(other) for entry in chunk.entries.tolist()]
    await asyncio.sleep(0.2)
    assert stream._queue.qsize() <= 8, "the stalled stream went on emitting"
    chunks = await read(stream)
    assert [entry for chunk in chunks for entry in chunk.entries.tolist()] == whole
    await engine.stop()


async def test_memory_is_given_back_once_after_each_time_of_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trims: list[int] = []
    monkeypatch.setattr("izwi.host.allocator.IDLE_S", 0.05)
    monkeypatch.setattr("izwi.host.allocator.trim", lambda: trims.append(1))
    engine = async_engine()
    engine.start()
    for times in (1, 2):
        await read(engine.submit(toy_request("a", 5, seed=1, frames=9)))
        del trims[times - 1 :]  # what came before the work was asked for
        while len(trims) < times:  # noqa: ASYNC110 (what is waited for sets no event)
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # and no more come
        assert len(trims) == times
    await engine.stop()


async def test_refusals_and_a_stopped_engine_raise() -> None:
    engine = async_engine(max_waiting=1, max_running=1)
    with pytest.raises(EngineStopped):
        engine.submit(toy_request("early", 3, seed=1, frames=3))
    engine.start()
    streams = [engine.submit(toy_request(str(i), 4, seed=1, frames=200)) for i in range(8)]
    engine.pause("0")  # it must not be complete before the engine stops
    refused = await asyncio.wait_for(read(streams[-1]), 60)
    await engine.stop()
    logs = await asyncio.wait_for(asyncio.gather(*(read(s) for s in streams[:-1])), 60)
    logs.append(refused)
    errors = [chunks[-1].error for chunks in logs if chunks[-1].reason is Reason.ERROR]
    assert any(isinstance(error, Overloaded) for error in errors)
    assert any(isinstance(error, EngineStopped) for error in errors)
    with pytest.raises(EngineStopped):
        engine.submit(toy_request("late", 3, seed=1, frames=3))


async def test_a_failing_step_fails_its_requests_and_the_loop_continues(open_engine: Open) -> None:
    engine = await open_engine()
    worker = engine._engine._workers["toy"]
    results = worker.results
    broken = True

    def once() -> Iterator[Results]:
        nonlocal broken
        if broken:
            broken = False
            raise RuntimeError("a bug")
        return results()

    worker.results = once  # type: ignore[method-assign]
    chunks = await asyncio.wait_for(read(engine.submit(toy_request("a", 4, 1, 400))), 60)
    assert chunks[-1].reason is Reason.ERROR
    assert engine._engine.load["toy"]["running"] == 0, "the failed request runs on for nobody"
    chunks = await asyncio.wait_for(read(engine.submit(toy_request("b", 4, 1, 5))), 60)
    assert chunks[-1].reason in (Reason.STOP, Reason.LENGTH)
    await engine.stop()


async def test_requests_submitted_together_start_together_or_not_at_all(open_engine: Open) -> None:
    engine = await open_engine(max_waiting=3)
    pieces = [toy_request(str(i), 4, seed=1, frames=5) for i in range(5)]
    logs = await asyncio.gather(*(read(stream) for stream in engine.submit_all(pieces)))
    assert all(isinstance(chunks[-1].error, Overloaded) for chunks in logs)
    assert not engine._engine.has_work
    logs = await asyncio.gather(*(read(stream) for stream in engine.submit_all(pieces[:3])))
    assert all(chunks[-1].reason in (Reason.STOP, Reason.LENGTH) for chunks in logs)
    await engine.stop()


async def test_a_failing_command_fails_its_request_and_the_loop_continues() -> None:
    engine = async_engine()
    engine.start()
    stream = engine.submit(toy_request("a", 4, 1, 400))

    def broken() -> None:
        raise RuntimeError("a bug")

    engine._thread.enqueue(broken)
    assert (await asyncio.wait_for(read(stream), 60))[-1].reason is Reason.ERROR
    again = await asyncio.wait_for(read(engine.submit(toy_request("b", 4, 1, 5))), 60)
    assert again[-1].reason in (Reason.STOP, Reason.LENGTH)
    await engine.stop()


def test_a_reader_whose_loop_is_gone_does_not_stop_the_engine() -> None:
    engine = async_engine()
    engine.start()

    async def leave() -> None:
        engine.submit(toy_request("a", 4, 1, 400))

    async def stay() -> list[Chunk]:
        return await read(engine.submit(toy_request("b", 4, 1, 5)))

    asyncio.run(leave())
    assert asyncio.run(stay())[-1].reason in (Reason.STOP, Reason.LENGTH)
    assert engine.alive
    asyncio.run(engine.stop())
    assert not engine._engine.has_work
