"""Live sessions before real processes: how they drain, and how a server's end reaches them."""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tests.api.conftest import wait_for
from tests.api.served import served

STREAM = "/v1/audio/transcriptions/stream"
REALTIME = "/v1/realtime?intent=transcription"


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


def test_sessions_have_time_to_end_and_are_then_closed_with_1001(tmp_path):
    with served(tmp_path, "--drain-s", "5") as server, ExitStack() as stack:
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


def test_sessions_of_a_server_that_is_cut_off_are_told_to_come_back(tmp_path):
    """Its supervisor is killed: the API server ends by itself, and says so."""
    with served(tmp_path) as server, ExitStack() as stack:
        sockets = [stack.enter_context(opened(server, path)) for path in (STREAM, REALTIME)]
        server.process.send_signal(signal.SIGKILL)
        assert [end_of(socket) for socket in sockets] == [1012, 1012]


def test_the_second_signal_closes_with_1012(tmp_path):
    with served(tmp_path, "--drain-s", "120") as server, ExitStack() as stack:
        sockets = [stack.enter_context(opened(server, path)) for path in (STREAM, REALTIME)]
        server.signal()
        wait_for(lambda: httpx.get(server.url + "/readyz").status_code == 503)
        server.signal()
        assert [end_of(socket) for socket in sockets] == [1012, 1012]
        server.process.wait(60)


def test_places_are_counted_over_api_servers_and_come_back_from_the_dead(tmp_path):
    with (
        served(tmp_path, "--api-servers", "2", IZWI_MAX_SESSIONS="3") as server,
        ExitStack() as stack,
    ):
        sockets = [stack.enter_context(opened(server, STREAM)) for _ in range(3)]

        def status():
            try:
                with opened(server, STREAM):
                    return 101
            except InvalidStatus as refused:
                return refused.response.status_code
            except OSError:  # of an API server that is just killed
                return 0

        for _ in range(6):  # whichever API server is asked
            assert status() == 503
        for pid in server.processes("api_server"):
            os.kill(pid, signal.SIGKILL)
        assert {end_of(socket) for socket in sockets} == {None}
        wait_for(lambda: status() == 101)


def test_a_key_has_so_many_sessions(tmp_path):
    from izwi_api.http.keys import add_key
    from izwi_api.http.limits import KeyLimits

    file = tmp_path / "keys.toml"
    few, many = (add_key(file, n, KeyLimits(sessions=s)) for n, s in (("few", 1), ("many", None)))
    with served(tmp_path, "--api-keys", str(file)) as server:
        url = server.url.replace("http", "ws", 1) + STREAM

        def asking(key):
            return connect(url, additional_headers={"authorization": f"Bearer {key}"}, proxy=None)

        with asking(few):
            with pytest.raises(InvalidStatus) as refused, asking(few):
                pass
            answer = refused.value.response
            assert answer.status_code == 429
            assert json.loads(answer.body)["error"]["code"] == "rate_limit_exceeded"
            assert int(answer.headers["retry-after"]) > 0
            with asking(many), asking(many):
                pass

        def is_let_in():
            with suppress(InvalidStatus), asking(few):
                return True
            return False

        wait_for(is_let_in)  # its close frame is answered before its place is free
