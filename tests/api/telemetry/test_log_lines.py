"""Log lines name their call, in text and in JSON, and never have its content."""

from __future__ import annotations

import io
import json
import logging

import httpx
import pytest

from izwi.request.correlation import Correlation
from izwi_api.serve.app import create_app
from izwi_api.serve.process_log import log_as_the_server
from izwi_api.settings import LogSettings, Settings
from izwi_api.telemetry.calls import CallObserver, call_id_of, current_call, traceparent_of
from izwi_api.telemetry.log_lines import JsonLines, TextLines
from tests.api.conftest import FakeChat, FakeEngine, FakeRegistry, FakeSpeech

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(params=[TextLines, JsonLines])
def lines(request):
    """What the server's loggers write, as a function that returns the lines so far."""
    stream, formatter = io.StringIO(), request.param()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = logging.getLogger("izwi_api")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield lambda: stream.getvalue().splitlines()
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture
async def http(tmp_path):
    engine, registry = FakeEngine(alive=True), FakeRegistry(tts=FakeSpeech(), chat=FakeChat())
    app = create_app(engine, registry, Settings(home=tmp_path))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        client.engine = engine
        yield client


def speech(text="A hidden word."):
    return {"model": "tts", "voice": "Ann", "input": text, "response_format": "pcm"}


async def test_a_call_has_one_line_with_its_id_and_phases(http, lines):
    headers = {"x-request-id": "call-7", "traceparent": TRACEPARENT}
    answer = await http.post("/v1/audio/speech", json=speech(), headers=headers)
    assert answer.headers["x-request-id"] == "call-7"
    (line,) = lines()
    assert "hidden" not in line
    assert "text_to_speech" in line
    if not line.startswith("{"):
        assert line.endswith("[call-7]")
        assert "queue=" in line
        return
    read = json.loads(line)
    assert read["request_id"] == "call-7"
    assert read["trace_id"] == TRACEPARENT[3:35]
    assert read["route"] == "/v1/audio/speech"
    assert read["status"] == 200
    assert read["model"] == "tts"
    assert sum(read["phases_s"].values()) == pytest.approx(read["total_s"], abs=1e-4)
    assert read["audio_s"] == pytest.approx(len(answer.content) / 48_000, abs=1e-3)
    assert read["first_audio_s"] <= read["total_s"]


async def test_an_error_names_its_call(http, lines):
    body = {"model": "chat", "messages": [{"role": "user", "content": "hidden \x01"}]}
    headers = {"x-request-id": "call-8"}
    answer = await http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 500
    assert answer.headers["x-request-id"] == "call-8"
    failed, *_, ended = lines()
    if ended.startswith("{"):
        read = [json.loads(failed), json.loads(ended)]
        assert [line["request_id"] for line in read] == ["call-8"] * 2
        assert "the tensor broke" in read[0]["exception"]
        assert read[1]["error"] == "internal_error"
    else:
        assert failed.endswith("request failed: /v1/chat/completions [call-8]")
        assert "error=internal_error" in ended
        assert ended.endswith("[call-8]")
    assert "hidden" not in "".join(lines())


async def test_a_call_without_a_model_has_no_line(http, lines):
    assert (await http.get("/v1/models")).status_code == 200
    assert lines() == []


async def test_requests_to_the_engine_name_the_call(http):
    seen, submit_all = [], http.engine.submit_all

    def submitted(requests):
        seen.extend(requests)
        return submit_all(requests)

    http.engine.submit_all = submitted
    headers = {"x-request-id": "call-9", "traceparent": TRACEPARENT}
    await http.post("/v1/audio/speech", json=speech("One. Two."), headers=headers)
    assert len(seen) == 2
    assert {request.correlation for request in seen} == {Correlation("call-9", TRACEPARENT)}
    assert len({request.request_id for request in seen}) == 2
    assert current_call.get() is None, "a call must not outlive its request"


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "a\nb", "é", "<script>"])
def test_an_id_that_does_not_fit_a_log_line_is_replaced(given):
    made = call_id_of(given)
    assert made.startswith("req_")
    assert made != call_id_of(given)


@pytest.mark.parametrize(
    "given",
    [
        TRACEPARENT.upper(),
        "ff" + TRACEPARENT[2:],
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01",
        TRACEPARENT[:-1],
        "nonsense",
        None,
    ],
)
def test_a_broken_trace_context_counts_as_none(given):
    assert traceparent_of(given) == ""


def test_a_line_of_another_process_names_the_call_that_it_is_given():
    record = logging.LogRecord("izwi", logging.ERROR, "", 0, "it failed: %d", (7,), None)
    record.correlation = Correlation("call-3", TRACEPARENT)
    read = json.loads(JsonLines().format(record))
    assert read["message"] == "it failed: 7"
    assert read["request_id"] == "call-3"
    assert read["trace_id"] == TRACEPARENT[3:35]
    assert read["span_id"] == TRACEPARENT[36:52]
    assert TextLines().format(record).endswith("it failed: 7 [call-3]")


def test_an_exception_is_part_of_its_line():
    try:
        raise ValueError("broken\npipe")
    except ValueError as error:
        info = type(error), error, error.__traceback__
    record = logging.LogRecord("izwi", logging.ERROR, "", 0, "it failed", (), info)
    line = JsonLines().format(record)
    assert "\n" not in line
    assert json.loads(line)["exception"].endswith("ValueError: broken\npipe")
    assert "request_id" not in json.loads(line)


@pytest.mark.parametrize(("name", "kind"), [("text", TextLines), ("json", JsonLines)])
def test_server_logs_in_its_format_and_with_its_levels(monkeypatch, name, kind):
    root, engine = logging.RootLogger(logging.WARNING), logging.Logger("izwi.engine")
    monkeypatch.setattr(logging, "root", root)
    known = {"": root, None: root, "izwi.engine": engine}
    monkeypatch.setattr(logging, "getLogger", lambda name=None: known[name])
    log_as_the_server(LogSettings(name, {"": "error", "izwi.engine": "debug"}))
    (handler,) = root.handlers
    assert isinstance(handler.formatter, kind)
    assert root.level == logging.ERROR
    assert engine.level == logging.DEBUG


def test_a_caller_without_trace_gets_one_only_if_calls_are_traced():
    assert CallObserver().open_call("a").correlation == Correlation("a", "")
    traced = CallObserver(traces=True).open_call("a").correlation
    assert traceparent_of(traced.traceparent)
    inner = CallObserver(traces=True).open_call("a", TRACEPARENT).correlation
    assert inner.trace_id == TRACEPARENT[3:35]
    assert inner.span_id != TRACEPARENT[36:52], "the caller's span is its parent"
    assert CallObserver().open_call("a", TRACEPARENT).correlation.traceparent == TRACEPARENT
