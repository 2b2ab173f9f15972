"""A client that repeats its errors does not fill the log."""

from __future__ import annotations

import asyncio
import io
import logging

import pytest

from izwi_api.realtime import dialogue
from izwi_api.serve.process_log import LimitRepeats, log_as_the_server
from izwi_api.settings import LogSettings
from tests.realtime.test_session_limits import FakeWire, no_check, serve, until

BAD = [
    {"type": "response.create", "response": {"conversation": "none"}},  # it fails: no model speaks
    {"type": "nonsense"},
    {"type": "input_audio_buffer.clear"},  # a good one: so many bad ones in a row end the session
]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def log():
    """A log of the server's own kind, and its clock."""
    handler, clock = logging.StreamHandler(io.StringIO()), Clock()
    handler.addFilter(LimitRepeats(clock))
    logger = logging.getLogger("izwi_api")
    logger.addHandler(handler)
    logger.propagate = False  # pytest would keep all of them
    yield handler.stream, clock
    logger.propagate = True
    logger.removeHandler(handler)


async def test_thousands_of_bad_events_give_a_few_log_lines(log, monkeypatch) -> None:
    monkeypatch.setattr(dialogue, "transcription_of", lambda *_: None)
    monkeypatch.setattr(dialogue, "takes_audio", lambda *_: False)
    monkeypatch.setattr("izwi_api.realtime.session.check_settings", no_check)
    stream, _ = log
    wire = FakeWire(BAD * 800)
    running = asyncio.create_task(serve(wire))

    def count(kind: str) -> int:
        return sum(event["type"] == kind for event in wire.events)

    await until(lambda: not wire.to_come and count("response.done") == count("response.created"))
    running.cancel()
    assert count("response.created") > 100  # four at once, the others are refused
    assert count("error") >= 800
    lines = stream.getvalue().splitlines()
    assert 0 < len(lines) <= 20
    assert all("a response failed" in line for line in lines)


def test_omitted_log_lines_are_counted(log) -> None:
    stream, clock = log
    logger = logging.getLogger("izwi_api.somewhere")

    def fail(number: int) -> None:
        logger.warning("it failed: %s", f"{number} %s")

    for n in range(1000):
        fail(n)
    logger.warning("another line of code")
    logger.info("what is no fault is not counted")
    clock.now = 3.1  # one comes back every three seconds
    fail(1000)
    fail(1001)
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["it failed: 0 %s", "it failed: 1 %s"]
    assert lines[20:] == [
        "another line of code",
        "it failed: 1000 %s (980 more like this were left out)",
    ]


def test_server_logging_limits_repeated_lines(monkeypatch) -> None:
    root = logging.RootLogger(logging.WARNING)
    monkeypatch.setattr(logging, "root", root)
    monkeypatch.setattr(logging, "getLogger", lambda *_: root)
    for _ in range(2):
        log_as_the_server(LogSettings())
    (handler,) = root.handlers
    assert [type(known) for known in handler.filters] == [LimitRepeats]
