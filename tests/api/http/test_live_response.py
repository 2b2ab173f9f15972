"""Work ends when the client disconnects, which is distinguished from a server that stops."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import ClientDisconnect

from izwi_api.http.live_response import unless_left


class Client:
    """Sends a message without meaning, and disconnects on request."""

    def __init__(self):
        self.left = asyncio.Event()
        self.messages = [{"type": "http.request"}]

    async def receive(self):
        if self.messages:
            return self.messages.pop()
        await self.left.wait()
        return {"type": "http.disconnect"}


class Work:
    """Waits, and knows how it ended."""

    def __init__(self):
        self.go, self.ended = asyncio.Event(), None

    async def run(self):
        try:
            await self.go.wait()
            self.ended = "done"
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        return 7


@pytest.fixture
async def running():
    client, work = Client(), Work()
    task = asyncio.create_task(unless_left(client.receive, work.run()))
    await asyncio.sleep(0.01)
    return client, work, task


async def test_finished_work_is_returned_and_the_watcher_ends(running):
    _, work, task = running
    work.go.set()
    assert await task == 7
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_disconnect_ends_the_work(running):
    client, work, task = running
    client.left.set()
    with pytest.raises(ClientDisconnect):
        await task
    assert work.ended == "cancelled"
    assert not task.cancelled()
    assert not task.cancelling()


async def test_a_stopping_server_is_not_a_disconnect(running):
    client, work, task = running
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert work.ended == "cancelled"
    assert not client.left.is_set()


async def test_both_at_once_is_the_server(running):
    client, _, task = running
    client.left.set()
    await asyncio.sleep(0)  # the watch runs next
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_is_passed_on_and_the_watch_ends():
    async def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await unless_left(Client().receive, fail())
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_time_limit_within_the_work_still_holds():
    async def slow():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(10)
        return "late"

    assert await unless_left(Client().receive, slow()) == "late"
