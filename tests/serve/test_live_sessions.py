"""Live sessions with real processes: how they drain, and what happens when a process ends."""

from __future__ import annotations

import base64
import json
import os
import signal
from contextlib import ExitStack, contextmanager, suppress

import httpx
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from izwi.audio.pcm import to_s16le
from izwi_api.usage.keys import add_key
from izwi_api.usage.limits import KeyLimits
from tests.api.conftest import wait_for
from tests.api.served import served
from tests.realtime.world import recorded

STREAM = "/v1/audio/transcriptions/stream"
REALTIME = "/v1/realtime?intent=transcription"
ASR = ("--model", "izwi-tiny-asr")


@contextmanager
def opened(server, path):
    with connect(server.url.replace("http", "ws", 1) + path, proxy=None) as socket:
        if path == REALTIME:
            assert json.loads(socket.recv(60))["type"] == "session.created"
        yield socket


def end_of(socket):
    """Read to the end; the close code that came, or None without one."""
    with suppress(ConnectionClosed):
        while True:
            socket.recv(timeout=60)
    return None if socket.protocol.close_rcvd is None else socket.protocol.close_rcvd.code


@pytest.mark.slow  # tests/api/http/test_drain.py has the same with speech
def test_sessions_have_time_to_end_and_are_then_closed_with_1001(tmp_path):
    with served(tmp_path, *ASR, "--drain-s", "5") as server, ExitStack() as stack:
        paths = (STREAM, REALTIME)
        ending, staying = (
            [stack.enter_context(opened(server, path)) for path in paths] for _ in range(2)
        )
        server.signal()
        wait_for(lambda: httpx.get(server.url + "/readyz").status_code == 503)
        with pytest.raises(InvalidStatus) as refused, opened(server, STREAM):
            pass
        assert refused.value.response.status_code == 503
        # what is open goes on
        ending[0].send('{"type": "session.close"}')
        ending[1].send('{"type": "input_audio_buffer.clear"}')
        assert json.loads(ending[1].recv(60))["type"] == "input_audio_buffer.cleared"
        assert end_of(ending[0]) == 1000
        assert [end_of(socket) for socket in staying] == [1001, 1001]
        assert server.process.wait(60) == 0
        assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
def test_the_second_signal_closes_with_1012(tmp_path):
    with served(tmp_path, *ASR, "--drain-s", "120") as server, ExitStack() as stack:
        sockets = [stack.enter_context(opened(server, path)) for path in (STREAM, REALTIME)]
        server.signal()
        wait_for(lambda: httpx.get(server.url + "/readyz").status_code == 503)
        server.signal()
        assert [end_of(socket) for socket in sockets] == [1012, 1012]
        server.process.wait(60)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    """A server with two API servers, three session slots and two keys with different limits."""
    folder = tmp_path_factory.mktemp("keyed")
    file = folder / "keys.toml"
    models = ("izwi-tiny-tts", "izwi-tiny-asr", "izwi-tiny-chat")
    options = ("--api-servers", "2", "--api-keys", str(file))
    options += tuple(word for name in models for word in ("--model", name))
    keys = [add_key(file, name, KeyLimits(sessions=n)) for name, n in (("few", 1), ("many", None))]
    with served(folder, *options, IZWI_MAX_SESSIONS="3") as server:
        yield server, *keys


def asking(server, key, path=STREAM):
    url = server.url.replace("http", "ws", 1) + path
    return connect(url, additional_headers={"authorization": f"Bearer {key}"}, proxy=None)


def test_a_key_has_so_many_sessions(keyed):
    server, few, many = keyed
    with asking(server, few):
        with pytest.raises(InvalidStatus) as refused, asking(server, few):
            pass
        answer = refused.value.response
        assert answer.status_code == 429
        assert json.loads(answer.body)["error"]["code"] == "rate_limit_exceeded"
        assert int(answer.headers["retry-after"]) > 0
        with asking(server, many), asking(server, many):
            pass

    def is_let_in():
        with suppress(InvalidStatus), asking(server, few):
            return True
        return False

    wait_for(is_let_in)  # its close frame is answered before its place is free


@pytest.mark.slow  # a stream of speech does so in test_engine_restart.py
def test_a_turn_in_which_the_engine_is_killed_is_answered(keyed):
    """Half of the question arrives before the engine's death, half after it."""
    server, _, many = keyed
    audio = to_s16le(np.concatenate([recorded("question"), np.zeros(24_000, np.float32)]))

    def say(part):
        for start in range(0, len(part), 9600):
            audio = base64.b64encode(part[start : start + 9600]).decode()
            socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))

    def is_ready():
        return httpx.get(server.url + "/readyz").status_code == 200

    with asking(server, many, "/v1/realtime?model=izwi-tiny-chat") as socket:
        heard = {"audio": {"input": {"transcription": {}}, "output": {"lead_ms": 0}}}
        socket.send(json.dumps({"type": "session.update", "session": heard}))
        say(audio[:48_000])
        while json.loads(socket.recv(60))["type"] != "input_audio_buffer.speech_started":
            pass
        (engine,) = server.processes("engine")
        os.kill(engine, signal.SIGKILL)
        wait_for(lambda: not is_ready())
        say(audio[48_000:])
        events = []
        while not events or events[-1]["type"] != "response.done":
            events.append(json.loads(socket.recv(120)))
        assert is_ready()
    (said,) = [
        event["transcript"] for event in events if "transcription.completed" in event["type"]
    ]
    assert "train" in said.lower()
    assert events[-1]["response"]["status"] == "completed", events[-1]
    sizes = [len(event["delta"]) for event in events if "output_audio.delta" in event["type"]]
    assert sum(sizes) > 48_000
    assert "error" not in [event["type"] for event in events]


def test_places_are_counted_over_api_servers_and_come_back_from_the_dead(keyed):
    server, _, many = keyed
    with ExitStack() as stack:

        def status():
            try:
                with asking(server, many):
                    return 101
            except InvalidStatus as refused:
                return refused.response.status_code
            except OSError:  # of an API server that is just killed
                return 0

        def place():
            with suppress(InvalidStatus):  # of an earlier session that is not quite closed
                sockets.append(stack.enter_context(asking(server, many)))
            return len(sockets) == 3

        sockets = []
        wait_for(place)
        for _ in range(6):  # whichever API server is asked
            assert status() == 503
        for pid in server.processes("api_server"):
            os.kill(pid, signal.SIGKILL)
        assert {end_of(socket) for socket in sockets} == {None}
        wait_for(lambda: status() == 101)
