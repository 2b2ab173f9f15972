"""A caller that does not read a long text costs only what may be buffered."""

from __future__ import annotations

import json
import socket

import httpx
import pytest

from izwi_api.services.speech.synthesis import PIECES_AHEAD
from tests.api.conftest import wait_for
from tests.api.served import served
from tests.serve.test_processes import ASK, SPEECH, figure

NUM_PIECES = 80
# 4,000 characters; every sentence is a piece of its own, of about three seconds
TEXT = " ".join(f"The house number {n} is near the river." for n in range(100, 100 + NUM_PIECES))


@pytest.mark.slow  # as much is computed as the system's buffers of a connection take
def test_a_text_that_is_not_read_is_not_computed(tmp_path) -> None:
    with (
        served(tmp_path, IZWI_DECODE_WORKERS="0") as server,
        socket.socket() as reader,
    ):
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", server.port))
        body = json.dumps(ASK | {"input": TEXT}).encode()
        head = f"POST {SPEECH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        before = figure(server, "prefix_positions_asked_total") or 0
        reader.sendall(head.encode() + body)
        wait_for(lambda: figure(server, "running") == PIECES_AHEAD)
        wait_for(lambda: figure(server, "running") == figure(server, "waiting") == 0)
        started = (figure(server, "prefix_positions_asked_total") or 0) - before
        answer = httpx.post(server.url + SPEECH, json=ASK | {"input": TEXT[:40]}, timeout=60)
        assert answer.status_code == 200
        whole = (figure(server, "prefix_positions_asked_total") or 0) - before - started
        # the system's buffers of a connection take some megabytes, so some pieces follow
        assert 0.8 * PIECES_AHEAD * whole < started < 0.7 * NUM_PIECES * whole
        assert figure(server, "running") == 0
