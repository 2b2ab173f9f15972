"""The core of live sessions, with a test protocol: how it reads, writes and ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import pytest

from izwi.errors import InvalidRequest, Overloaded, RateLimited
from izwi_api.sessions import core
from izwi_api.sessions.core import Session
from izwi_api.sessions.errors import GOING_AWAY, INTERNAL, NORMAL, POLICY, ClientLeft, SessionOver
from izwi_api.sessions.limits import SessionLimits
from izwi_api.sessions.open_sessions import OpenSessions, SessionCounts
from izwi_api.sessions.slots import Slots

LIMITS = SessionLimits(tick_s=0.01)


class Wire:
    """A client in this event loop; it reads as much as `room` allows."""

    def __init__(self, room=1000):
        self.inbox = asyncio.Queue()
        self.taken, self.closed, self.is_open = [], None, True
        self.room = asyncio.Semaphore(room)
        self.left = asyncio.Event()

    async def receive(self):
        message = await self.inbox.get()
        if message is None:
            raise ClientLeft
        return message

    async def send(self, message):
        await self.room.acquire()
        if self.left.is_set():
            raise ClientLeft
        self.taken.append(message)

    async def close(self, code, reason):
        self.closed = (code, reason)


@dataclass
class Caller:
    """A caller with a key."""

    key_name: str | None
    max_sessions: int | None = None
    is_valid: bool = True

    def keeps_access(self):
        return self.is_valid


class Echo:
    """Answers each message with itself; "bad" is refused, "flood N" is answered N times."""

    def __init__(self, session):
        self.session, self.is_busy, self.is_closed, self.seen = session, False, False, []
        self.work = None

    def start_session(self):
        self.session.put("hello")

    def background_tasks(self):
        return () if self.work is None else (self.work,)

    async def handle_message(self, message):
        self.seen.append(message)
        if message == "bad":
            raise InvalidRequest("no")
        if message == "bug":
            raise RuntimeError("a secret")
        if message == "over":
            raise SessionOver("done with you", "done", POLICY)
        if message.startswith("flood"):
            for _ in range(int(message[5:])):
                self.session.put("x" * 100)
        else:
            self.session.put(message)

    def report(self, error):
        self.session.put(f"error: {getattr(error, 'code', 'internal')}")

    def tick(self, now_s):
        if self.is_busy == "fails":
            raise RuntimeError("the clock failed")

    def close(self):
        self.is_closed = True


def opened(limits=LIMITS, room=1000):
    wire = Wire(room)
    session = Session(wire, limits)
    service = Echo(session)
    return wire, service, asyncio.create_task(session.run(service))


async def ended(task):
    await asyncio.wait_for(task, 60)


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def test_messages_are_answered_in_order_until_the_client_leaves():
    wire, service, task = opened()
    for message in ("a", "bad", "b"):
        wire.inbox.put_nowait(message)
    await until(lambda: len(wire.taken) == 4)
    wire.inbox.put_nowait(None)
    await ended(task)
    assert wire.taken == ["hello", "a", "error: invalid_request", "b"]
    assert wire.closed is None
    assert service.is_closed


@pytest.mark.parametrize("kind", ["bad", "bug"])
async def test_errors_in_a_row_are_reported_and_end_the_session(kind):
    wire, _, task = opened(replace(LIMITS, bad_messages=3))
    for message in (kind, kind, "good", kind, kind, kind, "late"):
        wire.inbox.put_nowait(message)
    await ended(task)
    reported = [message for message in wire.taken if message.startswith("error")]
    assert len(reported) == 6
    assert reported[-1] == "error: too_many_errors"
    assert wire.closed == (POLICY, "too_many_errors")
    assert "late" not in wire.taken


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"total_s": 0.05}, (NORMAL, "session_expired")),
        ({"idle_s": 0.05}, (NORMAL, "idle_timeout")),
        ({"idle_s": 0.05, "idle_code": POLICY}, (POLICY, "idle_timeout")),
    ],
)
async def test_time_limits(limits, code):
    wire, _, task = opened(replace(LIMITS, **limits))
    await ended(task)
    assert wire.closed == code
    assert wire.taken == ["hello", f"error: {code[1]}"]


async def test_a_client_is_not_idle_while_the_server_is_busy():
    wire, service, task = opened(replace(LIMITS, idle_s=0.05))
    service.is_busy = True
    await asyncio.sleep(0.3)
    assert not task.done()
    service.is_busy = False
    await ended(task)
    assert wire.closed == (NORMAL, "idle_timeout")


@pytest.mark.parametrize("busy", [True, False])
async def test_a_client_that_reads_nothing_is_left(monkeypatch, busy):
    monkeypatch.setattr(core, "FAREWELL_S", 0.05)
    wire, service, task = opened(replace(LIMITS, unread_s=0.1), room=0)
    service.is_busy = busy
    await ended(task)
    assert (wire.taken, wire.closed, service.is_closed) == ([], None, True)


async def test_unread_events_of_a_client_are_bounded():
    """A flood of messages, each with a large answer: later ones are not read."""
    wire, service, task = opened(replace(LIMITS, pending_messages=1000, pending_bytes=1000), room=0)
    for _ in range(50):
        wire.inbox.put_nowait("flood 8")
    await until(lambda: service.seen)
    await asyncio.sleep(0.1)
    assert len(service.seen) == 2, "800 bytes, and 800 more"
    for _ in range(401):
        wire.room.release()
    await until(lambda: len(wire.taken) == 401)
    assert len(service.seen) == 50
    wire.inbox.put_nowait(None)
    await ended(task)


async def test_queued_events_are_sent_once_before_the_close():
    wire, _, task = opened(room=1)
    for message in ("a", "b", "over"):
        wire.inbox.put_nowait(message)
    await asyncio.sleep(0.05)
    for _ in range(10):
        wire.room.release()
    await ended(task)
    assert wire.taken == ["hello", "a", "b", "error: done"]
    assert wire.closed == (POLICY, "done")


async def test_send_waits_until_the_wire_has_taken_it():
    wire, service, task = opened(room=1)
    await until(lambda: wire.taken)
    sending = asyncio.create_task(service.session.send("x"))
    await asyncio.sleep(0.02)
    assert not sending.done()
    wire.room.release()
    await asyncio.wait_for(sending, 60)
    wire.inbox.put_nowait(None)
    await ended(task)


async def test_a_failure_inside_is_logged_and_no_secret(caplog):
    wire, service, task = opened()
    service.is_busy = "fails"
    await ended(task)
    assert wire.taken[-1] == "error: internal_error"
    assert wire.closed == (INTERNAL, "internal_error")
    assert "the clock failed" in caplog.text


async def test_the_session_ends_with_its_work():
    wire = Wire()
    session = Session(wire, LIMITS)
    service = Echo(session)

    async def work():
        await session.send("said")

    service.work = work()
    await ended(asyncio.create_task(session.run(service)))
    assert (wire.taken, wire.closed) == (["hello", "said"], (NORMAL, ""))


async def test_leaving_while_the_server_writes():
    wire, service, task = opened(room=0)
    wire.left.set()
    wire.room.release()
    await ended(task)
    assert wire.closed is None
    assert service.is_closed


async def test_all_sessions_are_ended_at_once(tmp_path):
    sessions = OpenSessions(SessionCounts(), None, tmp_path)
    wires, tasks = [], []

    async def serve(wire):
        session = Session(wire, LIMITS)
        with sessions.slot(Caller(None)), sessions.running(session):
            await session.run(Echo(session))

    for _ in range(5):
        wires.append(Wire())
        tasks.append(asyncio.create_task(serve(wires[-1])))
    await until(lambda: all(wire.taken for wire in wires))
    over = SessionOver("the server stops", "server_stops", GOING_AWAY, is_told=False)
    await asyncio.wait_for(sessions.end_all(over), 60)
    assert {wire.closed for wire in wires} == {(GOING_AWAY, "server_stops")}
    assert [wire.taken for wire in wires] == [["hello"]] * 5
    await asyncio.gather(*tasks)


async def test_a_session_of_no_request_closes_its_connection_when_the_server_stops(tmp_path):
    sessions, events = OpenSessions(SessionCounts(), None, tmp_path), []

    async def call():
        try:
            events.append("open")
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)  # as a farewell over the network
            events.append("closed")

    sessions.run_detached(call())
    await until(lambda: events)
    await sessions.close()
    assert events == ["open", "closed"]


async def test_a_session_that_is_ended_before_it_runs():
    wire = Wire()
    session = Session(wire, LIMITS)
    session.end(SessionOver("no", "no", GOING_AWAY))
    await ended(asyncio.create_task(session.run(Echo(session))))
    assert wire.closed == (GOING_AWAY, "no")


def test_places_are_limited_and_come_back(tmp_path):
    sessions = OpenSessions(SessionCounts(a_server=3, a_key=2), tmp_path / "s", tmp_path / "k")
    ann, bob, richer = Caller("ann"), Caller("bob"), Caller("ann", 3)
    with sessions.slot(ann):
        with sessions.slot(ann):
            with pytest.raises(RateLimited, match="2 live sessions"), sessions.slot(ann):
                pass
            with sessions.slot(richer), pytest.raises(Overloaded), sessions.slot(bob):
                pass
        with sessions.slot(ann), sessions.slot(Caller(None)):
            pass
    with sessions.slot(ann), sessions.slot(ann):
        pass


class Ending:
    """A session that notes why it was ended."""

    def __init__(self):
        self.over = None

    def end(self, over):
        self.over = self.over or over


@contextmanager
def several(sessions, *callers):
    with ExitStack() as stack:
        opened = [Ending() for _ in callers]
        for session, caller in zip(opened, callers, strict=True):
            seat = stack.enter_context(sessions.slot(caller))
            stack.enter_context(sessions.running(session, seat))
        yield opened


def codes(opened):
    return [session.over and (session.over.code, session.over.close_code) for session in opened]


REMOVED, BEYOND = ("invalid_api_key", POLICY), ("rate_limit_exceeded", POLICY)


def test_sessions_of_a_removed_key_are_ended(tmp_path):
    sessions = OpenSessions(SessionCounts(), None, tmp_path)
    ann, bob, anyone = Caller("ann"), Caller("bob"), Caller(None)
    with several(sessions, ann, bob, ann, anyone) as opened:
        sessions.review()
        assert codes(opened) == [None] * 4
        ann.is_valid = anyone.is_valid = False
        sessions.review()
        assert codes(opened) == [REMOVED, None, REMOVED, None]


@pytest.mark.parametrize("before", [4, None])
def test_a_lower_limit_ends_the_latest_sessions_beyond_it(tmp_path, before):
    sessions = OpenSessions(SessionCounts(), None, tmp_path)
    ann = Caller("ann", before)
    with several(sessions, *[ann] * 4) as opened, several(sessions, Caller("bob", 1)) as others:
        sessions.review()
        assert codes(opened + others) == [None] * 5
        ann.max_sessions = 2
        sessions.review()
        assert codes(opened + others) == [None, None, BEYOND, BEYOND, None]
        with pytest.raises(RateLimited), sessions.slot(ann):
            pass
    with several(sessions, ann, ann):  # all slots came back
        pass


def test_a_session_in_a_high_slot_moves_down_instead_of_ending(tmp_path):
    sessions, ann = OpenSessions(SessionCounts(), None, tmp_path), Caller("ann", 2)
    with ExitStack() as stack:
        with sessions.slot(ann):
            session = Ending()
            seat = stack.enter_context(sessions.slot(ann))
            stack.enter_context(sessions.running(session, seat))
        ann.max_sessions = 1
        sessions.review()
        assert (session.over, seat.number) == (None, 0)
        with pytest.raises(RateLimited), sessions.slot(ann):
            pass
    with sessions.slot(ann):
        pass


HOLD = """
import sys
from pathlib import Path
from izwi_api.sessions.slots import Slots
slots = Slots(Path(sys.argv[1]))
print([slots.acquire(3) for _ in range(int(sys.argv[2]))], flush=True)
sys.stdin.read()
"""


def test_places_are_shared_by_processes_and_given_back_by_the_dead(tmp_path):
    def hold(number):
        command = [sys.executable, "-c", HOLD, str(tmp_path / "deep" / "slots"), str(number)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return process, process.stdout.readline().strip()

    first, taken = hold(2)
    assert taken == "[0, 1]"
    here = Slots(tmp_path / "deep" / "slots")
    assert [here.acquire(3), here.acquire(3)] == [2, None]
    here.release(2)
    second, taken = hold(3)
    assert taken == "[2, None, None]"
    first.kill()
    first.wait(60)
    assert here.acquire(3) == 0
    second.communicate(timeout=60)
    first.communicate()
    assert [here.acquire(3), here.acquire(3), here.acquire(3)] == [1, 2, None]
    here.close()


def test_an_unusable_file_stops_no_session(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    slots = Slots(tmp_path / "file" / "slots")
    assert [slots.acquire(2), slots.acquire(2), slots.acquire(2)] == [0, 1, None]
    assert "counts alone" in caplog.text
