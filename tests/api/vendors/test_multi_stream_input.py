"""ElevenLabs' socket with several contexts, over the wire."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest
from websockets.exceptions import ConnectionClosed

from izwi_api.routes import speech_stream
from tests.api.conftest import FRAME, wait_for

MULTI = "/elevenlabs/v1/text-to-speech/{}/multi-stream-input?output_format=pcm_24000"


@pytest.fixture
def multi(vendors):
    def opened(key="free", voice="Ann"):
        return vendors.connect(MULTI.format(voice), {"xi-api-key": vendors.keys[key]})

    return opened


def tell(socket, **fields):
    socket.send(json.dumps(fields))


def rest(socket):
    received = []
    try:
        while True:
            received.append(json.loads(socket.recv(60)))
    except ConnectionClosed:
        return received, socket.close_code


def samples(received, name):
    mine = [one for one in received if one.get("contextId") == name and one.get("audio")]
    return sum(len(base64.b64decode(one["audio"])) for one in mine) // 2


def until_final(socket, name):
    received = []
    while not received or not (received[-1].get("isFinal") and received[-1]["contextId"] == name):
        received.append(json.loads(socket.recv(60)))
    return received


def test_contexts_are_spoken_beside_each_other(multi):
    with multi() as socket:
        tell(socket, text=" ", context_id="a", voice_settings={"speed": 1.0})
        tell(socket, text=" ", context_id="b")
        tell(socket, text="Hello ", context_id="a")
        tell(socket, text="Hi ", context_id="b")
        tell(socket, text="there ", context_id="a", flush=True)
        tell(socket, text="you ", context_id="b")
        tell(socket, context_id="b", flush=True)
        tell(socket, close_socket=True)
        received, code = rest(socket)
    assert code == 1000
    assert samples(received, "a") == 12 * FRAME
    assert samples(received, "b") == 7 * FRAME
    finals = [one["contextId"] for one in received if one["isFinal"]]
    assert sorted(finals) == ["a", "b"]
    for name in "ab":
        mine = [one["isFinal"] for one in received if one["contextId"] == name]
        assert mine.index(True) == len(mine) - 1  # nothing comes after it


def test_a_closed_context_says_what_was_flushed_alone_and_its_name_is_free(multi):
    with multi() as socket:
        tell(socket, text="Hello ", flush=True)  # without a name
        tell(socket, text="", context_id="default")  # keeps it open
        tell(socket, context_id="default", close_context=True)
        said = until_final(socket, "default")
        tell(socket, text="Hello ", context_id="default")
        tell(socket, context_id="default", close_context=True)
        dropped = until_final(socket, "default")
        tell(socket, text="Hi ", context_id="default", flush=True)
        tell(socket, close_socket=True)
        again, code = rest(socket)
    assert samples(said, "default") == 6 * FRAME
    assert samples(dropped, "default") < 6 * FRAME
    assert (samples(again, "default"), code) == (3 * FRAME, 1000)


@pytest.mark.parametrize(
    ("key", "voice", "sent", "code", "context"),
    [
        ("free", "Nobody", [{"text": "Hello ", "context_id": "a"}], "voice_not_found", "a"),
        ("free", "Ann", [{"text": 5}], "invalid_message", None),
        ("free", "Ann", [{"text": " ", "context_id": name} for name in "abcdef"],
         "too_many_contexts", None),
        ("poor", "Ann", [{"text": "Hello ", "context_id": "a"}], "insufficient_quota", "a"),
    ],
)  # fmt: skip
def test_an_error_closes_the_socket(multi, key, voice, sent, code, context):
    with multi(key, voice) as socket:
        for message in sent:
            tell(socket, **message)
        received, close_code = rest(socket)
    (error,) = [one for one in received if "error" in one]
    assert (error["error"], error.get("contextId"), close_code) == (code, context, 1008)


def test_a_context_that_ended_makes_room(multi):
    with multi() as socket:
        for number in range(8):
            tell(socket, text="Hi ", context_id=str(number), flush=True)
            tell(socket, context_id=str(number), close_context=True)
            assert samples(until_final(socket, str(number)), str(number)) == 3 * FRAME


@pytest.fixture
def limits(monkeypatch):
    def set_(**changed):
        monkeypatch.setattr(speech_stream, "LIMITS", replace(speech_stream.LIMITS, **changed))

    return set_


@pytest.fixture
def stopped_engine(vendors, limits):
    """The engine, which makes no speech until its `holds_at` is None; little text may wait."""
    limits(pending_chars=600)
    engine = vendors.engine
    engine.holds_at, engine.step_s = engine.num_frames, 0
    yield engine
    engine.holds_at, engine.step_s = None, 0.001


def fill(socket, engine, name, num_messages):
    """Write what the engine takes ahead (512 characters), and then messages that wait."""
    before = set(engine.live)
    tell(socket, text="x" * 520, context_id=name)
    wait_for(lambda: set(engine.live) - before, 20)
    for _ in range(num_messages):
        tell(socket, text="x" * 100, context_id=name)


def test_a_context_whose_text_waits_delays_no_other(multi, stopped_engine):
    with multi() as socket:
        fill(socket, stopped_engine, "full", 9)
        before = set(stopped_engine.live)
        tell(socket, text="Hi ", context_id="other", flush=True)
        wait_for(lambda: set(stopped_engine.live) - before, 20)  # it is being spoken
        stopped_engine.holds_at = None
        tell(socket, close_socket=True)  # and drop what was not flushed
        received, code = rest(socket)
    assert samples(received, "other") == 3 * FRAME
    assert code == 1000


def test_a_context_that_is_too_far_ahead_ends_alone(multi, stopped_engine):
    with multi() as socket:
        fill(socket, stopped_engine, "full", 30)
        said = until_final(socket, "full")
        stopped_engine.holds_at = None
        tell(socket, text="x" * 100, context_id="full", flush=True)  # its rest is dropped
        tell(socket, text="Hi ", context_id="other", flush=True)
        tell(socket, context_id="other", close_context=True)
        other = until_final(socket, "other")
        tell(socket, context_id="full", close_context=True)  # its name is free again
        tell(socket, text="Hi ", context_id="full", flush=True)
        tell(socket, close_socket=True)
        again, code = rest(socket)
    assert [one["error"] for one in said if "error" in one] == ["context_full"]
    assert samples(other, "other") == 3 * FRAME
    assert not any(one.get("contextId") == "full" for one in other)
    assert (samples(again, "full"), code) == (3 * FRAME, 1000)


def test_contexts_that_ended_because_they_were_full_are_limited_too(multi, stopped_engine):
    with multi() as socket:
        for name in "abcde":
            fill(socket, stopped_engine, name, 30)
            until_final(socket, name)
        tell(socket, text="Hi ", context_id="f")
        received, code = rest(socket)
    assert (received[-1]["error"], code) == ("too_many_contexts", 1008)


def test_closing_drops_only_what_was_not_flushed(multi, stopped_engine):
    with multi() as socket:
        tell(socket, text="Hello ", context_id="a", flush=True)
        tell(socket, text="there ", context_id="a")
        tell(socket, context_id="a", close_context=True)
        stopped_engine.holds_at = None
        said = until_final(socket, "a")
    assert samples(said, "a") == 6 * FRAME


def test_closing_a_context_whose_text_waits_ends_it(multi, stopped_engine):
    with multi() as socket:
        fill(socket, stopped_engine, "a", 9)
        tell(socket, context_id="a", close_context=True)
        said = until_final(socket, "a")  # although the engine makes nothing
    assert samples(said, "a") == 0
