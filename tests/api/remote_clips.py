"""A server of reference clips, and of everything that must not be accepted as one."""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import suppress


class RemoteClips:
    """Answers by path, with one thread per connection, on a port of this machine.

    Attributes:
        asked: Heads of the requests that came.
        num_connections: That were made, with a request or without.
        num_open: That are open now.
    """

    def __init__(self, clip, tls=None):
        self.asked, self.num_connections, self.num_open = [], 0, 0
        self._answers = answers(clip)
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._is_over = threading.Event()
        self.port = self._listener.getsockname()[1]
        self.entry = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)

    def _accept(self):
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return
            self.num_connections += 1
            self.num_open += 1
            threading.Thread(target=self._serve, args=(stream,), daemon=True).start()

    def _serve(self, stream):
        with stream, suppress(OSError):
            stream.settimeout(60)
            if self._tls is not None:
                stream = self._tls.wrap_socket(stream, server_side=True)
            head = b""
            while b"\r\n\r\n" not in head and (piece := stream.recv(4096)):
                head += piece
            if head:
                self.asked.append(head)
                path = head.split(b" ", 2)[1].decode().partition("?")[0]
                for piece in self._answers[path]():
                    if self._is_over.is_set() or has_left(stream):
                        break
                    stream.sendall(piece)
        with suppress(OSError):
            stream.close()
        self.num_open -= 1


def has_left(stream):
    """Whether the other side has closed the connection."""
    return bool(select.select([stream], [], [], 0)[0])


MEGABYTE = bytes(1 << 20)


def whole(*head):
    return [b"\r\n".join((b"HTTP/1.1 200 OK", *head)) + b"\r\n\r\n"]


def fixed(status, *head, body=b""):
    length = b"content-length: %d" % len(body)
    return lambda: [b"\r\n".join((b"HTTP/1.1 " + status, length, *head)) + b"\r\n\r\n" + body]


def steady(clip):
    yield from whole()
    for at in range(0, len(clip), 8000):
        time.sleep(0.1)
        yield clip[at : at + 8000]


def chunked(clip):
    yield from whole(b"transfer-encoding: chunked")
    for at in range(0, len(clip), 10_000):
        piece = clip[at : at + 10_000]
        yield b"%x\r\n%b\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


def endless():
    yield from whole()
    for _ in range(10_240):
        yield MEGABYTE


def drops(first, drop=b"x"):
    def send():
        yield first
        while True:
            time.sleep(0.2)
            yield drop

    return send


def small_pieces():
    yield from whole(b"transfer-encoding: chunked")
    while True:
        yield b"1\r\nx\r\n" * 10_000


def silent():
    while True:
        yield b""
        time.sleep(0.1)


def answers(clip):
    """Path -> what is sent, piece by piece."""
    redirects = {
        f"/{status}": fixed(b"%d Moved" % status, b"location: /clip.wav", body=clip)
        for status in (300, 301, 302, 303, 307, 308)
    }
    return redirects | {
        "/": fixed(b"200 OK", body=clip),
        "/clip.wav": fixed(b"200 OK", body=clip),
        "/until-it-closes": lambda: [*whole(), clip],
        "/chunked": lambda: chunked(clip),
        "/steady": lambda: steady(clip),
        "/interim": lambda: [b"HTTP/1.1 103 Early\r\n\r\n", *fixed(b"200 OK", body=clip)()],
        "/inside": fixed(b"302 Found", b"location: http://169.254.169.254/secret"),
        "/missing": fixed(b"404 Not Found", body=b"a secret of the other side"),
        "/part": fixed(b"206 Partial Content", b"content-range: bytes 0-9/90", body=clip[:10]),
        "/packed": fixed(b"200 OK", b"content-encoding: gzip", body=clip),
        "/text": fixed(b"200 OK", b"content-type: text/html", body=b"a secret of the other side"),
        "/says-10-GB": lambda: [*whole(b"content-length: 10737418240"), clip],
        "/says-too-many-digits": lambda: whole(b"content-length: " + b"9" * 5000),
        "/10-GB": endless,
        "/cut-off": lambda: [*whole(b"content-length: %d" % len(clip)), clip[:-100]],
        "/drops": drops(b"HTTP/1.1 200 OK\r\n\r\n"),
        "/drops-of-a-head": drops(b"HTTP/1.1 200 OK\r\nx: "),
        "/crumbs": small_pieces,
        "/interim-for-ever": lambda: [b"HTTP/1.1 100 Continue\r\n\r\n"] * 100_000,
        "/a-large-head": lambda: [b"HTTP/1.1 200 OK\r\nx: " + MEGABYTE],
        "/two-lengths": lambda: [*whole(b"content-length: 5", b"content-length: 6"), b"aaaaaa"],
        "/no-http": lambda: [b"SSH-2.0-OpenSSH_9.9\r\n\r\n"],
        "/nothing": lambda: [b""],
        "/silent": silent,
    }
