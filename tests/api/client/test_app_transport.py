"""The transport to an app in this process: streamed, with backpressure, and nothing left behind."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from izwi.errors import EngineStopped, IzwiError
from izwi_api.client.app_transport import AppTransport
from izwi_api.client.connection import AppConnection
from izwi_api.client.socket import SocketClosed, SocketRefused


def start(status=200, headers=()):
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(piece, *, more=True):
    return {"type": "http.response.body", "body": piece, "more_body": more}


def opened(app):
    return httpx.AsyncClient(transport=AppTransport(app), base_url="http://app")


async def test_a_body_is_read_while_it_is_written_and_no_faster():
    written = []

    async def app(scope, receive, send):
        await send(start(201, [(b"x-a", b"b")]))
        for number in range(100):
            await send(body(b"%d," % number))
            written.append(number)
        await send(body(b"", more=False))

    async with opened(app) as http, http.stream("GET", "/a") as response:
        assert (response.status_code, response.headers["x-a"]) == (201, "b")
        pieces = response.aiter_raw()
        assert await anext(pieces) == b"0,"
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(written) <= 3, "the app waits for its reader"
        assert b"".join([piece async for piece in pieces]).endswith(b"98,99,")


async def test_the_app_sees_the_request():
    seen = {}

    async def app(scope, receive, send):
        seen.update(scope)
        content = b""
        while (message := await receive())["type"] == "http.request":
            content += message["body"]
            if not message["more_body"]:
                break
        await send(start())
        await send(body(content[::-1], more=False))

    async with opened(app) as http:
        answer = await http.post("/v1/a%2Fb?q=1", content=b"abc", headers={"X-Key": "k"})
    assert answer.content == b"cba"
    assert (seen["method"], seen["path"]) == ("POST", "/v1/a/b")
    assert (seen["raw_path"], seen["query_string"]) == (b"/v1/a%2Fb", b"q=1")
    assert (b"x-key", b"k") in seen["headers"]


async def test_closing_a_response_disconnects_and_waits_for_the_app():
    ended = []

    async def app(scope, receive, send):
        await receive()
        await send(start())
        writing = asyncio.create_task(write(send))
        while (await receive())["type"] != "http.disconnect":
            pass
        writing.cancel()
        await asyncio.sleep(0.01)
        ended.append("app")

    async def write(send):
        while True:
            await send(body(b"more"))

    async with opened(app) as http:
        async with http.stream("GET", "/") as response:
            await anext(response.aiter_raw())
        assert ended == ["app"]


async def test_cancelling_before_the_answer_disconnects():
    left = asyncio.Event()

    async def app(scope, receive, send):
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    async with opened(app) as http:
        asking = asyncio.create_task(http.get("/"))
        await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        async with asyncio.timeout(10):
            await left.wait()


async def test_what_an_app_raises_is_raised_before_its_answer_and_within():
    async def fails_first(scope, receive, send):
        raise IzwiError("at once")

    async def fails_later(scope, receive, send):
        await send(start())
        await send(body(b"half"))
        raise RuntimeError("wrapped by Starlette") from IzwiError("in the middle")

    async def forgets(scope, receive, send):
        pass

    async with opened(fails_first) as http:
        with pytest.raises(IzwiError, match="at once"):
            await http.get("/")
    async with opened(forgets) as http:
        with pytest.raises(RuntimeError, match="without a response"):
            await http.get("/")
    async with opened(fails_later) as http, http.stream("GET", "/") as response:
        pieces = response.aiter_raw()
        assert await anext(pieces) == b"half"
        with pytest.raises(IzwiError, match="in the middle"):
            await anext(pieces)


async def test_no_request_outlives_the_transport():
    running = asyncio.Event()

    async def app(scope, receive, send):
        try:
            await send(start())
            await asyncio.Event().wait()
        finally:
            running.set()

    transport = AppTransport(app)
    http = httpx.AsyncClient(transport=transport, base_url="http://app")
    response = await http.send(http.build_request("GET", "/"), stream=True)
    await transport.aclose()
    assert running.is_set()
    with pytest.raises(EngineStopped):
        await response.aread()
    await response.aclose()
    await http.aclose()


# -- WebSockets ----------------------------------------------------------------------------------
async def test_a_socket_carries_messages_both_ways_and_waits_for_the_app():
    taken = []

    async def app(scope, receive, send):
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        taken.append((await receive())["text"])
        taken.append((await receive())["text"])
        await send({"type": "websocket.send", "text": "both"})
        await send({"type": "websocket.send", "bytes": b"\x01"})
        await send({"type": "websocket.close", "code": 1000})

    connection = AppConnection(app)
    socket = await connection.open_socket("/v1/x")
    await socket.send("one")
    await asyncio.sleep(0)
    assert taken == ["one"]
    await socket.send("two")
    assert [await socket.receive(), await socket.receive()] == ["both", b"\x01"]
    for act in (socket.receive(), socket.send("late")):
        with pytest.raises(SocketClosed):
            await act
    await connection.http.aclose()


async def test_closing_a_socket_disconnects_the_app():
    seen, ended = [], asyncio.Event()

    async def app(scope, receive, send):
        await receive()
        await send({"type": "websocket.accept"})
        seen.append((await receive())["type"])
        with pytest.raises(OSError):
            await send({"type": "websocket.send", "text": "anyone?"})
        ended.set()

    connection = AppConnection(app)
    (await connection.open_socket("/")).abort()
    async with asyncio.timeout(10):
        await ended.wait()
    assert seen == ["websocket.disconnect"]
    await connection.http.aclose()


async def test_a_handshake_that_is_refused():
    async def answers(scope, receive, send):
        await receive()
        await send({"type": "websocket.http.response.start", "status": 401, "headers": []})
        await send({"type": "websocket.http.response.body", "body": b"no ", "more_body": True})
        await send({"type": "websocket.http.response.body", "body": b"key"})

    async def closes(scope, receive, send):
        await receive()
        await send({"type": "websocket.close", "code": 1008})

    async def fails(scope, receive, send):
        raise ValueError

    for app, status, content in ((answers, 401, b"no key"), (closes, 403, b"")):
        connection = AppConnection(app)
        with pytest.raises(SocketRefused) as caught:
            await connection.open_socket("/")
        assert (caught.value.status, caught.value.body) == (status, content)
        await connection.http.aclose()
    connection = AppConnection(fails)
    with pytest.raises(SocketClosed):
        await connection.open_socket("/")
    await connection.http.aclose()
