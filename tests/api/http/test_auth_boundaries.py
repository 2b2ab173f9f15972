"""The middleware alone: which requests it admits, for headers and paths on both sides of a rule."""

from __future__ import annotations

import pytest

from izwi.errors import RateLimited
from izwi_api.http.auth import Auth, presented_key
from izwi_api.http.client_secrets import ClientSecrets
from izwi_api.http.errors import response_to
from izwi_api.usage.keys import KeyRing, add_key
from izwi_api.usage.limits import Clocks, KeyLimits
from tests.api.usage.test_limits import Clock


class Behind:
    """The app behind the middleware; keeps the scopes that reached it."""

    def __init__(self):
        self.scopes = []

    async def __call__(self, scope, receive, send):
        self.scopes.append(scope)
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})


async def ask(auth, method="POST", path="/v1/audio/speech", kind="http", protocols=(), **headers):
    """Return the status of the answer and its headers; 200 for an accepted WebSocket."""
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b""}

    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": kind, "path": path, "headers": named, "method": method, "state": {}}
    if kind == "websocket":
        scope |= {"subprotocols": list(protocols), "extensions": {"websocket.http.response": {}}}
    await auth(scope, receive, send)
    if not sent:
        return 200, {}
    start = sent[0]
    got = {name.decode(): value.decode() for name, value in start.get("headers", [])}
    return start.get("status", 403), got


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def keyed(tmp_path, clock):
    """The middleware over a keys file, the file, and the key of "ann" (2 requests a minute)."""
    file = tmp_path / "keys.toml"
    key = add_key(file, "ann", KeyLimits(2))
    return Auth(Behind(), KeyRing(file, clock=clock), (), None, Clocks(clock, clock)), file, key


async def test_limits_that_were_edited_hold_at_once(keyed, clock):
    auth, file, key = keyed
    mine = {"authorization": f"Bearer {key}"}
    reported = [await ask(auth, **mine) for _ in range(3)]
    assert [status for status, _ in reported] == [200, 200, 429]
    assert [headers["x-ratelimit-remaining-requests"] for _, headers in reported] == ["1", "0", "0"]
    file.write_text(file.read_text().replace("= 2", "= 5"))
    clock.now_s += 1.5
    reported = [await ask(auth, **mine) for _ in range(4)]
    assert [status for status, _ in reported] == [200, 200, 200, 429]
    assert reported[0][1]["x-ratelimit-limit-requests"] == "5"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/livez", 200),
        ("HEAD", "/readyz", 200),
        ("POST", "/livez", 401),
        ("GET", "/", 200),
        ("GET", "/page/app.js", 200),
        ("GET", "/pages", 401),
        ("GET", "/v1/models", 401),
        ("OPTIONS", "/", 401),
    ],
)
async def test_probes_and_the_page_need_no_key(keyed, method, path, status):
    assert (await ask(keyed[0], method, path))[0] == status


@pytest.mark.parametrize("kind", ["websocket", "http"])
async def test_a_live_session_without_any_secret_is_refused(tmp_path, clock, kind):
    file = tmp_path / "keys.toml"
    key = add_key(file, "ann", KeyLimits(2))
    secrets = ClientSecrets(tmp_path, clock)
    auth = Auth(Behind(), KeyRing(file, clock=clock), client_secrets=secrets)
    path = "/v1/realtime" if kind == "websocket" else "/v1/realtime/calls"
    assert (await ask(auth, path=path, kind=kind))[0] == 401
    assert (await ask(auth, path=path, kind=kind, authorization="Bearer ek_no.secret"))[0] == 401
    assert (await ask(auth, path=path, kind=kind, authorization=f"Bearer {key}"))[0] == 200


async def test_lifespan_events_pass_the_key_check(keyed):
    auth = keyed[0]
    await auth({"type": "lifespan"}, None, None)
    assert auth._app.scopes == [{"type": "lifespan"}]
    assert (await ask(auth, "GET", "/", kind="websocket"))[0] == 401


async def test_a_socket_shows_its_key_as_a_protocol_that_no_route_sees(keyed):
    auth, _, key = keyed
    offered = ("realtime", f"openai-insecure-api-key.{key}", "beta")
    assert (await ask(auth, kind="websocket", protocols=offered))[0] == 200
    assert auth._app.scopes[-1]["subprotocols"] == ["realtime", "beta"]
    assert (await ask(auth, kind="websocket", protocols=("realtime",)))[0] == 401


def shown(*authorization, protocols=()):
    headers = [(b"authorization", value.encode()) for value in authorization]
    return presented_key({"type": "http", "headers": headers, "subprotocols": list(protocols)})


def test_one_key_is_shown_or_none():
    assert shown("Bearer abc") == shown("bearer  abc ") == "abc"
    assert shown(protocols=["openai-insecure-api-key.abc", "x"]) == "abc"
    for nothing in ([], ["Basic abc"], ["Bearer "], ["Bearer abc", "Bearer abc"]):
        assert shown(*nothing) is None
    assert shown("Bearer abc", protocols=["openai-insecure-api-key.abc"]) is None
    assert shown("Basic abc", protocols=["openai-insecure-api-key.abc"]) is None


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://[broken"}, 403),
        ({"origin": "http://Here:8000"}, 200),
        ({"origin": "http://here:8001"}, 403),
        ({"origin": "https://a.example"}, 200),
        ({"origin": "https://proxied.example", "sec_fetch_site": "same-origin"}, 200),
        ({"origin": "https://evil.example", "sec_fetch_site": "cross-site"}, 403),
    ],
)
async def test_without_keys_pages_of_other_sites_ask_for_nothing(headers, status):
    auth = Auth(Behind(), KeyRing(None), ("https://a.example",))
    assert (await ask(auth, host="HERE:8000", **headers))[0] == status
    for method in ("GET", "HEAD", "OPTIONS"):
        assert (await ask(auth, method, host="HERE:8000", **headers))[0] == 200
    got, _ = await ask(auth, "GET", kind="websocket", host="here:8000", **headers)
    assert (got == 200) == (status == 200)
    anybody = Auth(Behind(), KeyRing(None), ("*",))
    assert (await ask(anybody, host="here:8000", **headers))[0] == 200


def test_a_wait_that_the_sdk_does_not_wait_is_not_tried_again():
    for seconds, retries in ((120, None), (121, "false")):
        answer = response_to(RateLimited("later", retry_after_s=seconds))
        assert (answer.status_code, answer.headers["retry-after"]) == (429, str(seconds))
        assert answer.headers.get("x-should-retry") == retries


async def test_other_processes_counts_are_looked_at_where_there_is_a_folder(tmp_path, clock):
    file = tmp_path / "keys.toml"
    key = add_key(file, "ann", KeyLimits(2))
    api_servers = [
        Auth(Behind(), KeyRing(file, clock=clock), (), folder, Clocks(clock, clock))
        for folder in (tmp_path / "counts", tmp_path / "counts", None)
    ]
    reported = [
        (await ask(services, authorization=f"Bearer {key}"))[0]
        for services in (*api_servers, *api_servers)
    ]
    assert reported == [200, 200, 200, 429, 429, 200]
