"""Every request to upgrade is answered, whatever its head, and leaves no error in the log."""

from __future__ import annotations

import hashlib
import json
import logging
import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from izwi_api.http.server import MAX_HANDSHAKE_LINE_BYTES, server_config
from izwi_api.serve.app import create_app
from izwi_api.settings import Access, Settings
from tests.api.conftest import FakeEngine, FakeRegistry, FakeSpeech, running

START = b"GET /v1/audio/speech/stream HTTP/1.1"
UPGRADE = (
    b"host: localhost",
    b"connection: Upgrade",
    b"upgrade: websocket",
    b"sec-websocket-version: 13",
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
)
HEAD_S = 1.0


class Errors(logging.Handler):
    def __init__(self):
        super().__init__(logging.ERROR)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """A server that asks for a key."""
    access = Access(api_key_digest=hashlib.sha256(b"a-key-that-nobody-guesses").digest())
    home = Settings(home=tmp_path_factory.mktemp("home"), access=access)
    app = create_app(FakeEngine(), FakeRegistry(tts=FakeSpeech()), home)
    with running(server_config(app, "127.0.0.1", 0, HEAD_S)) as number:
        yield number


@pytest.fixture(scope="module")
def errors(port):
    """Error lines of the server's log."""
    assert port
    handler = Errors()
    names = ("uvicorn.error", "izwi_api", "izwi", "asyncio", "websockets")
    for name in names:
        logging.getLogger(name).addHandler(handler)
    yield handler.lines
    for name in names:
        logging.getLogger(name).removeHandler(handler)


def head_of(*lines, start=START, rest=b""):
    return b"\r\n".join((start, *lines, b"", b"")) + rest


def answer(port, data):
    """Send bytes; return all that the server sends before it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(data)
        parts = []
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def status_of(content):
    """Return the status of a complete response with an error object."""
    head, _, body = content.partition(b"\r\n\r\n")
    assert json.loads(body)["error"]["message"]
    return int(head.split()[1])


@pytest.mark.parametrize(("status", "data"), [
    (401, head_of(*UPGRADE)),
    (401, head_of(*UPGRADE, b"content-length: 0")),
    (400, head_of(*UPGRADE, b"content-length: 5", rest=b"hello")),
    (400, head_of(*UPGRADE, b"content-length: 5")),
    (400, head_of(*UPGRADE, b"transfer-encoding: chunked", rest=b"5\r\nhello\r\n0\r\n\r\n")),
    (400, head_of(*UPGRADE, b"transfer-encoding: chunked")),
    (400, head_of(*UPGRADE, b"transfer-encoding: chunked", b"expect: 100-continue")),
    (405, head_of(*UPGRADE, start=b"POST /v1/audio/speech/stream HTTP/1.1")),
    (431, head_of(*UPGRADE, b"x: " + b"y" * 9_000)),
    (431, head_of(*UPGRADE, b"x" * 9_000 + b": y")),
    (431, head_of(*UPGRADE, *[b"x%d: y" % n for n in range(100)])),
    (414, head_of(*UPGRADE, start=b"GET /" + b"x" * 8_180 + b" HTTP/1.1")),
    (400, head_of(*UPGRADE[:3], b"sec-websocket-version: 12", UPGRADE[4])),
    (400, head_of(*UPGRADE[:4], b"sec-websocket-key: short")),
    (408, head_of(*UPGRADE)[:-2]),
])  # fmt: skip
def test_invalid_websocket_handshake_is_answered_at_once(port, errors, status, data):
    assert status_of(answer(port, data)) == status
    assert not errors


def test_lines_of_every_length_are_answered(port, errors):
    """Also those that only one of the two parsers reads."""
    statuses = set()
    for size in range(MAX_HANDSHAKE_LINE_BYTES - 40, (8 << 10) + 4):
        value = answer(port, head_of(*UPGRADE, b"x: " + b"y" * size))
        statuses.add(status_of(value))
        target = b"GET /v1/audio/speech/stream?" + b"y" * (size - 40) + b" HTTP/1.1"
        statuses.add(status_of(answer(port, head_of(*UPGRADE, start=target))))
    assert statuses == {401, 414, 431}
    assert not errors


FIELDS = st.sampled_from([
    b"content-length: 0", b"content-length: 3", b"content-length: -1", b"content-length: x",
    b"transfer-encoding: chunked", b"transfer-encoding: gzip", b"expect: 100-continue",
    b"sec-websocket-version: 12", b"sec-websocket-key: short", b"sec-websocket-key: " + b"=" * 24,
    b"sec-websocket-protocol: realtime, a", b"sec-websocket-protocol: ,", b"upgrade: h2c",
    b"sec-websocket-extensions: permessage-deflate; x=", b"origin: null", b"connection: close",
    b"x: \xff\xfe", b"x: \x01", b"x: " + b"y" * 8_185, b": y", b"x y: z", b"\xc3\xa9: x",
    b"authorization: Bearer \xff", b"host: a",
])  # fmt: skip
STARTS = st.sampled_from([
    START, b"GET / HTTP/1.1", b"GET /v1/realtime?model=%ff HTTP/1.1", b"GET * HTTP/1.1",
    b"GET http://localhost/v1/realtime HTTP/1.1", b"GET /%00 HTTP/1.1", b"GET /v1 HTTP/1.0",
    b"OPTIONS /v1/realtime HTTP/1.1", b"CONNECT a:1 HTTP/1.1",
])  # fmt: skip


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    start=STARTS,
    kept=st.sets(st.sampled_from(UPGRADE), min_size=3),
    more=st.lists(FIELDS, max_size=4),
    rest=st.sampled_from([b"", b"abc", b"3\r\nabc\r\n0\r\n\r\n", b"\x81\x85"]),
)
def test_every_head_is_answered(port, errors, start, kept, more, rest):
    lines = [line for line in UPGRADE if line in kept]
    content = answer(port, head_of(*lines, *more, b"connection: close", start=start, rest=rest))
    is_page = b" / " in start and content.startswith(b"HTTP/1.1 200 ")
    assert is_page or status_of(content) in {*range(400, 500), 501}
    assert not errors


def test_a_client_that_leaves_during_the_handshake_is_no_error(port, errors):
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head_of(*UPGRADE))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert status_of(answer(port, head_of(*UPGRADE))) == 401
    assert not errors
