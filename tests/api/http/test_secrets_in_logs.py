"""No secret of a caller is in any log, whatever the endpoint and the way in which it came."""

from __future__ import annotations

import base64
import io
import json
import logging
import re
from types import SimpleNamespace

import httpx
import pytest
from fastapi.routing import APIRoute, APIWebSocketRoute
from websockets.exceptions import InvalidHandshake, InvalidMessage, WebSocketException
from websockets.sync.client import connect

from izwi_api.http.server import server_config
from izwi_api.serve.app import create_app
from izwi_api.serve.redaction import redact_records, redacted
from izwi_api.settings import APIS, Access, Settings
from izwi_api.telemetry.log_lines import JsonLines, TextLines
from izwi_api.usage.keys import add_key
from izwi_api.usage.limits import KeyLimits
from tests.api.conftest import FakeChat, FakeEngine, FakeRegistry, running
from tests.api.routes.test_speech_stream import FakeWritableSpeech
from tests.api.vendors.streaming import FakeStreaming

PLAIN = "hunter2-SECRET-of-a-caller"  # a key of the operator's own choice, or a wrong one


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """A server whose log lines of all loggers and levels are kept, as text and as JSON."""
    home = tmp_path_factory.mktemp("home")
    key = add_key(home / "keys.toml", "ann", KeyLimits())
    audit = home / "audit.jsonl"
    settings = Settings(
        home=home,
        apis=APIS,
        batches=True,
        access=Access(api_keys_file=home / "keys.toml", audit_log=audit),
    )
    registry = FakeRegistry(tts=FakeWritableSpeech(), asr=FakeStreaming(), chat=FakeChat())
    app = create_app(FakeEngine(), registry, settings)
    config = server_config(app, "127.0.0.1", 0, 30.0)
    handlers, stream = [], io.StringIO()
    for formatter in (TextLines(), JsonLines()):
        handlers.append(logging.StreamHandler(stream))
        handlers[-1].setFormatter(formatter)
    names = [None, "uvicorn", "uvicorn.access", "uvicorn.error"]
    loggers = [logging.getLogger(name) for name in names]
    before = [(one.level, one.handlers, one.propagate) for one in loggers]
    for one in loggers:
        one.handlers, one.propagate = list(handlers), False
        one.setLevel(logging.INFO if one.name == "root" else logging.DEBUG)
    factory = logging.getLogRecordFactory()
    redact_records()
    try:
        with running(config) as port, httpx.Client(timeout=60) as http:
            parts = {"app": app, "port": port, "key": key, "http": http}
            yield SimpleNamespace(**parts, text=stream.getvalue, audit=audit.read_text)
    finally:
        logging.setLogRecordFactory(factory)
        for one, (level, its_handlers, propagate) in zip(loggers, before, strict=True):
            one.handlers, one.propagate = its_handlers, propagate
            one.setLevel(level)


def routes_of(app):
    """Paths of all endpoints, with their methods; a WebSocket has none."""
    for included in app.routes:
        router = getattr(included, "original_router", None)  # FastAPI keeps included ones apart
        for route in [included] if router is None else router.routes:
            if isinstance(route, APIRoute):
                yield route.path, sorted(route.methods)
            elif isinstance(route, APIWebSocketRoute):
                yield route.path, []


def ways(secret):
    """Headers, query and subprotocols with which a secret may come."""
    password = base64.b64encode(f"izwi:{secret}".encode()).decode()
    yield {"authorization": f"Bearer {secret}"}, {}, []
    yield {"authorization": f"Token {secret}", "cookie": f"session={secret}"}, {}, []
    yield {"authorization": f"Basic {password}"}, {}, []
    yield {"xi-api-key": secret, "x-twilio-signature": secret}, {}, []
    yield {}, {"api_key": secret, "token": secret, "single_use_token": secret}, []
    yield {}, {secret: ""}, []
    yield {}, {}, ["token", secret]
    yield {}, {}, ["realtime", f"openai-insecure-api-key.{secret}"]


def call(logged, path, methods, way):
    headers, query, protocols = way
    for method in methods:
        url = httpx.URL(f"http://127.0.0.1:{logged.port}{path}", params=query)
        logged.http.request(method, url, headers=headers, content=b"{}")
    if methods:
        return
    url = str(httpx.URL(f"ws://127.0.0.1:{logged.port}{path}", params=query))
    try:
        with connect(
            url, additional_headers=headers, subprotocols=protocols or None, proxy=None
        ) as socket:
            socket.send("{")
    except (InvalidHandshake, InvalidMessage, WebSocketException):
        pass


def test_no_vendors_endpoint_logs_a_secret(logged) -> None:
    for number, (path, methods) in enumerate(routes_of(logged.app)):
        if is_odd(path):
            way = list(ways(PLAIN))[number % len(list(ways(PLAIN)))]
            call(logged, re.sub(r"{[^}]*}", "ek_payload.c2lnbmF0dXJl", path), methods[:1], way)
    for path in ("/v1/images/results/", "/v1/telephony/twilio/", "/v1/telephony/vonage/"):
        call(logged, path + PLAIN, ["GET"], ({}, {}, []))
        call(logged, path + PLAIN, [], ({}, {}, []))
    assert "/v1/telephony/twilio/***" in logged.text()
    check_logs(logged, {PLAIN, "ek_payload"})


@pytest.mark.slow
def test_no_endpoint_logs_a_secret(logged) -> None:
    secrets = {logged.key, PLAIN, "ek_payload.c2lnbmF0dXJl"}
    paths = list(routes_of(logged.app))
    assert len(paths) > 40
    for path, methods in paths:
        shown = re.sub(r"{[^}]*}", "x", path)
        for secret in secrets:
            for way in list(ways(secret))[:: 1 if is_odd(path) else 3]:
                call(logged, shown, methods, way)
        for secret in ("ek_payload.c2lnbmF0dXJl", logged.key):
            call(logged, re.sub(r"{[^}]*}", secret, path), methods, ({}, {}, []))
    assert logged.text().count("/v1/models") > 2  # it was logged
    check_logs(logged, secrets)


def is_odd(path):
    """Whether keys come to an endpoint in other ways than OpenAI's."""
    return path.startswith(("/elevenlabs", "/deepgram", "/v1/telephony", "/v1/realtime"))


def check_logs(logged, secrets):
    encoded = {base64.b64encode(f"izwi:{secret}".encode()).decode() for secret in secrets}
    for kept in (logged.text(), logged.audit()):
        for secret in secrets | encoded:
            assert secret not in kept, kept[max(0, kept.index(secret) - 300) :][:600]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            '1.2.3.4:5 - "GET /v1/models?api_key=abc HTTP/1.1"',
            '1.2.3.4:5 - "GET /v1/models HTTP/1.1"',
        ),
        ("wss://ann:pass@host/v1", "wss://***@host/v1"),
        ("[(b'authorization', b'Bearer abc def')]", "[(b'authorization', b'***')]"),
        ("< Xi-Api-Key: abc def\r\n< Host: a", "< Xi-Api-Key: ***\r\n< Host: a"),
        ('{"xi_api_key": "abc"}', '{"xi_api_key": "***"}'),
        ("sent Bearer abcdefghijk to it", "sent Bearer *** to it"),
        ("/v1/telephony/twilio/abc", "/v1/telephony/twilio/***"),
    ],
)
def test_what_looks_like_a_secret_is_taken_out(text, shown) -> None:
    assert redacted(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "izwi_api.http.errors request failed: /v1/audio/speech",
        '  File "/home/ann/izwi/api/izwi_api/routes/realtime_calls.py", line 5, in create_call_of',
        "first token after 11 ms, 5 tokens a second",
        "izwi-tiny-tts: 512 pages of 64 KiB for keys and values, 32 MiB",
        "why? Because it is so",
    ],
)
def test_other_text_stays(text) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize("piece", ["?", "a-", "://", "ek_", "izwi_", "api-", "=", "'", "Bearer "])
def test_long_text_takes_no_time(piece) -> None:  # quadratic, it would be minutes
    assert len(redacted(piece * 60_000 + "x")) <= 60_000 * len(piece) + 9


def test_a_traceback_has_no_secret_and_numbers_stay_numbers() -> None:
    factory = logging.getLogRecordFactory()
    redact_records()
    try:
        try:
            raise ValueError(f"no answer from https://ann:{PLAIN}@host/?token={PLAIN}")
        except ValueError as error:
            args = ("izwi_api", logging.ERROR, "f", 1, "%(at)d failed", ({"at": 5},))
            record = logging.getLogRecordFactory()(*args, (type(error), error, error.__traceback__))
    finally:
        logging.setLogRecordFactory(factory)
    assert record.getMessage() == "5 failed"
    line = json.loads(JsonLines().format(record))
    assert "no answer from https://***@host/" in line["exception"]
    assert PLAIN not in TextLines().format(record) + json.dumps(line)
