"""Uploads wait their turn before they are read, and refused ones cost nothing."""

from __future__ import annotations

import asyncio
import random
import select
import socket
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest

from izwi.errors import Overloaded
from izwi.fairness.callers import current_caller
from izwi_api.http.app_state import set_state
from izwi_api.serve.app import create_app
from izwi_api.services import uploads
from izwi_api.services.decoding import InProcess
from izwi_api.services.transcription import transcribe
from izwi_api.services.uploads import Uploads
from izwi_api.settings import Settings, upload_pieces
from tests.api.conftest import (
    FakeEngine,
    FakeRegistry,
    FakeTranscription,
    listening,
    wait_for,
)


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


class Line:
    """Files that enter, each in a task of its own."""

    def __init__(self, **options):
        self.clock, self.entered = Clock(), []
        options = {"spread": lambda: 0.5} | options
        self.uploads = Uploads(clock=self.clock, **options)

    async def _enter(self, caller, name):
        current_caller.set(caller)
        upload = await self.uploads.enter()
        self.entered.append((name, upload))
        return upload

    async def arrive(self, caller, name=None):
        task = asyncio.create_task(self._enter(caller, caller if name is None else name))
        await turns()
        return task

    @property
    def names(self):
        return [name for name, _ in self.entered]

    async def end(self, place=0):
        """End a file that entered."""
        self.entered[place][1].stop_counting()
        await turns()

    def is_empty(self):
        return not (
            self.uploads.num_in_progress
            or self.uploads.num_waiting
            or self.uploads._pieces
            or len(self.uploads._line)
        )


async def test_files_enter_up_to_the_pieces_and_then_as_others_end():
    line = Line(max_pieces=16)
    for number in range(4):
        await line.arrive("a", number)
    assert line.names == [0, 1]
    assert line.uploads.num_waiting == 2
    await line.end(0)
    assert line.names == [0, 1, 2]
    for place in range(1, 4):
        await line.end(place)
    assert line.is_empty()


async def test_a_short_file_gives_its_turn_on_when_it_is_decoded():
    line = Line(max_pieces=16)
    for number in range(3):
        await line.arrive("a", number)
    line.entered[0][1].count(1)
    await turns()
    assert line.names == [0, 1, 2]


async def test_another_caller_enters_at_once_and_later_in_turns():
    line = Line(max_pieces=32)
    for number in range(20):
        await line.arrive("a", f"a{number}")
    assert line.names == ["a0", "a1", "a2", "a3"]
    for number in range(6):
        await line.arrive("b", f"b{number}")
    assert line.names[4:] == ["b0", "b1"]  # up to an equal part
    for place in range(10):
        await line.end(place)
    later = [name[0] for name in line.names[6:]]
    assert abs(later.count("a") - later.count("b")) <= 1
    assert later.count("b") == 4


async def test_many_callers_together_exceed_the_pieces_at_most_twice():
    line = Line(max_pieces=32)
    for number in range(40):
        await line.arrive(f"connection {number}")
    assert len(line.names) == 4
    for place in range(40):
        assert line.uploads._pieces.total() <= 64
        await line.end(place)
    assert line.names == [f"connection {number}" for number in range(40)]
    assert line.is_empty()


async def refused(line, caller="a"):
    with pytest.raises(Overloaded) as refusal:
        await (await line.arrive(caller))
    return refusal.value.retry_after_s


async def test_the_time_to_return_grows_with_the_line():
    seconds = []
    for max_waiting in (1, 4, 16):
        line = Line(max_pieces=16, max_waiting=max_waiting)
        for _ in range(max_waiting + 2):
            await line.arrive("a")
        for place in range(8):  # one enters every two seconds
            line.clock.now_s += 2.0
            await line.end(place)
            await line.arrive("a")
        seconds.append(await refused(line))
        assert (await line.arrive("b")).done()  # another caller's is not refused
    assert seconds[0] >= 2
    assert seconds[0] < seconds[1] < seconds[2]


async def test_clients_return_at_different_times():
    line = Line(max_pieces=8, max_waiting=1, spread=random.Random(1).random)
    await line.arrive("a")
    await line.arrive("a")
    line.clock.now_s += 30.0
    assert len({await refused(line) for _ in range(20)}) > 10


async def test_a_file_that_would_wait_for_too_long_is_refused_at_once():
    line = Line(max_pieces=8, max_wait_s=60.0)
    await line.arrive("a")
    await line.arrive("a")
    line.clock.now_s += 31.0  # nothing has ended for so long
    assert await refused(line) == 62
    assert line.uploads.num_waiting == 1


async def test_a_file_waits_no_longer_than_allowed():
    line = Line(max_pieces=8, max_wait_s=0.01)
    await line.arrive("a")
    with pytest.raises(Overloaded):
        await (await line.arrive("a"))
    assert line.uploads.num_waiting == 0
    await line.end(0)
    assert line.is_empty()


async def test_callers_who_leave_while_they_wait_are_forgotten():
    line = Line(max_pieces=8)
    await line.arrive("a", 0)
    waiting = [await line.arrive("a", number) for number in range(1, 4)]
    waiting[0].cancel()
    await turns()
    await line.end(0)
    assert line.names == [0, 2]
    line.entered[1][1].stop_counting()  # the next one has its turn, and leaves before it knows
    waiting[2].cancel()
    await turns()
    assert waiting[2].cancelled()
    assert line.is_empty()


async def test_a_long_file_shrinks_while_others_wait():
    line = Line(max_pieces=32)
    await line.arrive("a", "long")
    _, long = line.entered[0]
    assert long.most_in_flight(100) == 32
    long.count(32)
    await line.arrive("a", "short")
    assert line.names == ["long"]
    assert long.most_in_flight(100) == 16
    for left in range(31, 15, -1):
        long.count(left)
    await turns()
    assert line.names == ["long", "short"]
    _, short = line.entered[1]
    assert short.most_in_flight(9) == 9
    assert short.most_in_flight(100) == 16


async def test_every_file_may_have_two_pieces():
    line = Line(max_pieces=3)
    for caller in "abc":
        await line.arrive(caller)
        line.entered[-1][1].count(2)
    assert [upload.most_in_flight(9) for _, upload in line.entered] == [2, 2]
    assert line.entered[0][1].most_in_flight(1) == 1


async def test_a_file_whose_client_is_slow_counts_nothing(monkeypatch):
    monkeypatch.setattr(uploads, "_PATIENCE_S", 0.0)
    line = Line(max_pieces=8)
    await line.arrive("a", "slow")
    await line.arrive("a", "next")
    _, slow = line.entered[0]
    with slow.client_acts():
        await asyncio.sleep(0.01)
        assert line.names == ["slow", "next"]
    again = asyncio.create_task(slow.wait_for_turn())
    await turns()
    assert not again.done()  # it has its turn, like others
    await line.end(1)
    assert again.done()
    with slow.client_acts():
        await asyncio.sleep(0.01)
    slow.go_on()  # its answer has begun
    assert line.uploads.num_in_progress == 1
    slow.stop_counting()
    slow.stop_counting()
    assert line.is_empty()


async def test_a_client_that_is_quick_keeps_its_place():
    line = Line(max_pieces=8)
    await line.arrive("a", "quick")
    await line.arrive("a", "next")
    with line.entered[0][1].client_acts():
        await turns()
    assert line.names == ["quick"]


@pytest.mark.parametrize("seed", range(20))
async def test_nothing_is_left_and_nobody_waits_without_need(seed):
    rng, line, tasks = random.Random(seed), Line(max_pieces=12), []
    for _ in range(120):
        action, counting = rng.random(), [up for _, up in line.entered if up._counts]
        if action < 0.4:
            tasks.append(await line.arrive(rng.choice("abc")))
        elif action < 0.55 and tasks:
            rng.choice(tasks).cancel()
        elif counting:
            upload = rng.choice(counting)
            upload.count(rng.randrange(6)) if action < 0.7 else upload.stop_counting()
            if action > 0.9:
                rng.choice(tasks).cancel()  # at the same moment
        await turns()
        assert line.uploads._pieces.total() >= 12 or not line.uploads.num_waiting
    for task in tasks:
        task.cancel()
    await turns()
    for _, upload in line.entered:
        upload.stop_counting()
    assert line.is_empty()


# -- over HTTP ----------------------------------------------------------------------------------
class CountingDecoder(InProcess):
    """Counts the files, and how many are decoded at once."""

    num_files = num_now = most = 0

    async def spool(self, *arguments):
        self.num_files += 1
        self.num_now += 1
        self.most = max(self.most, self.num_now)
        try:
            return await super().spool(*arguments)
        finally:
            self.num_now -= 1


class Client:
    """A client of the app, without a server between them."""

    def __init__(self, app, content, *, port=1, **fields):
        data = {"model": "org/asr"} | fields
        sent = httpx.Request("POST", "http://x/", data=data, files={"file": ("a.wav", content)})
        self.body = [sent.read()]
        self.num_reads, self.status, self.headers, self.text = 0, None, {}, b""
        self.left, self.reads_answer = asyncio.Event(), asyncio.Event()
        self.reads_answer.set()
        headers = [(name.lower().encode(), value.encode()) for name, value in sent.headers.items()]
        scope = {"type": "http", "http_version": "1.1", "method": "POST", "scheme": "http"}
        scope |= {"path": "/v1/audio/transcriptions", "raw_path": b"", "query_string": b""}
        scope |= {"headers": headers, "client": ("127.0.0.1", port), "server": ("x", 80)}
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self):
        self.num_reads += 1
        if self.body:
            return {"type": "http.request", "body": self.body.pop()}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        self.text += message.get("body", b"")
        if self.text and self.status == 200:
            await self.reads_answer.wait()

    async def answer(self):
        await asyncio.wait_for(self.task, 30)
        return self.status


@pytest.fixture
def make_world(tmp_path):
    def make(engine=None, **options):
        engine = engine or FakeEngine(step_s=0.0)
        registry = FakeRegistry(**{"org/asr": FakeTranscription()})
        settings = Settings(home=tmp_path, decode_workers=0, detects_speech=False)
        app = create_app(engine, registry, settings)
        state = app.state.izwi
        decoder, files = CountingDecoder(), Uploads(**options)
        services = replace(state.services, decoder=decoder, uploads=files)
        set_state(app, replace(state, services=services))
        return SimpleNamespace(app=app, engine=engine, decoder=decoder, uploads=files)

    return make


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class HeldEngine(FakeEngine):
    """Emits nothing before it is let."""

    def __init__(self):
        super().__init__()
        self.goes = asyncio.Event()

    async def step(self):
        await self.goes.wait()


async def test_a_refused_upload_is_neither_read_nor_decoded(make_world, tone_wav):
    engine = HeldEngine()
    world = make_world(engine, max_pieces=1, max_waiting=1)
    first = Client(world.app, tone_wav(1.0))
    await until(lambda: engine.live)
    waiting = Client(world.app, tone_wav(1.0))
    await until(lambda: world.uploads.num_waiting)
    refused = [Client(world.app, tone_wav(1.0)) for _ in range(5)]
    assert [await client.answer() for client in refused] == [503] * 5
    assert all(int(client.headers["retry-after"]) >= 1 for client in refused)
    assert all(client.headers["connection"] == "close" for client in refused)
    assert b'"overloaded"' in refused[0].text
    assert [client.num_reads for client in (*refused, waiting)] == [0] * 6
    assert world.decoder.num_files == 1
    engine.goes.set()
    assert await first.answer() == await waiting.answer() == 200
    assert world.decoder.num_files == 2
    assert world.uploads.num_in_progress == 0


class FullEngine(FakeEngine):
    """Refuses more than a number of requests, as a queue does."""

    def submit_all(self, requests):
        if len(self.live) + len(requests) > 24:
            raise Overloaded("the queue is full")
        return super().submit_all(requests)


async def test_more_files_than_the_queue_holds_are_all_answered(make_world, tone_wav):
    """16 files of 3 pieces, for a queue of 24."""
    world = make_world(FullEngine(step_s=0.0), max_pieces=12)
    clients = [Client(world.app, tone_wav(21.0), port=number % 2) for number in range(16)]
    assert {await client.answer() for client in clients} == {200}
    assert all(b" ".join([b"word"] * 21) in client.text for client in clients)
    assert world.decoder.num_files == 16
    assert world.decoder.most <= 6
    assert world.uploads.num_in_progress == world.uploads.num_waiting == 0


async def test_a_long_file_goes_on_beside_others(make_world, tone_wav, monkeypatch):
    """Its later pieces are not refused, and others do not wait for its end."""
    monkeypatch.setattr(transcribe, "_MAX_AHEAD", 4)
    engine = HeldEngine()
    world = make_world(engine, max_pieces=4)
    long = Client(world.app, tone_wav(60.0))
    await until(lambda: len(engine.live) == 4)
    short = [Client(world.app, tone_wav(1.0)) for _ in range(6)]
    await until(lambda: world.uploads.num_waiting == 6)
    engine.goes.set()
    await until(lambda: world.uploads.num_in_progress > 1)
    assert engine.num_submitted < 6
    assert {await client.answer() for client in short} == {200}
    assert await long.answer() == 200
    assert engine.num_submitted == 6 + 6


@pytest.mark.parametrize("stream", ["false", "true"])
@pytest.mark.parametrize("point", ["waiting", "body", "engine", "answer"])
async def test_clients_may_leave_at_any_point(make_world, tone_wav, point, stream):
    engine = HeldEngine()
    world = make_world(engine, max_pieces=1)
    first = Client(world.app, tone_wav(1.0), stream=stream)
    await until(lambda: engine.live)
    if point in ("waiting", "body"):
        client = Client(world.app, tone_wav(1.0), stream=stream)
        client.body = []
        if point == "body":
            first.left.set()
            await until(lambda: client.num_reads)
        else:
            await until(lambda: world.uploads.num_waiting)
            first.left.set()
        client.left.set()
        await client.answer()
    elif point == "answer":
        first.reads_answer.clear()
        engine.goes.set()
        await until(lambda: first.text or first.task.done())
        first.left.set()
        first.reads_answer.set()
    else:
        first.left.set()
    await first.answer()
    await until(lambda: not engine.live)
    assert world.uploads.num_in_progress == world.uploads.num_waiting == 0
    engine.goes.set()
    assert await Client(world.app, tone_wav(1.0)).answer() == 200


async def test_a_client_that_reads_no_answer_delays_no_other(make_world, tone_wav, monkeypatch):
    monkeypatch.setattr(uploads, "_PATIENCE_S", 0.0)
    world = make_world(max_pieces=1)
    stalled = Client(world.app, tone_wav(25.0), stream="true")
    stalled.reads_answer.clear()
    await until(lambda: stalled.text)
    assert await Client(world.app, tone_wav(1.0)).answer() == 200
    stalled.reads_answer.set()
    assert await stalled.answer() == 200
    assert b"transcript.text.done" in stalled.text
    assert world.uploads.num_in_progress == 0


async def test_a_body_that_arrives_slowly_delays_no_other(make_world, tone_wav, monkeypatch):
    monkeypatch.setattr(uploads, "_PATIENCE_S", 0.0)
    world = make_world(max_pieces=1)
    slow = Client(world.app, tone_wav(1.0))
    slow.body = []
    await until(lambda: slow.num_reads)
    quick = Client(world.app, tone_wav(1.0))
    assert await quick.answer() == 200
    assert slow.status is None  # it was not refused meanwhile
    assert world.decoder.num_files == 1
    slow.left.set()
    await slow.answer()
    assert world.uploads.num_in_progress == 0


HEAD = (
    "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n"
    "content-type: multipart/form-data; boundary=x\r\n\r\n"
)


def send_head(port, num_bytes):
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(HEAD.format(num_bytes).encode())
    return connection


def send_body(connection, num_bytes):
    """Send until the server's system takes no more; return the number of bytes that are left."""
    connection.setblocking(False)
    while num_bytes and select.select([], [connection], [], 0.3)[1]:
        num_bytes -= connection.send(bytes(min(num_bytes, 1 << 16)))
    connection.settimeout(30)
    return num_bytes


def test_the_body_of_a_waiting_upload_stays_with_the_client(make_world, monkeypatch):
    monkeypatch.setattr(uploads, "_PATIENCE_S", 1e6)
    world = make_world(max_pieces=1, max_waiting=1)
    with listening(world.app) as port:
        with closing(send_head(port, 100)):
            wait_for(lambda: world.uploads.num_in_progress)
            waiting = send_head(port, 20 << 20)
            wait_for(lambda: world.uploads.num_waiting)
            assert send_body(waiting, 20 << 20) > 8 << 20
            # each connection is a caller, whose equal part is none
            with closing(send_head(port, 100)) as refused:
                answer = b"".join(iter(lambda: refused.recv(4096), b""))  # until it is closed
            assert answer.startswith(b"HTTP/1.1 503")
            assert b"retry-after: " in answer
        with closing(waiting):  # it is read now, and is no form
            assert waiting.recv(12) == b"HTTP/1.1 400"
        wait_for(lambda: not world.uploads.num_in_progress)
    assert world.decoder.num_files == world.uploads.num_waiting == 0


@pytest.mark.parametrize(
    ("num_api_servers", "each"), [(0, 128), (1, 128), (4, 128), (5, 102), (8, 64), (200, 8)]
)
def test_files_of_all_api_servers_together_fit_into_the_queue_of_an_engine(num_api_servers, each):
    assert upload_pieces(512, num_api_servers) == each
