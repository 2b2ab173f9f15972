"""Frames that no library sends: the responses of this server's WebSocket, byte by byte.

The cases of the Autobahn suite that matter most; all of them are in tests/clients/test_autobahn.py.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from contextlib import closing

import pytest
from uvicorn.server import ServerState

from izwi_api.http import server as server_module
from izwi_api.http.server import MAX_WEBSOCKET_BYTES, WebSocketProtocol, server_config
from tests.serve.echoing import echoing

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FIN = 0x80
NORMAL, PROTOCOL, NOT_TEXT, TOO_BIG = 1000, 1002, 1007, 1009


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    with echoing(tmp_path_factory.mktemp("home")) as at:
        yield at


def frame(opcode, payload=b"", *, first=FIN, is_masked=True):
    """A frame of a client; `first` has FIN and the reserved bits."""
    head, size = bytes([first | opcode]), len(payload)
    mask_bit = 0x80 if is_masked else 0
    if size < 126:
        head += bytes([mask_bit | size])
    elif size < 1 << 16:
        head += struct.pack("!BH", mask_bit | 126, size)
    else:
        head += struct.pack("!BQ", mask_bit | 127, size)
    if not is_masked:
        return head + payload
    mask = os.urandom(4)
    return head + mask + bytes(byte ^ mask[n % 4] for n, byte in enumerate(payload))


def part(opcode, payload):
    return frame(opcode, payload, first=0)


def leave(code=NORMAL, reason=b""):
    return frame(CLOSE, struct.pack("!H", code) + reason)


class Connection:
    """A socket after its handshake."""

    def __init__(self, port, path="/"):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        key = "dGhlIHNhbXBsZSBub25jZQ=="  # the example of RFC 6455
        self._socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self._come = b""
        while b"\r\n\r\n" not in self._come:
            self._come += self._socket.recv(1 << 16)
        head, _, self._come = self._come.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head

    def send(self, *frames):
        self._socket.sendall(b"".join(frames))

    def frame(self):
        """The next frame: (opcode, payload), or None at the end of the connection."""
        if (head := self._take(2)) is None:
            return None
        assert head[0] & 0x70 == 0
        assert head[0] & FIN
        size = head[1]  # a server masks nothing
        if size >= 126:
            size = int.from_bytes(self._take(2 if size == 126 else 8), "big")
        return head[0] & 0x0F, self._take(size)

    def frames(self):
        """All frames until the server closes the connection."""
        found = []
        while (one := self.frame()) is not None:
            found.append(one)
        return found

    def close(self):
        self._socket.close()

    def _take(self, size):
        while len(self._come) < size:
            try:
                more = self._socket.recv(1 << 16)
            except ConnectionError:  # it hung up with something of ours unread
                more = b""
            if not more:
                return None
            self._come += more
        taken, self._come = self._come[:size], self._come[size:]
        return taken


def exchange(port, *frames):
    """Send frames and read to the end: what was answered, and the code of the close frame."""
    with closing(Connection(port)) as connection:
        connection.send(*frames)
        *answers, (opcode, payload) = connection.frames()
    assert opcode == CLOSE
    return answers, int.from_bytes(payload[:2], "big") if payload else None


def answered(port, sent, num_answers):
    """Send bytes one after another, wait for this many answers, and close normally."""
    with closing(Connection(port)) as connection:
        for piece in sent:
            connection.send(piece)
        answers = [connection.frame() for _ in range(num_answers)]
        connection.send(leave())
        assert connection.frames() == [(CLOSE, struct.pack("!H", NORMAL))]
    return answers


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65535, 65536])
def test_messages_come_back_whole_at_every_length_of_their_head(port, size):
    expected = [(TEXT, b"*" * size), (BINARY, b"\xfe" * size)]
    assert answered(port, [frame(*message) for message in expected], 2) == expected


def test_fragments_are_joined_and_control_frames_come_between_them(port):
    character = "ß".encode()
    sent = [
        part(TEXT, b"a" + character[:1]),
        frame(PING, b"one"),
        part(CONT, character[1:]),
        frame(PONG, b"that nobody asked for"),
        part(CONT, b""),
        frame(PING, b"two"),
        frame(CONT, b"z"),
    ]
    expected = [(PONG, b"one"), (PONG, b"two"), (TEXT, "aßz".encode())]
    assert answered(port, [b"".join(sent)], 3) == expected


def test_frames_may_come_byte_by_byte(port):
    sent = part(TEXT, b"sl") + frame(PING, b"p") + frame(CONT, b"ow")
    pieces = [sent[at : at + 1] for at in range(len(sent))]
    assert answered(port, pieces, 2) == [(PONG, b"p"), (TEXT, b"slow")]


def test_a_ping_of_125_bytes_is_answered(port):
    assert answered(port, [frame(PING, b"\xff" * 125)], 1) == [(PONG, b"\xff" * 125)]


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([frame(PING, b"*" * 126)], id="a ping of 126 bytes"),
        pytest.param([part(PING, b"")], id="a ping in fragments"),
        pytest.param([frame(CLOSE, struct.pack("!H", NORMAL) + b"*" * 124)], id="a long close"),
        pytest.param([frame(CLOSE, b"\x03")], id="a close of one byte"),
        pytest.param([frame(CONT, b"what")], id="nothing to continue"),
        pytest.param([part(CONT, b"what"), frame(CONT, b"")], id="parts of nothing"),
        pytest.param([part(TEXT, b"a"), frame(TEXT, b"b")], id="a message inside another"),
        pytest.param([frame(TEXT, b"open", is_masked=False)], id="not masked"),
        *(
            pytest.param([frame(TEXT, b"", first=FIN | bit)], id=f"reserved bit {bit:x}")
            for bit in (0x10, 0x20, 0x40)
        ),
        *(pytest.param([frame(code, b"")], id=f"opcode {code}") for code in (3, 7, 11, 15)),
        *(
            pytest.param([leave(code)], id=f"close code {code}")
            for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535)
        ),
    ],
)
def test_an_invalid_frame_closes_the_socket_and_later_frames_are_ignored(port, frames):
    answers, code = exchange(port, frame(TEXT, b"before"), *frames, frame(TEXT, b"after"))
    assert (TEXT, b"after") not in answers
    assert code == PROTOCOL


@pytest.mark.parametrize("code", [1000, 1001, 1003, 1007, 1008, 1011, 1014, 3000, 4999])
def test_close_codes_come_back(port, code):
    assert exchange(port, leave(code, "tschüß".encode())) == ([], code)


def test_a_close_frame_without_a_code_is_answered_without_one(port):
    assert exchange(port, frame(CLOSE)) == ([], None)


def test_a_client_may_leave_in_the_middle_of_a_message(port):
    sent = [part(TEXT, b"I was go"), leave(1001), frame(CONT, b"ing to say")]
    assert exchange(port, *sent) == ([], 1001)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"\xce\xba\xed\xa0\x80", id="half a surrogate"),
        pytest.param(b"\xc0\xaf", id="overlong"),
        pytest.param(b"\xf4\x90\x80\x80", id="beyond the last"),
        pytest.param(b"caf\xc3", id="cut off"),
    ],
)
@pytest.mark.parametrize("pieces", [1, 2])
def test_text_that_is_not_utf_8_is_rejected(port, text, pieces):
    sent = [frame(TEXT, text)] if pieces == 1 else [part(TEXT, text[:2]), frame(CONT, text[2:])]
    assert exchange(port, *sent, frame(TEXT, b"after")) == ([], NOT_TEXT)
    assert exchange(port, leave(NORMAL, text))[1] == NOT_TEXT


@pytest.mark.parametrize("size", [0, MAX_WEBSOCKET_BYTES // 2])
def test_a_message_that_is_too_large_is_refused_before_it_has_come(port, size):
    begun = [part(BINARY, bytes(size))] if size else []
    head = CONT if size else BINARY
    too_large = MAX_WEBSOCKET_BYTES + 1 - size
    sent = [*begun, struct.pack("!BBQ4s", FIN | head, 0x80 | 127, too_large, b"mask")]
    assert exchange(port, *sent) == ([], TOO_BIG)


def test_a_message_in_too_many_small_fragments_is_refused(port):
    with closing(Connection(port)) as connection:
        connection.send(part(TEXT, b"a"), *[part(CONT, b"b")] * 2048, frame(CONT, b"c"))
        assert connection.frame() == (TEXT, b"a" + b"b" * 2048 + b"c")
        for size in (0, 15):
            again = Connection(port)
            again.send(part(TEXT, b""), *[part(CONT, b"b" * size)] * 33_000)
            code, reason = PROTOCOL, b"the message has too many small fragments"
            assert again.frame() == (CLOSE, struct.pack("!H", code) + reason)
            again.close()
        fair = [part(CONT, b"b" * 16)] * 4000
        connection.send(part(TEXT, b""), *fair, frame(CONT))
        assert connection.frame() == (TEXT, b"b" * 64_000)


class _Transport(asyncio.Transport):
    def __init__(self):
        self.is_read, self.unsent = True, 0

    def get_extra_info(self, name, default=None):
        return default

    def pause_reading(self):
        self.is_read = False

    def resume_reading(self):
        self.is_read = True

    def write(self, data):
        self.unsent += len(data)

    def get_write_buffer_size(self):
        return self.unsent

    def is_closing(self):
        return False

    def close(self): ...


@pytest.fixture
async def protocol():
    """A connection after its handshake, whose app reads what the test lets it."""
    app, calls = asyncio.Queue(), asyncio.Queue()

    async def echo(scope, receive, send):
        await receive()
        await send({"type": "websocket.accept"})
        while await calls.get():
            app.put_nowait(await receive())

    config = server_config(echo, "127.0.0.1", 0, 5.0)
    config.load()
    made = WebSocketProtocol(config, ServerState(), {})
    made.connection_made(_Transport())
    made.data_received(HANDSHAKE)
    for _ in range(5):
        await asyncio.sleep(0)
    made.from_app, made.read_one = app, lambda: calls.put_nowait(True)
    yield made
    calls.put_nowait(False)
    made.connection_lost(None)
    await asyncio.sleep(0)


HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


async def test_many_frames_of_one_read_are_parsed_in_turns(protocol):
    sizes, parse = [], protocol.conn.receive_data
    protocol.conn.receive_data = lambda data: (sizes.append(len(data)), parse(data))
    protocol.data_received(frame(PONG) * 5000)  # 30 KB
    num_turns = 0
    while sum(sizes) < 30_000:
        assert not protocol.transport.is_read
        await asyncio.sleep(0)
        num_turns += 1
    assert max(sizes) <= 8192
    assert num_turns >= len(sizes)
    await asyncio.sleep(0)
    assert protocol.transport.is_read


async def test_nothing_is_parsed_while_the_app_has_messages(protocol):
    protocol.data_received(b"".join(frame(TEXT, b"%d" % n) for n in range(4000)))
    for _ in range(30):
        await asyncio.sleep(0)
    waiting = protocol.queue.qsize()
    assert 0 < waiting < 1400
    assert not protocol.transport.is_read
    for number in range(2000):
        protocol.read_one()
        assert (await protocol.from_app.get())["text"] == f"{number}"
        assert protocol.queue.qsize() < 1400


async def test_a_client_that_reads_no_pongs_is_not_read(protocol, monkeypatch):
    monkeypatch.setattr(server_module, "_MAX_UNSENT_BYTES", 200_000)
    protocol.pause_writing()  # as the transport does beyond 64 KiB
    for _ in range(100):
        if not protocol.transport.is_read:
            break
        protocol.data_received(frame(PING, b"x" * 125) * 100)
        for _ in range(5):  # 12.5 KB
            await asyncio.sleep(0)
    assert 200_000 < protocol.transport.unsent < 250_000
    protocol.transport.unsent = 0
    protocol.resume_writing()
    for _ in range(5):
        await asyncio.sleep(0)
    assert protocol.transport.is_read
