"""`x-izwi-deadlines` reaches the requests of its call, and nothing else."""

from __future__ import annotations

from math import inf

import httpx
import pytest

from izwi.errors import InvalidRequest
from izwi.request.deadlines import Deadlines
from izwi_api.serve.app import create_app
from izwi_api.services.models.caller_deadlines import HEADER, parse_deadlines
from izwi_api.settings import Degradation, Settings
from tests.api.conftest import FakeChat, FakeEngine, FakeRegistry, FakeSpeech


@pytest.mark.parametrize(
    ("text", "deadlines"),
    [
        ("queue=2", Deadlines(2.0)),
        ("decode=30, queue=0.25", Deadlines(0.25, inf, 30.0)),
        ("queue=1,prefill=1.5,decode=600", Deadlines(1.0, 1.5, 600.0)),
    ],
)
def test_times_of_phases_are_read(text, deadlines):
    assert parse_deadlines(text) == deadlines


WRONG = (
    *("", "2", "queue", "queue=", "queue=-1", "queue=0", "queue=1e3", "queue=nan", "wait=2"),
    *("queue=1,queue=2", "queue=1;decode=2", "queue=9999999", "queue=1,", "Queue=1"),
)


@pytest.mark.parametrize("text", WRONG)
def test_anything_else_is_refused(text):
    with pytest.raises(InvalidRequest, match=HEADER):
        parse_deadlines(text)


def test_the_shorter_time_of_each_phase_counts():
    one, other = Deadlines(1.0, 5.0), Deadlines(2.0, 3.0, 4.0)
    assert one.tighter(other) == other.tighter(one) == Deadlines(1.0, 3.0, 4.0)
    assert one.tighter(None) == one


class Keeping(FakeEngine):
    """Keeps the deadlines of what is submitted; so many requests wait for the chat model."""

    waiting = 0.0

    @property
    def load(self):
        return {"chat": {"waiting": self.waiting}}

    def submit_all(self, requests):
        self.deadlines = [request.deadlines for request in requests]
        return super().submit_all(requests)


@pytest.fixture
def world(tmp_path):
    engine = Keeping()
    registry = FakeRegistry(tts=FakeSpeech(), chat=FakeChat())
    settings = Settings(home=tmp_path, degradation=Degradation(waiting=4, max_decode_s=20.0))
    app = create_app(engine, registry, settings)
    transport = httpx.ASGITransport(app)
    return engine, httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")


SPEECH = {"model": "tts", "input": "Hello.", "voice": "Ann", "response_format": "pcm"}
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "Hello."}]}


async def test_requests_of_a_call_have_its_deadlines(world):
    engine, client = world
    async with client as http:
        answer = await http.post(
            "/v1/audio/speech", json=SPEECH, headers={HEADER: "queue=2, decode=9"}
        )
        assert answer.status_code == 200
        assert engine.deadlines == [Deadlines(2.0, inf, 9.0)]
        await http.post("/v1/audio/speech", json=SPEECH)
        assert engine.deadlines == [None]


async def test_a_header_that_cannot_be_read_is_refused_in_the_usual_shape(world):
    engine, client = world
    async with client as http:
        answer = await http.post("/v1/audio/speech", json=SPEECH, headers={HEADER: "soon"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", HEADER)
    assert engine.num_submitted == 0


async def test_under_load_answers_of_chats_have_less_time_and_say_so(world):
    engine, client = world
    async with client as http:
        for waiting, decode_s in ((0.0, None), (4.0, 20.0), (8.0, 10.0), (4000.0, 0.5)):
            engine.waiting = waiting
            answer = await http.post("/v1/chat/completions", json=CHAT)
            expected = None if decode_s is None else Deadlines(decode_s=decode_s)
            assert engine.deadlines == [expected]
            named = None if decode_s is None else f"max_decode_s={decode_s:g}"
            assert answer.headers.get("x-izwi-degraded") == named
        engine.waiting = 4.0
        await http.post("/v1/chat/completions", json=CHAT, headers={HEADER: "queue=1, decode=5"})
        assert engine.deadlines == [Deadlines(1.0, inf, 5.0)]
        await http.post("/v1/audio/speech", json=SPEECH)
        assert engine.deadlines == [None]
