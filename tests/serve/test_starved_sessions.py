"""Sessions that stop in mid-sentence take nothing from others: real processes."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, suppress

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.api.served import served
from tests.serve.test_processes import figure

ASK = {"model": "izwi-tiny-tts", "voice": "amber", "response_format": "pcm"}
NUM_SESSIONS = 70  # more than the 64 places of a model, and the few waiting requests that are seen
TEXT_S = 12.0


def starve(socket) -> None:
    """Write half a sentence."""
    socket.send(json.dumps({"type": "session.config", "model": ASK["model"], "voice": "amber"}))
    socket.send(json.dumps({"type": "input.text", "text": "The house is near the "}))


def ending(socket) -> str:
    """Read to the end; the reason with which the server closed."""
    with suppress(ConnectionClosed):
        while True:
            socket.recv(timeout=60)
    return socket.close_reason


@pytest.mark.slow  # tests/engine/test_starved.py has the engine's part
def test_a_short_request_is_answered_with_70_starved_sessions(tmp_path) -> None:
    with (
        served(tmp_path, IZWI_DECODE_WORKERS="0", IZWI_STREAM_TEXT_S=f"{TEXT_S:g}") as server,
        ExitStack() as stack,
    ):
        address = server.url.replace("http", "ws", 1) + "/v1/audio/speech/stream"
        sockets = [stack.enter_context(connect(address)) for _ in range(NUM_SESSIONS)]
        for socket in sockets:
            starve(socket)
        until_s = time.monotonic() + 60
        while not (figure(server, "waiting") or 0) >= 5:
            assert time.monotonic() < until_s, "they do not starve"
            for socket in sockets:
                socket.send(json.dumps({"type": "input.text", "text": " "}))
            time.sleep(0.5)
        ask = ASK | {"input": "Hello there."}
        answer = httpx.post(server.url + "/v1/audio/speech", json=ask, timeout=60)
        assert answer.status_code == 200, answer.text
        assert len(answer.content) > 10_000
        for socket in sockets:  # white space is no reason to stay
            with suppress(ConnectionClosed):
                socket.send(json.dumps({"type": "input.text", "text": " "}))
        assert {ending(socket) for socket in sockets} == {"text_timeout"}
