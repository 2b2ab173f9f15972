"""The control protocol between the supervisor and its processes, over a socket pair."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from izwi.config import EngineConfig
from izwi.errors import InvalidRequest
from izwi_api.console import code_of
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.serve import control
from izwi_api.serve.control import (
    BEAT_S,
    Alive,
    ApiServerGone,
    ApiServerSpec,
    Control,
    EngineGone,
    EngineSpec,
    EngineUp,
    Failed,
    Ready,
    child_process,
)
from izwi_api.settings import Settings

ENGINE = EngineSpec(
    *(Path("/tmp/x"), "ipc:///tmp/x/engine-0", {"a": Path("/models/a")}),
    *(RuntimeOptions("cpu", "float32"), EngineConfig(page_size=8), Path("all.jsonl")),
)
API_SERVER = ApiServerSpec(
    *("api-server-1", Path("/tmp/x"), (3, 4), {"a": Path("/models/a")}),
    *(Settings(hung_after_s=7.0), 5.0, True, Path("/tmp/x/metrics"), Path("/tmp/x/kept")),
)
MESSAGES = [
    *(ENGINE, API_SERVER, EngineUp("ipc:///tmp/x/engine-0"), EngineGone(), Ready(), Alive()),
    *(ApiServerGone("api-server-1"), Failed("two\nlines", 3)),
]


@contextmanager
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Control(ours), Control(theirs), ours


def test_every_message_arrives_as_it_was_in_order():
    with pair() as (one, other, _):
        for message in MESSAGES:
            one.send(message)
        assert other.receive() == MESSAGES


def test_a_message_that_comes_in_pieces_is_read_when_it_is_whole():
    with pair() as (one, other, stream):
        one.send(MESSAGES[0])
        one.send(MESSAGES[2])
        sent = other._stream.recv(1 << 16)
        stream.sendall(sent[:20])
        assert other.receive() == []
        stream.sendall(sent[20:-5])
        assert other.receive() == [MESSAGES[0]]
        stream.sendall(sent[-5:])
        assert other.receive() == [MESSAGES[2]]


def test_the_first_message_is_waited_for():
    class Slow(Control):
        def receive(self):
            return next(came)

    came = iter([[], [], [ENGINE]])
    with pair() as (_, _, stream):
        assert Slow(stream).first(EngineSpec) == ENGINE
        came = iter([[API_SERVER]])
        with pytest.raises(AssertionError):
            Slow(stream).first(EngineSpec)


def test_only_receive_reports_that_the_other_side_has_ended():
    with pair() as (one, other, _):
        other.send(Ready())  # unread, so that closing resets the connection
        one.close()
        other.send(Ready())
        with pytest.raises(EOFError):
            other.receive()
    with pair() as (one, other, _):
        one.finish()
        with pytest.raises(EOFError):
            other.receive()
        other.send(Ready())
        assert one.receive() == [Ready()]  # what the other says is still heard
        one.finish()
        one.close()
        one.finish()


class _NarrowPipe:
    """Takes so many bytes of what is sent at once; -1: is full."""

    def __init__(self, room):
        self.room, self.came = room, b""

    def send(self, line, flags):
        assert flags == socket.MSG_DONTWAIT
        if self.room < 0:
            raise BlockingIOError
        self.came += line[: self.room]
        return min(self.room, len(line))

    def sendall(self, line):
        self.came += line


def test_a_heartbeat_is_sent_whole_and_no_more_often_than_it_must(monkeypatch):
    now_s = 1000.0
    monkeypatch.setattr(control, "time", SimpleNamespace(monotonic=lambda: now_s))
    pipe = _NarrowPipe(3)
    one = Control(pipe)
    one.beat()
    assert (pipe.came.count(b"\n"), pipe.came[-1:]) == (1, b"\n")
    for after_s, num_sent in ((0.0, 1), (0.99, 1), (1.0, 2), (1.5, 2), (2.0, 3)):
        now_s = 1000.0 + after_s * BEAT_S
        one.beat()
        assert pipe.came.count(b"\n") == num_sent
    now_s, pipe.room = 2000.0, -1
    one.beat()
    pipe.room = 1000
    one.beat()  # what was full is tried again in time
    assert pipe.came.count(b"\n") == 3


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (InvalidRequest("no such model"), True),
        (OSError("no such file"), True),
        (EOFError(), False),
        (None, False),
    ],
)
def test_a_process_that_cannot_start_reports_why_and_exits_with_a_code(monkeypatch, error, failed):
    begun = []
    monkeypatch.setattr(control, "log_as_the_server", lambda _: begun.append(True))
    with pair() as (one, other, _):
        monkeypatch.setattr(Control, "of_this_process", lambda: other)

        def work():
            with child_process() as mine:
                mine.send(Ready())
                if error is not None:
                    raise error

        if failed:
            with pytest.raises(SystemExit) as ended:
                work()
            assert ended.value.code == code_of(error)
            assert one.receive() == [Ready(), Failed(str(error), code_of(error))]
        else:
            work()
            assert one.receive() == [Ready()]
    assert begun == [True]


def test_an_unexpected_error_is_not_reported_as_a_reason(monkeypatch):
    monkeypatch.setattr(control, "log_as_the_server", lambda _: None)
    with pair() as (one, other, _):
        monkeypatch.setattr(Control, "of_this_process", lambda: other)
        with pytest.raises(ZeroDivisionError), child_process():
            raise ZeroDivisionError
        one.send(Ready())
        assert other.receive() == [Ready()]
        other.finish()
        with pytest.raises(EOFError):
            one.receive()


def test_child_processes_do_not_inherit_the_control_socket():
    before = os.dup(0)
    ours, theirs = socket.socketpair()
    try:
        os.dup2(theirs.fileno(), 0)
        theirs.close()
        mine = Control.of_this_process()
        assert os.fstat(0).st_rdev == Path(os.devnull).stat().st_rdev
        assert not os.get_inheritable(mine.fileno())
        mine.send(Ready())
        assert Control(ours).receive() == [Ready()]
        mine.close()
        assert ours.recv(1) == b""  # nothing else holds the end
    finally:
        os.dup2(before, 0)
        os.close(before)
        ours.close()
