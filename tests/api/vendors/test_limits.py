"""Keys, rates, quotas, sizes, metrics and the audit hold for all endpoints of all vendors."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.exceptions import ConnectionClosed, InvalidStatus

from izwi_api.settings import APIS
from izwi_api.vendors import load_vendors
from tests.api.conftest import wait_for

ELEVEN, DEEP, CALL = "/elevenlabs/v1", "/deepgram/v1", "/v1/telephony"
TTS, LONG = f"{ELEVEN}/text-to-speech/{{voice_id}}", 2 << 20
HELLO = {"json": {"text": "Hello"}}
WRITTEN = ['{"text": " "}', '{"text": "Hello "}']
LIVE = "encoding=linear16&sample_rate=16000"


@dataclass(frozen=True)
class Endpoint:
    """An endpoint, and how to ask it for something.

    Attributes:
        method: "WEBSOCKET" for sockets.
        route: Its template.
        ask: The body, as httpx takes it; the messages of a socket.
        spends: It is charged to a quota.
        large: A body over the limit; None if it reads none.
        query: Of its address.
    """

    method: str
    route: str
    ask: dict | list = field(default_factory=dict)
    spends: bool = False
    large: dict | None = None
    query: str = ""

    def __str__(self):
        return f"{self.method} {self.route}"

    @property
    def vendor(self):
        return next((name for name in APIS if f"/{name}" in self.route), None)

    @property
    def path(self):
        filled = self.route.replace("{voice_id}", "Ann").replace("{secret}", "ek_x.y")
        return f"{filled}?{self.query}" if self.query else filled


def spoken(route):
    return Endpoint("POST", route, HELLO, spends=True, large={"json": {"text": "a" * LONG}})


def form(name):
    return {"files": {name: ("a.wav", b"RIFF" + bytes(LONG))}}


def call(method, carrier):
    large = {"content": bytes(LONG)} if method == "POST" else None
    return Endpoint(method, f"{CALL}/{carrier}", large=large)


ENDPOINTS = [
    *(
        spoken(TTS + rest)
        for rest in ("", "/stream", "/with-timestamps", "/stream/with-timestamps")
    ),
    *(
        Endpoint("WEBSOCKET", f"{TTS}/{kind}stream-input", WRITTEN, spends=True)
        for kind in ("", "multi-")
    ),
    Endpoint("GET", f"{ELEVEN}/voices"),
    Endpoint("GET", "/elevenlabs/v2/voices"),
    Endpoint("GET", f"{ELEVEN}/voices/{{voice_id}}"),
    Endpoint("DELETE", f"{ELEVEN}/voices/{{voice_id}}"),
    Endpoint("POST", f"{ELEVEN}/voices/add", large=form("files")),
    Endpoint("GET", f"{ELEVEN}/models"),
    Endpoint("POST", f"{ELEVEN}/speech-to-text", "file", spends=True, large=form("file")),
    Endpoint("POST", f"{DEEP}/listen", "content", spends=True, large={"content": bytes(LONG)}),
    Endpoint(
        "WEBSOCKET", f"{DEEP}/listen", [bytes(64_000)], True, None, f"{LIVE}&endpointing=false"
    ),
    spoken(f"{DEEP}/speak"),
    Endpoint("WEBSOCKET", f"{DEEP}/speak", ['{"type": "Speak", "text": "Hello"}'], spends=True),
    *(call(method, carrier) for carrier in ("twilio", "vonage") for method in ("GET", "POST")),
    *(
        Endpoint("WEBSOCKET", f"{CALL}/{name}{end}")
        for name in APIS[2:]
        for end in ("", "/{secret}")
    ),
]
SOCKETS = [one for one in ENDPOINTS if one.method == "WEBSOCKET"]
REQUESTS = [one for one in ENDPOINTS if one.method != "WEBSOCKET"]


def shown(vendor, key):
    """The headers that present a key."""
    if key is None:
        return {}
    scheme = {"elevenlabs": ("xi-api-key", key), "deepgram": ("authorization", f"Token {key}")}
    return dict([scheme.get(vendor, ("authorization", f"Bearer {key}"))])


def code_of(vendor, body):
    """The code of an error in the vendor's format, which has nothing else."""
    match vendor:
        case "elevenlabs":
            assert body.keys() == {"detail"}
            return body["detail"]["status"]
        case "deepgram":
            assert body.keys() == {"err_code", "err_msg", "request_id"}
            return body["err_code"]
    assert body.keys() == {"error"}
    return body["error"]["code"]


INVALID = {"elevenlabs": "invalid_api_key", "deepgram": "INVALID_AUTH"}
TOO_MANY = {"elevenlabs": "too_many_concurrent_requests", "deepgram": "TOO_MANY_REQUESTS"}
SPENT = {"elevenlabs": "quota_exceeded", "deepgram": "ASR_PAYMENT_REQUIRED"}

NAMES = dict.fromkeys(("GET", "POST", "DELETE"), "izwi_http_requests_total")
NAMES["WEBSOCKET"] = "izwi_websocket_sessions_ended_total"


@pytest.fixture
def ask(http, vendors, tone_wav):
    """Ask an endpoint with a key; return the status and the error's code."""

    def asked(one, key, body=None):
        headers = shown(one.vendor, vendors.keys.get(key, key))
        if one.method == "WEBSOCKET":
            try:
                with vendors.connect(one.path, headers):
                    return 101, None
            except InvalidStatus as refused:
                answer = refused.response
                return answer.status_code, code_of(one.vendor, json.loads(answer.body))
        body = one.ask if body is None else body
        if body == "file":
            body = {"files": {"file": ("a.wav", tone_wav(2.0))}, "data": {"model_id": "scribe_v1"}}
        elif body == "content":
            body = {"content": tone_wav(2.0)}
        answer = http.request(one.method, one.path, headers=headers, **body)
        code = code_of(one.vendor, answer.json()) if answer.status_code >= 400 else None
        return answer.status_code, code

    return asked


def test_all_endpoints_are_here():
    known = {(one.method, one.route) for one in ENDPOINTS}
    served = {
        (method, route.path)
        for vendor in load_vendors(APIS)
        for router in vendor.routers
        for route in router.routes
        for method in (getattr(route, "methods", None) or {"WEBSOCKET"})
    }
    assert known == served


@pytest.mark.parametrize("key", [None, "wrong"])
def test_a_key_is_needed(ask, key):
    wanted = [(401, INVALID.get(one.vendor, "invalid_api_key")) for one in ENDPOINTS]
    assert dict(zip(map(str, ENDPOINTS), wanted, strict=True)) == {
        str(one): ask(one, key) for one in ENDPOINTS
    }


def test_a_rate_holds(ask):
    def refused(one):
        for _ in range(5):  # on a machine that stands still for a minute, a call is allowed again
            status, code = ask(one, "slower")
            if status == 429:
                return code
        return status

    keyed = [
        one for one in ENDPOINTS if "secret" not in one.route
    ]  # the webhook's key counts there
    assert {str(one): refused(one) for one in keyed} == {
        str(one): TOO_MANY.get(one.vendor, "rate_limit_exceeded") for one in keyed
    }


def test_a_quota_holds(ask):
    spend = [one for one in REQUESTS if one.spends]
    assert {str(one): ask(one, "poor") for one in spend} == {
        str(one): (429, SPENT[one.vendor]) for one in spend
    }


def test_a_body_has_a_largest_size(ask):
    read = [one for one in REQUESTS if one.large]
    found = {str(one): ask(one, "free", one.large) for one in read}
    assert {one: status for one, (status, _) in found.items()} == {str(one): 413 for one in read}


@pytest.mark.parametrize("one", [one for one in SOCKETS if one.spends], ids=str)
def test_a_quota_holds_in_a_socket(vendors, one):
    headers = shown(one.vendor, vendors.keys["poor"])
    received = []
    with vendors.connect(one.path, headers) as socket:
        for message in one.ask:
            socket.send(message)
        with suppress(ConnectionClosed):
            while True:
                received.append(socket.recv(60))
    assert "insufficient_quota" in received[-1] or "PAYMENT" in received[-1], received


def test_what_is_admitted_is_counted_and_audited(ask, http, vendors):
    admitted = [
        one for one in ENDPOINTS if not (one.method == "WEBSOCKET" and "telephony" in one.path)
    ]
    for one in admitted:  # a stream of a carrier needs its secret: test_calls.py
        status, _ = ask(one, "free")

        def is_audited(one=one, status=status):
            line = vendors.audited("free", one.route)
            return (line["method"], line["status"]) == (one.method, status)

        wait_for(is_audited)

    def uncounted():
        text = http.get("/metrics", headers=shown(None, vendors.keys["free"])).text
        counted = {
            (sample.name, sample.labels.get("route"))
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.value >= 1
        }
        return [str(one) for one in admitted if (NAMES[one.method], one.route) not in counted]

    wait_for(lambda: not uncounted())
