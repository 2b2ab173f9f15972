"""Keys: the file, servers that require them, and the audit log."""

from __future__ import annotations

import asyncio
import fcntl
import hmac
import json
import stat
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import httpx
import openai
import pytest
from msgspec.structs import replace
from starlette.responses import PlainTextResponse
from typer.testing import CliRunner

from izwi.errors import InvalidRequest, QuotaExceeded
from izwi.fairness.callers import current_caller
from izwi.inputs.speech import SpeechInput
from izwi_api.cli.main import app as cli
from izwi_api.cli.serve import check_exposure
from izwi_api.environment import read_access
from izwi_api.http.audit import Audit, AuditLog
from izwi_api.http.auth import Auth
from izwi_api.serve.app import create_app
from izwi_api.services.models.served import ServedModels
from izwi_api.services.speech.writer import open_speech_writer
from izwi_api.settings import Access, Settings
from izwi_api.usage import keys as key_ring
from izwi_api.usage.keys import KeyRing, add_key, digest_of, new_key, parse_keys, remove_key
from izwi_api.usage.limits import Clocks, KeyLimits, Meter
from izwi_api.usage.metering import Usage, current_usage
from tests.api.conftest import FakeEngine, FakeRegistry, FakeSpeech, FakeTranscription, listening
from tests.api.routes.test_speech_stream import FakeWritableSpeech

SPEECH = "/v1/audio/speech"
TRANSCRIPTIONS = "/v1/audio/transcriptions"
ASK = {"model": "tts", "input": "hello", "voice": "Ann", "response_format": "pcm"}
SECRET = "open-sesame-0123456789"


def bearer(key):
    return {"authorization": f"Bearer {key}"}


class AskedSpeech(FakeSpeech):
    def prepare_speech(self, request_id, model, ask):
        return replace(super().prepare_speech(request_id, model, ask), ask=ask)


class AskedTranscription(FakeTranscription):
    def prepare_transcription(self, request_id, model, ask):
        return replace(super().prepare_transcription(request_id, model, ask), ask=ask)


class Clock:
    def __init__(self):
        self.now_s = 1_000.0

    def __call__(self):
        return self.now_s


# ---- the file ------------------------------------------------------------------------------


def test_a_key_that_was_added_opens_and_the_file_does_not_hold_it(tmp_path):
    path = tmp_path / "deep" / "keys.toml"
    limits = KeyLimits(60, 1000, 90.5)
    key = add_key(path, "alice", limits)
    other = add_key(path, "bob", KeyLimits())
    assert len(key) > 43
    assert key != other
    text = path.read_text()
    assert key not in text
    assert key.removeprefix("izwi_") not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = KeyRing(path).find(key)
    assert (found.name, found.limits) == ("alice", limits)
    assert KeyRing(path).find(other).name == "bob"
    assert digest_of(key).hex() not in repr(found)


def test_adding_keeps_what_the_file_says(tmp_path):
    path = tmp_path / "keys.toml"
    add_key(path, "alice", KeyLimits())
    before = "# ours\n" + path.read_text().rstrip("\n")
    path.write_text(before)
    add_key(path, "bob", KeyLimits())
    assert path.read_text().startswith(before + "\n")
    with pytest.raises(InvalidRequest, match="already"):
        add_key(path, "alice", KeyLimits())
    with pytest.raises(InvalidRequest, match="name"):
        add_key(path, "../x", KeyLimits())
    with pytest.raises(InvalidRequest, match="above 0"):
        add_key(path, "carol", KeyLimits(audio_seconds_per_day=0.0))
    assert list(tomllib.loads(path.read_text())) == ["alice", "bob"]


def test_many_add_at_once_and_none_is_lost(tmp_path):
    path = tmp_path / "keys.toml"
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda n: add_key(path, f"k{n}", KeyLimits()), range(24)))
    ring = KeyRing(path)
    assert [ring.find(key).name for key in keys] == [f"k{n}" for n in range(24)]


def test_two_writers_of_one_key_name_take_turns(tmp_path):
    path = tmp_path / "keys.toml"
    with path.open("a") as first, ThreadPoolExecutor(1) as pool:
        fcntl.flock(first, fcntl.LOCK_EX)
        second = pool.submit(add_key, path, "alice", KeyLimits())
        with pytest.raises(TimeoutError):
            second.result(timeout=0.2)
        first.write(f"[alice]\n{GOOD}")
        first.flush()
        fcntl.flock(first, fcntl.LOCK_UN)
        with pytest.raises(InvalidRequest, match="already"):
            second.result(timeout=60)
    assert list(tomllib.loads(path.read_text())) == ["alice"]


GOOD = "sha256 = '" + "0" * 64 + "'\n"
BROKEN = {
    "not TOML": ("[a", "not valid TOML"),
    "no hash": ("[a]\n", "sha256"),
    "short hash": ("[a]\nsha256 = 'abc'\n", "sha256"),
    "a name with spaces": (f"['a b']\n{GOOD}", "name"),
    "no table": ("a = 1\n", "table"),
    "a limit misspelt": (f"[a]\n{GOOD}request_per_minute = 1\n", "request_per_minute"),
    "a limit of zero": (f"[a]\n{GOOD}requests_per_minute = 0\n", "requests_per_minute"),
    "a limit in words": (f"[a]\n{GOOD}characters_per_day = 'many'\n", "characters_per_day"),
    "a limit that is true": (f"[a]\n{GOOD}characters_per_day = true\n", "characters_per_day"),
    "no limit": (f"[a]\n{GOOD}audio_seconds_per_day = inf\n", "audio_seconds_per_day"),
    "one key twice": (f"[a]\n{GOOD}[b]\n{GOOD}", "same key"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_says_what_is_wrong(name):
    text, message = BROKEN[name]
    with pytest.raises(InvalidRequest, match=message):
        parse_keys(text, "keys.toml")


def test_a_file_that_others_may_write_is_refused(tmp_path):
    path = tmp_path / "keys.toml"
    add_key(path, "alice", KeyLimits())
    path.chmod(0o620)
    with pytest.raises(InvalidRequest, match="chmod 600"):
        KeyRing(path)


def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(tmp_path, caplog):
    path, clock = tmp_path / "keys.toml", Clock()
    alice = add_key(path, "alice", KeyLimits())
    ring = KeyRing(path, clock=clock)
    bob = add_key(path, "bob", KeyLimits())
    assert ring.find(bob) is None  # it looks once a second
    clock.now_s += 1
    assert ring.find(bob).name == "bob"
    good = path.read_text()
    for bad in ("[alice", "\udcff"):
        path.write_text(bad, errors="surrogateescape")
        clock.now_s += 1
        assert ring.find(alice).name == "alice"
        assert "stay as they were" in caplog.text
        caplog.clear()
    path.unlink()
    clock.now_s += 1
    assert ring.find(bob).name == "bob"
    path.write_text(good[good.index("[bob]") :])
    clock.now_s += 1
    assert ring.find(alice) is None  # taken back
    assert ring.find(bob).name == "bob"


def test_a_file_that_did_not_change_is_not_read(tmp_path, monkeypatch):
    path, clock = tmp_path / "keys.toml", Clock()
    key = add_key(path, "alice", KeyLimits())
    ring = KeyRing(path, clock=clock)
    monkeypatch.setattr("izwi_api.usage.keys._read_file", lambda _: pytest.fail("it was read"))
    for _ in range(5):
        clock.now_s += 10
        assert ring.find(key)


def test_a_file_is_looked_at_once_a_second_and_the_single_key_stays(tmp_path, monkeypatch):
    path, now_s, looks = tmp_path / "keys.toml", [1000.0], []
    key = add_key(path, "alice", KeyLimits())
    ring = KeyRing(path, digest_of(SECRET), clock=lambda: now_s[0])
    look = key_ring._signature
    monkeypatch.setattr(key_ring, "_signature", lambda path: looks.append(path) or look(path))
    path.write_text(path.read_text() + "\n")
    now_s[0] += 1.01
    for _ in range(5):
        assert ring.find(key).name == "alice"
        assert ring.find(SECRET).name == key_ring.SINGLE_KEY_NAME
    assert len(looks) == 1


def test_every_key_is_compared_whichever_is_right(tmp_path, monkeypatch):
    path = tmp_path / "keys.toml"
    keys = [add_key(path, f"k{n}", KeyLimits()) for n in range(5)]
    ring = KeyRing(path, digest_of(SECRET))
    compared = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(a) or compare(a, b))
    counts = []
    for shown in (*keys, SECRET, "wrong", "", "é" * 10_000):
        compared.clear()
        ring.find(shown)
        counts.append(len(compared))
    assert counts == [6] * 9


def test_generated_keys_do_not_repeat():
    assert len({new_key() for _ in range(1000)}) == 1000


# ---- the API servers -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server with keys, one page elsewhere that may call, and an audit log."""
    root = tmp_path_factory.mktemp("guarded")
    path = root / "keys.toml"
    keys = {
        "alice": add_key(path, "alice", KeyLimits()),
        "rare": add_key(path, "rare", KeyLimits(requests_per_minute=2)),
        "writer": add_key(path, "writer", KeyLimits(characters_per_day=12)),
        "listener": add_key(path, "listener", KeyLimits(audio_seconds_per_day=3)),
    }
    access = Access(digest_of(SECRET), path, ("https://a.example",), root / "audit.jsonl")
    settings = Settings(home=root, access=access)
    registry = FakeRegistry(**{"tts": AskedSpeech(), "org/asr": AskedTranscription()})
    with listening(create_app(FakeEngine(), registry, settings)) as port:
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=60) as client:
            yield SimpleNamespace(url=url, client=client, keys=keys, audit=access.audit_log)


def check(answer, status, code, kind="invalid_request_error"):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == (kind, code)
    assert answer.headers["x-request-id"].startswith("req_")


WRONG = {
    "no key": [],
    "wrong key": [("authorization", "Bearer wrong-key-of-somebody")],
    "empty bearer": [("authorization", "Bearer")],
    "no scheme": [("authorization", SECRET)],
    "basic": [("authorization", "Basic b3BlbjpzZXNhbWU=")],
    "basic, and the key": [("authorization", f"Basic {SECRET}")],
    "two headers": [("authorization", f"Bearer {SECRET}")] * 2,
    "two keys in one": [("authorization", f"Bearer {SECRET}, Bearer {SECRET}")],
    "another header": [("x-api-key", SECRET)],
    "a key of a WebSocket": [("sec-websocket-protocol", f"openai-insecure-api-key.{SECRET}")],
    "no text": [("authorization", b"Bearer \xff\xfe")],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_missing_or_wrong_key_gets_401(guarded, name):
    for method, path in (
        ("POST", SPEECH),
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("GET", "/v1/not/there"),
        ("POST", "/livez"),
        ("GET", f"{guarded.url}//livez"),
        ("GET", f"/v1/models?api_key={SECRET}"),
    ):
        answer = guarded.client.request(method, path, headers=WRONG[name])
        check(answer, 401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "wrong-key" not in answer.text
        assert SECRET not in answer.text


def test_probes_and_the_page_need_no_key(guarded):
    for path in ("/livez", "/readyz", "/", "/page/app.js"):
        assert guarded.client.get(path).status_code == 200
        assert guarded.client.get(path, headers=bearer("wrong")).status_code == 200


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER "])
def test_a_valid_key_is_accepted(guarded, scheme):
    for key in (SECRET, guarded.keys["alice"]):
        headers = {"authorization": f"{scheme} {key}"}
        answer = guarded.client.post(SPEECH, json=ASK, headers=headers)
        assert answer.status_code == 200
        assert len(answer.content) == 5 * 1920 * 2
        assert not [name for name in answer.headers if name.startswith("x-ratelimit")]


def test_the_sdk_with_and_without_the_right_key(guarded):
    with openai.OpenAI(
        base_url=f"{guarded.url}/v1", api_key=guarded.keys["alice"], max_retries=0
    ) as sdk:
        assert [model.id for model in sdk.models.list()] == ["tts", "org/asr"]
    with openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong", max_retries=0) as sdk:
        with pytest.raises(openai.AuthenticationError) as refused:
            sdk.models.list()
        assert refused.value.code == "invalid_api_key"
        assert refused.value.request_id


def test_what_is_left_of_a_refused_upload_is_not_read(guarded):
    sent = 0

    def endless():
        nonlocal sent
        while sent < 256:
            sent += 1
            yield bytes(1 << 20)

    try:
        answer = guarded.client.post(TRANSCRIPTIONS, content=endless())
    except httpx.TransportError:
        pass  # cut off while it was sending
    else:
        check(answer, 401, "invalid_api_key")
    assert sent < 64


def test_a_key_has_so_many_requests_a_minute(guarded):
    headers = bearer(guarded.keys["rare"])
    first, second, third = (guarded.client.get("/v1/models", headers=headers) for _ in range(3))
    assert first.status_code == second.status_code == 200
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert second.headers["x-ratelimit-remaining-requests"] == "0"
    check(third, 429, "rate_limit_exceeded", "requests")
    assert 25 <= int(third.headers["retry-after"]) <= 30
    assert third.headers["x-ratelimit-remaining-requests"] == "0"
    assert "x-should-retry" not in third.headers  # the SDK may wait so long
    assert third.headers["x-ratelimit-reset-requests"] in ("59s", "1m0s")
    # other keys are not delayed
    assert guarded.client.get("/v1/models", headers=bearer(SECRET)).status_code == 200
    with openai.OpenAI(
        base_url=f"{guarded.url}/v1", api_key=guarded.keys["rare"], max_retries=0
    ) as sdk:
        with pytest.raises(openai.RateLimitError) as refused:
            sdk.models.list()
        assert refused.value.code == "rate_limit_exceeded"


async def test_edited_limits_of_a_key_hold_without_a_restart(tmp_path):
    """Usage is kept across changes; a removed key is refused."""
    path, now_s = tmp_path / "keys.toml", [1000.0]
    key = add_key(path, "alice", KeyLimits(requests_per_minute=2))
    table = path.read_text()

    async def answering(scope, receive, send):
        await PlainTextResponse("in")(scope, receive, send)

    ring = KeyRing(path, clock=lambda: now_s[0])
    guard = Auth(answering, ring, clocks=Clocks(lambda: now_s[0], lambda: now_s[0]))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(guard), base_url="http://here", headers=bearer(key)
    ) as client:

        async def statuses(count):
            return [(await client.get("/v1/models")).status_code for _ in range(count)]

        def edit(text):
            path.write_text(text)
            now_s[0] += 1.01  # the file is looked at once a second

        assert await statuses(3) == [200, 200, 429]
        edit(table.replace("requests_per_minute = 2", "requests_per_minute = 4"))
        assert await statuses(3) == [200, 200, 429]  # two of the four are used
        edit(table.replace("requests_per_minute = 2\n", ""))
        answer = await client.get("/v1/models")
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("x-ratelimit")]
        edit(table.replace("requests_per_minute = 2", "requests_per_minute = 1"))
        assert await statuses(2) == [200, 429]
        edit(table.replace("[alice]", "[alice]\ncharacters_per_day = 7"))
        answer = await client.get("/v1/models")
        assert answer.headers["x-ratelimit-limit-characters"] == "7"
        edit("")
        assert await statuses(1) == [401]


async def test_the_meters_of_removed_keys_are_dropped_and_their_counts_are_not(tmp_path):
    path, now_s = tmp_path / "keys.toml", [1000.0]
    kept = bearer(add_key(path, "kept", KeyLimits(requests_per_minute=3)))
    ring = KeyRing(path, clock=lambda: now_s[0])
    clocks = Clocks(lambda: now_s[0], lambda: now_s[0])

    async def answering(scope, receive, send):
        await PlainTextResponse("in")(scope, receive, send)

    guard = Auth(answering, ring, counts=tmp_path / "counts", clocks=clocks)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(guard), base_url="http://here"
    ) as client:

        async def statuses(headers, count=1):
            got = [await client.get("/v1/models", headers=headers) for _ in range(count)]
            return [one.status_code for one in got]

        assert await statuses(kept) == [200]
        for number in range(20):
            key = bearer(add_key(path, f"key-{number}", KeyLimits()))
            now_s[0] += 1.01  # the file is looked at once a second
            assert await statuses(key) == [200]
            remove_key(path, f"key-{number}")
        assert len(guard._meters) <= 3
        limited = KeyLimits(requests_per_minute=1)
        assert await statuses(bearer(add_key(path, "again", limited))) == [401]
        now_s[0] += 1.01
        remove_key(path, "again")
        again = bearer(add_key(path, "again", limited))
        now_s[0] += 1.01
        assert await statuses(again, 2) == [200, 429]
        remove_key(path, "again")
        now_s[0] += 1.01
        other = bearer(add_key(path, "other", KeyLimits()))
        now_s[0] += 1.01
        assert await statuses(other) == [200]
        assert "again" not in guard._meters
        again = bearer(add_key(path, "again", limited))
        now_s[0] += 1.01
        assert await statuses(again) == [429], "it counts on"
        assert await statuses(kept, 3) == [200, 200, 200]


def test_a_key_has_so_many_characters_a_day(guarded):
    headers = bearer(guarded.keys["writer"])
    # refused by the queue, so it costs nothing
    refused = guarded.client.post(SPEECH, json=ASK | {"input": "hello\x02"}, headers=headers)
    assert refused.status_code == 503
    first = guarded.client.post(SPEECH, json=ASK, headers=headers)
    assert first.status_code == 200
    assert first.headers["x-ratelimit-limit-characters"] == "12"
    assert first.headers["x-ratelimit-remaining-characters"] == "7"
    for stream_format in ("audio", "sse"):
        ask = ASK | {"input": "12345678", "stream_format": stream_format}
        answer = guarded.client.post(SPEECH, json=ask, headers=headers)
        check(answer, 429, "insufficient_quota", "insufficient_quota")
        wait_s = int(answer.headers["retry-after"])
        assert 0 < wait_s <= 86_400
        assert (answer.headers.get("x-should-retry") == "false") == (wait_s > 120)
        assert answer.headers["x-ratelimit-remaining-characters"] == "7"
    last = guarded.client.post(SPEECH, json=ASK | {"input": "1234567"}, headers=headers)
    assert last.headers["x-ratelimit-remaining-characters"] == "0"


def test_a_key_has_so_many_seconds_a_day(guarded, tone_wav):
    headers = bearer(guarded.keys["listener"])

    def ask(seconds):
        files = {"file": ("a.wav", tone_wav(seconds))}
        form = {"model": "org/asr"}
        return guarded.client.post(TRANSCRIPTIONS, data=form, files=files, headers=headers)

    first = ask(2.0)
    assert first.json()["text"] == "word word"
    assert first.headers["x-ratelimit-remaining-audio-seconds"] == "1"
    check(ask(2.0), 429, "insufficient_quota", "insufficient_quota")
    assert ask(1.0).status_code == 200


async def test_text_that_is_written_while_it_is_said_is_charged():
    clock = Clock()
    engine = FakeEngine()
    model = ServedModels(engine, FakeRegistry(tts=FakeWritableSpeech())).speech("tts")
    usage = Usage("alice", Meter(KeyLimits(characters_per_day=12), Clocks(clock, clock)))
    token = current_usage.set(usage)
    try:
        # an id of the fake is a character, and counts as four
        async with await open_speech_writer(model, SpeechInput("")) as writer:
            await writer.write("ab")
            assert usage.headers()["x-ratelimit-remaining-characters"] == "4"
            with pytest.raises(QuotaExceeded):
                await writer.write("cd")
        assert usage.headers()["x-ratelimit-remaining-characters"] == "4"
        # a caller that charges for characters itself
        async with await open_speech_writer(model, SpeechInput(""), charged=False) as writer:
            await writer.write("efg")
        assert usage.characters == 8
        assert usage.model == "tts"
    finally:
        current_usage.reset(token)
    async with await open_speech_writer(model, SpeechInput("")) as writer:
        await writer.write("h")  # nobody's
    assert usage.characters == 8
    assert not engine.live


def test_a_page_elsewhere_may_call_if_it_is_named(guarded):
    origin = {"origin": "https://a.example"}
    wish = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-lang",
    }
    asked = guarded.client.options(SPEECH, headers=origin | wish)
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == "https://a.example"
    answer = guarded.client.post(SPEECH, json=ASK, headers=origin | bearer(SECRET))
    assert answer.headers["access-control-allow-origin"] == "https://a.example"
    exposed = answer.headers["access-control-expose-headers"]
    assert "x-request-id" in exposed
    assert "x-izwi-ignored" in exposed
    refused = guarded.client.post(SPEECH, json=ASK, headers=origin)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://a.example"
    other = guarded.client.options(SPEECH, headers={"origin": "https://b.example"} | wish)
    assert "access-control-allow-origin" not in other.headers


def test_without_keys_other_sites_pages_make_nothing_happen(server, client):
    foreign = {"origin": "https://evil.example"}
    check(client.post(SPEECH, json=ASK, headers=foreign), 403, "origin_not_allowed")
    nowhere = {"origin": "null"}
    check(client.delete("/v1/audio/voices/me", headers=nowhere), 403, "origin_not_allowed")
    answer = client.get("/v1/models", headers=foreign)
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers
    assert client.options(SPEECH, headers=foreign).status_code == 405
    assert client.post(SPEECH, json=ASK, headers={"origin": server.url}).status_code == 200
    for site in ("cross-site", "same-site", "none"):
        theirs = foreign | {"sec-fetch-site": site}
        check(client.post(SPEECH, json=ASK, headers=theirs), 403, "origin_not_allowed")
    # behind a proxy that changes the host, the browser itself says that the page is ours
    ours = foreign | {"sec-fetch-site": "same-origin"}
    assert client.post(SPEECH, json=ASK, headers=ours).status_code == 200


# ---- the audit log -------------------------------------------------------------------------


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_audit_log_has_key_and_status_but_no_content(guarded, tone_wav):
    before = len(lines(guarded.audit))
    alice = bearer(guarded.keys["alice"])
    words = ASK | {"input": "a secret sentence", "instructions": "like a whisper"}
    said = guarded.client.post(SPEECH, json=words, headers=alice)
    files = {"file": ("my-diary.wav", tone_wav(2.0))}
    form = {"model": "org/asr", "prompt": "names of people"}
    heard = guarded.client.post(TRANSCRIPTIONS, data=form, files=files, headers=alice)
    guarded.client.get("/v1/models/my-private-name?q=1", headers=bearer("a-wrong-key"))
    guarded.client.request("INVENT", "/v1/made/up", headers=alice)
    guarded.client.get("/livez")
    spoken, written, refused, unknown = lines(guarded.audit)[before:]
    assert spoken["request_id"] == said.headers["x-request-id"]
    assert spoken["time"].endswith("Z")
    shown = ("key", "method", "route", "status", "complete", "model")
    assert [spoken[name] for name in shown] == ["alice", "POST", SPEECH, 200, True, "tts"]
    assert spoken["characters"] == 17
    assert spoken["audio_out_s"] == pytest.approx(17 * 0.08)
    assert spoken["bytes_out"] == len(said.content) == 17 * 1920 * 2
    assert spoken["bytes_in"] > 17
    assert 0 < spoken["first_byte_s"] <= spoken["duration_s"] < 20
    assert written["request_id"] == heard.headers["x-request-id"]
    assert [written[name] for name in shown] == [
        *("alice", "POST", TRANSCRIPTIONS),
        *(200, True, "org/asr"),
    ]
    assert written["audio_in_s"] == 2.0
    assert written["bytes_in"] > 64_000
    assert [refused[name] for name in shown] == [None, "GET", None, 401, True, None]
    assert [unknown[name] for name in shown] == ["alice", "?", None, 404, True, None]
    text = guarded.audit.read_text()
    for private in ("secret", "whisper", "diary", "word", "people", "private", "wrong", "made"):
        assert private not in text
    for key in (*guarded.keys.values(), SECRET):
        assert key not in text
    assert stat.S_IMODE(guarded.audit.stat().st_mode) == 0o600


def test_a_new_audit_log_begins_after_the_old_one_was_moved(tmp_path):
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    log.write({"n": 1})
    path.rename(tmp_path / "old")
    log.write({"n": 2})
    assert (lines(tmp_path / "old"), lines(path)) == ([{"n": 1}], [{"n": 2}])
    log.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_stops_the_log_and_not_the_server(caplog):
    log = AuditLog(Path("/dev/full"))
    for _ in range(3):
        log.write({"n": 1})
    assert caplog.text.count("cannot be written") == 1
    log.close()


# ---- WebSockets, and answers that break, as the server hands them to the app ---------------------


def one_key():
    return KeyRing(None, digest_of(SECRET))


async def call(app, kind="websocket", headers=(), subprotocols=(), extensions=None, **fields):
    """Run an app for one connection and return what it sent."""
    sent = []
    scope = {
        "type": kind,
        "path": "/v1/realtime",
        "headers": [(name.encode(), value.encode()) for name, value in headers],
        "subprotocols": list(subprotocols),
        "extensions": {"websocket.http.response": {}} if extensions is None else extensions,
        **fields,
    }

    async def receive():
        return {"type": "websocket.connect" if kind == "websocket" else "http.request"}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent, scope


async def accepting(scope, receive, send):
    """Accept a WebSocket as the realtime route does, and return the caller's name."""
    assert isinstance(current_usage.get(), Usage)
    offered = scope["subprotocols"]
    await send({"type": "websocket.accept", "subprotocol": offered[0] if offered else None})
    await send({"type": "websocket.send", "text": scope["state"]["usage"].key_name or "nobody"})
    await send({"type": "websocket.close", "code": 1000})


KEY_PROTOCOL = f"openai-insecure-api-key.{SECRET}"


async def test_a_websocket_shows_its_key_in_the_header_or_as_a_subprotocol():
    app = Auth(accepting, one_key())
    for headers, protocols in (
        ([("authorization", f"Bearer {SECRET}")], []),
        ([], ["realtime", KEY_PROTOCOL]),
    ):
        sent, scope = await call(app, headers=headers, subprotocols=protocols)
        assert sent[0]["subprotocol"] in (None, "realtime")
        assert sent[1]["text"] == "--api-key"
        assert KEY_PROTOCOL not in scope["subprotocols"]
    assert current_usage.get() is None


async def test_a_caller_is_a_key_or_without_one_a_connection(tmp_path):
    async def telling(scope, receive, send):
        await send({"type": "websocket.send", "text": current_caller.get()})

    async def callers(ring, *, headers=()):
        app = Auth(telling, ring)
        clients = (("10.0.0.1", 50_001), ("10.0.0.1", 50_002), ("10.0.0.1", 50_001), None)
        sent = [(await call(app, headers=headers, client=client))[0] for client in clients]
        return [messages[0]["text"] for messages in sent]

    keyed = await callers(one_key(), headers=[("authorization", f"Bearer {SECRET}")])
    assert keyed == ["key --api-key"] * 4
    one, other, again, unknown = await callers(KeyRing(None))
    assert one == again != other
    assert unknown == ""
    assert current_caller.get() == ""


@pytest.mark.parametrize(
    ("headers", "protocols"),
    [
        ([], []),
        ([], ["realtime"]),
        ([], ["openai-insecure-api-key."]),
        ([], ["openai-insecure-api-key.wrong"]),
        ([], [KEY_PROTOCOL, KEY_PROTOCOL]),
        ([("authorization", f"Bearer {SECRET}")], [KEY_PROTOCOL]),
        ([("authorization", "Bearer wrong")], []),
    ],
)
async def test_a_websocket_without_the_key_is_not_opened(headers, protocols):
    app = Auth(accepting, one_key())
    start, body = (await call(app, headers=headers, subprotocols=protocols))[0]
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 401)
    assert (b"www-authenticate", b"Bearer") in start["headers"]
    assert json.loads(body["body"])["error"]["code"] == "invalid_api_key"
    # a server that cannot answer so closes
    sent, _ = await call(app, headers=headers, subprotocols=protocols, extensions={})
    assert [message["type"] for message in sent] == ["websocket.close"]


@pytest.mark.parametrize(
    ("headers", "opened"),
    [
        ([], True),
        ([("origin", "http://here:8000"), ("host", "here:8000")], True),
        ([("origin", "https://a.example"), ("host", "here:8000")], True),
        ([("origin", "https://evil.example"), ("host", "here:8000")], False),
        ([("origin", "http://here:8000.evil.example"), ("host", "here:8000")], False),
        ([("origin", "null"), ("host", "here:8000")], False),
        ([("origin", "null")], False),
        ([("origin", "http://[")], False),
    ],
)
async def test_without_keys_a_websocket_is_for_our_own_page(headers, opened):
    app = Auth(accepting, KeyRing(None), origins=("https://a.example",))
    sent, _ = await call(app, headers=headers)
    assert (sent[0]["type"] == "websocket.accept") == opened
    assert opened or sent[0]["status"] == 403


async def test_websockets_count_as_requests(tmp_path):
    path, clock = tmp_path / "keys.toml", Clock()
    key = add_key(path, "alice", KeyLimits(requests_per_minute=1))
    app = Auth(accepting, KeyRing(path), clocks=Clocks(clock, clock))
    headers = [("authorization", f"Bearer {key}")]
    assert (await call(app, headers=headers))[0][0]["type"] == "websocket.accept"
    refused = (await call(app, headers=headers))[0][0]
    assert refused["status"] == 429
    assert dict(refused["headers"])[b"retry-after"] == b"60"
    clock.now_s += 60
    assert (await call(app, headers=headers))[0][0]["type"] == "websocket.accept"


async def test_the_audit_log_tells_how_connections_ended(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")

    async def breaking(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"abc", "more_body": True})
        raise RuntimeError("it broke")

    async def nothing(scope, receive, send):
        raise RuntimeError("a bug")

    async def left(scope, receive, send):
        raise asyncio.CancelledError

    ring = one_key()
    headers = [("authorization", f"Bearer {SECRET}")]
    await call(Audit(Auth(accepting, ring), log), headers=headers)
    await call(Audit(Auth(accepting, ring), log))
    for app, error in ((breaking, RuntimeError), (nothing, RuntimeError)):
        with pytest.raises(error):
            await call(Audit(Auth(app, ring), log), "http", headers, method="POST")
    with pytest.raises(asyncio.CancelledError):
        await call(Audit(Auth(left, ring), log), "http", headers, method="POST")
    await call(Audit(Auth(PlainTextResponse("x"), ring), log), "http", headers, method="GET")
    ends = [(line["status"], line["complete"], line["bytes_out"]) for line in lines(log._path)]
    assert ends[0] == (101, True, len("--api-key"))
    assert ends[1][:2] == (401, True)
    assert ends[2:] == [(200, False, 3), (500, False, 0), (499, False, 0), (200, True, 1)]
    assert all(line["request_id"].startswith("req_") for line in lines(log._path))
    log.close()


# ---- the command line ----------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.7", "example.com"])
def test_a_public_address_needs_a_key(host, tmp_path):
    with pytest.raises(InvalidRequest, match=r"without a key.*--insecure"):
        check_exposure(host, Access(), insecure=False)
    check_exposure(host, Access(), insecure=True)
    check_exposure(host, Access(api_key_digest=digest_of(SECRET)), insecure=False)
    check_exposure(host, Access(api_keys_file=tmp_path), insecure=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_this_machine_needs_none(host):
    check_exposure(host, Access(), insecure=False)


def run(*arguments, code=0, env=None):
    result = CliRunner().invoke(cli, list(arguments), env=env)
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "refusing to listen on 0.0.0.0"),
        (["--api-key", ""], "--api-key must be"),
        (["--api-key", "a key"], "--api-key must be"),
        (["--cors-origin", "a.example"], "--cors-origin must be"),
        (["--cors-origin", "https://a.example/path"], "--cors-origin must be"),
        (["--api-keys", "bad.toml"], "bad.toml"),
    ],
)
def test_serve_says_in_one_line_what_is_wrong(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("[a]\n")
    result = run("serve", *arguments, code=2)
    assert message in result.stderr
    assert result.stderr.strip().count("\n") == 0
    assert "a key'" not in result.stderr


def test_keys_add(tmp_path):
    env = {"IZWI_HOME": str(tmp_path / "home")}
    result = run("keys", "add", "alice", "--requests-per-minute", "5", env=env)
    key = result.stdout.strip()
    ring = KeyRing(tmp_path / "home" / "keys.toml")
    assert ring.find(key).limits == KeyLimits(requests_per_minute=5)
    assert key not in result.stderr
    assert "already" in run("keys", "add", "alice", env=env, code=2).stderr
    path = tmp_path / "b.toml"
    run("keys", "add", "bob", "--file", str(path), "--audio-seconds-per-day", "9.5")
    assert parse_keys(path.read_text(), "")[0].limits == KeyLimits(audio_seconds_per_day=9.5)


def test_access_is_read_from_the_environment(tmp_path):
    access = read_access(
        {
            "IZWI_API_KEY": SECRET,
            "IZWI_API_KEYS": str(tmp_path / "keys.toml"),
            "IZWI_CORS_ORIGINS": "https://A.example:8443, *",
            "IZWI_AUDIT_LOG": "",
        }
    )
    assert access == Access(
        digest_of(SECRET), tmp_path / "keys.toml", ("https://a.example:8443", "*"), None
    )
    assert SECRET not in repr(Settings(access=access))
    assert not read_access({"IZWI_API_KEY": ""}).requires_key
    with pytest.raises(InvalidRequest, match="IZWI_API_KEY") as refused:
        read_access({"IZWI_API_KEY": "two words"})
    assert "two words" not in str(refused.value)


def test_a_short_key_is_taken_with_a_warning(caplog):
    assert read_access({"IZWI_API_KEY": "abc"}).api_key_digest == digest_of("abc")
    assert "can be guessed" in caplog.text
    assert "abc" not in caplog.text
