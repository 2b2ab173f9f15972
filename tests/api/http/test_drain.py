"""Shutdown: running work finishes, new work is refused, and the second signal does not wait."""

from __future__ import annotations

import os
import signal
import socket
import threading
from contextlib import contextmanager

import httpx
import pytest
import websockets
from websockets.sync.client import connect

from izwi_api.http.host_check import is_own_name
from izwi_api.serve.app import create_app
from izwi_api.settings import Access, Settings
from tests.api.conftest import FakeEngine, FakeRegistry, FakeSpeech, listening, wait_for
from tests.api.served import served

SPEECH = "/v1/audio/speech"
TEXT = "The house is near the river and the road is long. " * 4
ASK = {"model": "izwi-tiny-tts", "input": TEXT, "voice": "amber", "response_format": "pcm"}
# minutes of audio, many times what any machine computes before the server is asked to stop
LONG_ASK = {**ASK, "input": TEXT * 18}


def read_slowly(url, seen, ask=LONG_ASK):
    with httpx.stream("POST", url + SPEECH, json=ask, timeout=60) as answer:
        seen["status"] = answer.status_code
        try:
            for piece in answer.iter_raw():
                seen["bytes"] = seen.get("bytes", 0) + len(piece)
            seen["whole"] = True
        except httpx.RemoteProtocolError:
            seen["whole"] = False


@contextmanager
def talking(folder, ask=LONG_ASK):
    """A server that is in the middle of a text, what is received of it, and its reader."""
    with served(folder, "--model", "izwi-tiny-tts", "--drain-s", "120") as server:
        seen = {}
        reader = threading.Thread(target=read_slowly, args=(server.url, seen, ask))
        reader.start()
        wait_for(lambda: seen.get("bytes"))
        yield server, seen, reader
        reader.join(60)


def test_a_server_that_was_asked_to_leave_finishes_its_work(tmp_path):
    with talking(tmp_path, {**ASK, "input": TEXT[:100]}) as (server, seen, reader):
        server.signal()
        reader.join(60)
        assert seen["whole"]
        assert server.process.wait(60) == 0


@pytest.mark.slow  # test_supervisor_times.py has the signals
def test_new_work_is_refused_and_the_second_signal_is_obeyed_at_once(tmp_path):
    with talking(tmp_path) as (server, seen, reader):
        server.signal()
        wait_for(lambda: httpx.get(server.url + "/readyz").status_code == 503)
        assert httpx.get(server.url + "/livez").status_code == 200
        refused = httpx.post(server.url + SPEECH, json=ASK)
        assert refused.status_code == 503
        assert 1 <= int(refused.headers["retry-after"]) <= 120
        assert set(refused.json()["error"]) == {"message", "type", "param", "code"}
        assert refused.headers["connection"] == "close"
        server.signal(signal.SIGTERM)
        server.process.wait(60)  # the drain alone would be 120 s
        reader.join(60)
        assert not seen["whole"]


@pytest.mark.slow
def test_an_engine_that_dies_while_the_server_leaves_is_not_waited_for(tmp_path):
    """No other engine starts: answers end now, not after IZWI_RESUME_WITHIN_S or the drain."""
    with talking(tmp_path) as (server, seen, reader):
        server.signal()
        wait_for(lambda: httpx.get(server.url + "/readyz").status_code == 503)
        (engine,) = server.processes("engine")
        os.kill(engine, signal.SIGKILL)
        server.process.wait(60)  # the drain alone would be 120 s
        reader.join(60)
        assert seen["whole"] is False


@pytest.mark.slow
def test_an_answer_that_is_not_whole_in_time_leaves_no_traceback(tmp_path):
    with served(tmp_path, "--drain-s", "0.3", "--in-process") as server:
        with reading(server) as seen:
            server.signal()
            assert server.process.wait(60) == 0
        assert_cut_off(server, seen)


@pytest.mark.slow
def test_answers_and_sessions_end_when_time_is_up(tmp_path):
    with served(tmp_path, "--drain-s", "2") as server:
        url = server.url.replace("http", "ws") + "/v1/audio/speech/stream"
        with reading(server) as seen, connect(url, proxy=None) as session:
            figures = httpx.get(server.url + "/metrics").text
            assert "izwi_websocket_sessions 1.0" in figures
            server.signal()
            wait_for(lambda: httpx.get(server.url + "/readyz").status_code == 503)
            with pytest.raises(websockets.exceptions.InvalidStatus):
                connect(url, proxy=None).__enter__()
            with pytest.raises(websockets.exceptions.ConnectionClosed) as closed:
                session.recv(timeout=60)
        assert closed.value.rcvd.code == 1001
        assert server.process.wait(60) == 0
        assert_cut_off(server, seen)


@contextmanager
def reading(server):
    """Read a long answer in a thread; yields what was received of it."""
    seen = {}
    reader = threading.Thread(target=read_slowly, args=(server.url, seen))
    reader.start()
    wait_for(lambda: seen.get("bytes"))
    yield seen
    reader.join(60)


def assert_cut_off(server, seen):
    assert seen["whole"] is False
    log = server.log.read_text()
    assert "timeout graceful shutdown exceeded" in log
    assert "Traceback" not in log


def test_figures_of_sessions(tmp_path):
    app = create_app(FakeEngine(), FakeRegistry(tts=FakeSpeech()), Settings(home=tmp_path))
    with listening(app, ws="auto") as port:
        with connect(f"ws://127.0.0.1:{port}/v1/audio/speech/stream", proxy=None) as session:
            session.send('{"type": "session.close"}')
            with pytest.raises(websockets.exceptions.ConnectionClosedOK):
                session.recv(timeout=60)

        def figures():
            return httpx.get(f"http://127.0.0.1:{port}/metrics").text

        label = 'route="/v1/audio/speech/stream"'
        wait_for(lambda: "izwi_websocket_sessions 0.0" in figures())
        wait_for(lambda: f'izwi_websocket_sessions_ended_total{{code="1000",{label}}}' in figures())
        assert f'izwi_websocket_messages_total{{direction="in",{label}}} 1.0' in figures()


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("localhost:8000", True),
        ("LOCALHOST", True),
        ("a.localhost:1", True),
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("10.0.0.7", True),
        ("speech.example", True),
        ("evil.example", False),
        ("evil.example:8000", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("xlocalhost", False),
        ("", False),
        ("::1", True),
        ("[::1].evil.example", False),
        ("[evil.example]", False),
    ],
)
def test_loopback_names_are_allowed_hosts(host, own):
    assert is_own_name(host, {"speech.example"}) is own


def test_a_page_that_renames_this_machine_is_refused(tmp_path):
    settings = Settings(home=tmp_path, access=Access(allowed_hosts=("speech.example",)))
    app = create_app(FakeEngine(), FakeRegistry(tts=FakeSpeech()), settings)
    with listening(app, ws="auto") as port:
        url = f"http://127.0.0.1:{port}"

        def ask(host, path="/v1/models"):
            return httpx.get(url + path, headers={"host": host})

        assert ask("speech.example").status_code == 200
        assert ask(f"127.0.0.1:{port}").status_code == 200
        refused = ask(f"evil.example:{port}")
        assert (refused.status_code, refused.json()["error"]["code"]) == (421, "unknown_host")
        assert refused.headers["x-request-id"]
        assert ask("evil.example", "/livez").status_code == 200  # probes tell nothing
        with pytest.raises(websockets.exceptions.InvalidStatus) as closed:
            connect(
                f"ws://evil.example:{port}/v1/audio/speech/stream",
                sock=socket.create_connection(("127.0.0.1", port)),
                proxy=None,
            ).__enter__()
        assert closed.value.response.status_code == 421
