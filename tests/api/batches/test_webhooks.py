"""Events of batches reach a webhook whatever goes wrong; OpenAI's own client verifies them."""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import openai
import pytest

from izwi.errors import InvalidRequest
from izwi_api.batches import webhooks
from izwi_api.batches.store import Batch, BatchStore
from izwi_api.batches.webhooks import RETRY_S, WebhookSender
from izwi_api.environment import read_settings
from izwi_api.http.audit import AuditLog
from izwi_api.serve.app import create_app
from izwi_api.settings import Access, Settings, Webhook
from izwi_api.usage.keys import add_key
from izwi_api.usage.limits import KeyLimits
from izwi_api.voices import reference_connections
from izwi_api.voices.reference_hosts import parse_url
from tests.api.batches.test_batches import SPEECH, ended, said, stored
from tests.api.conftest import FakeEngine, FakeRegistry, FakeSpeech, listening, wait_for

KEY = b"a secret of thirty-two bytes ..."
SECRET = "whsec_" + base64.b64encode(KEY).decode()


@contextmanager
def receiver(*statuses):
    """A webhook: what it got, and its URL. It answers with these statuses, then with 204."""
    got, rest = [], list(statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append((self.path, dict(self.headers.items()), body))
            self.send_response(rest.pop(0) if rest else 204)
            self.send_header("location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}/hook"
        yield SimpleNamespace(got=got, url=url, port=server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


def unwrapped(got, secret=SECRET):
    client = openai.OpenAI(api_key="none", webhook_secret=secret)
    _, headers, body = got
    return client.webhooks.unwrap(body, headers)


class World:
    """A store with a clock of its own, and what sends its events."""

    def __init__(self, folder, url):
        self.now_s, self.outcomes, self.log = 1000.0, [], folder / "audit.jsonl"
        self.store = BatchStore(folder / "batches", clock=lambda: self.now_s)
        parsed, audit = parse_url(url), AuditLog(self.log)
        self.sender = WebhookSender(self.store, parsed, KEY, self.outcomes.append, audit)

    def end_batch(self, name="batch_1", status="completed"):
        batch = Batch(name, "ann", SPEECH, "f", "24h", 0, 1)
        self.store.add_batch(batch)
        batch.status = status
        self.store.end(batch, with_event=True)

    async def later(self, seconds):
        self.now_s += seconds
        await self.sender.send_due()


def test_each_end_of_a_batch_is_an_event_that_openai_verifies(tmp_path) -> None:
    keys, log = tmp_path / "keys.toml", tmp_path / "audit.jsonl"
    key = add_key(keys, "ann", KeyLimits())
    with receiver() as hook:
        settings = Settings(
            home=tmp_path,
            batches=True,
            webhook=Webhook(parse_url(hook.url), KEY),
            access=Access(api_keys_file=keys, audit_log=log),
        )
        engine = FakeEngine()
        engine.step_s = 0.02
        app = create_app(engine, FakeRegistry(tts=FakeSpeech()), settings)
        with listening(app) as port:
            client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key)
            done = ended(client, [said("a", "hi")], SPEECH)
            failed = ended(client, b"{", SPEECH)
            many = stored(client, [said(f"{n}", "some words") for n in range(200)])
            batch = client.batches.create(
                input_file_id=many.id, endpoint=SPEECH, completion_window="24h"
            )
            client.batches.cancel(batch.id)
            wait_for(lambda: len(hook.got) == 3)
            wait_for(lambda: log.read_text().count("WEBHOOK") == 3)
            figures = client.get("/../metrics", cast_to=str)
    events = [unwrapped(got) for got in hook.got]
    assert {(event.type, event.data.id) for event in events} == {
        ("batch.completed", done.id),
        ("batch.failed", failed.id),
        ("batch.cancelled", batch.id),
    }
    assert len({event.id for event in events}) == 3
    assert all(event.object == "event" and event.created_at for event in events)
    assert 'izwi_webhooks_total{outcome="delivered"} 3.0' in figures
    lines = [
        one for one in map(json.loads, log.read_text().splitlines()) if "WEBHOOK" in one.values()
    ]
    assert {(one["route"], one["key"], one["status"]) for one in lines} == {
        (event.type, "ann", 204) for event in events
    }


def test_a_wrong_secret_and_a_changed_body_are_noticed() -> None:
    sent_s, body = int(time.time()), b'{"id":"evt_1"}'
    headers = {
        "webhook-id": "evt_1",
        "webhook-timestamp": f"{sent_s}",
        "webhook-signature": webhooks.sign(KEY, "evt_1", sent_s, body),
    }
    unwrapped(("", headers, body))
    other = "whsec_" + base64.b64encode(bytes(32)).decode()
    for got, secret in ((("", headers, body + b" "), SECRET), (("", headers, body), other)):
        with pytest.raises(openai.InvalidWebhookSignatureError):
            unwrapped(got, secret)


async def test_refused_events_are_sent_again_with_growing_waits(tmp_path) -> None:
    with receiver(500, 302, 429) as hook:
        world = World(tmp_path, hook.url)
        world.end_batch()
        await world.later(0)
        await world.later(RETRY_S[0] - 1)
        assert len(hook.got) == 1, "it waits"
        await world.later(1)
        await world.later(RETRY_S[1])
        await world.later(RETRY_S[2])
        await world.later(1e6)
    assert world.outcomes == ["failed", "failed", "failed", "delivered"]
    assert {path for path, _, _ in hook.got} == {"/hook"}, "a redirect is not followed"
    events = [unwrapped(got) for got in hook.got]
    assert len({event.id for event in events}) == 1
    assert {headers["webhook-id"] for _, headers, _ in hook.got} == {events[0].id}
    statuses = [json.loads(one)["status"] for one in world.log.read_text().splitlines()]
    assert statuses == [500, 302, 429, 204]


async def test_an_event_is_given_up_after_two_days(tmp_path, caplog) -> None:
    caplog.set_level(logging.ERROR, webhooks.__name__)
    with receiver() as hook:
        world = World(tmp_path, hook.url)
    world.end_batch()  # nobody listens any more
    for wait_s in (0, *RETRY_S):
        await world.later(wait_s)
    assert world.outcomes == ["failed"] * len(RETRY_S) + ["given_up"]
    assert world.store.claim_event(1) is None
    assert f"in {len(RETRY_S) + 1} attempts" in caplog.text
    assert sum(RETRY_S) > 2 * 86_400
    assert world.log.read_text().count('"status":null') == len(RETRY_S) + 1


async def test_an_event_whose_sender_died_is_sent_again(tmp_path) -> None:
    with receiver() as hook:
        world = World(tmp_path, hook.url)
        world.end_batch()
        claimed = world.store.claim_event(60)
        assert claimed is not None
        await world.later(59)
        assert not hook.got, "its sender may be sending it"
        await world.later(1)
        assert unwrapped(hook.got[0]).id == claimed[0]


async def test_a_name_that_leads_inside_gets_nothing(tmp_path, monkeypatch) -> None:
    async def inside(*_):
        return ["127.0.0.1"]

    monkeypatch.setattr(reference_connections.HostConnector, "_ask_system", inside)
    with receiver() as hook:
        world = World(tmp_path, f"http://hook.example:{hook.port}/hook")
        world.end_batch()
        await world.later(0)
        assert (hook.got, world.outcomes) == ([], ["failed"])


def test_no_webhook_no_event(tmp_path) -> None:
    store = BatchStore(tmp_path)
    batch = Batch("batch_1", "ann", SPEECH, "f", "24h", 0, 1)
    store.add_batch(batch)
    store.end(batch, with_event=False)
    assert store.claim_event(60) is None


def test_settings_need_a_url_and_a_strong_secret() -> None:
    url = "https://hook.example/path"
    webhook = read_settings({"IZWI_WEBHOOK_URL": url, "IZWI_WEBHOOK_SECRET": SECRET}).webhook
    assert webhook.url is not None
    assert (webhook.url.target, webhook.secret) == ("/path", KEY)
    assert "secret" not in repr(webhook)
    for wrong in (
        {"IZWI_WEBHOOK_URL": url},
        {"IZWI_WEBHOOK_SECRET": SECRET},
        {"IZWI_WEBHOOK_URL": url, "IZWI_WEBHOOK_SECRET": SECRET[6:]},
        {"IZWI_WEBHOOK_URL": url, "IZWI_WEBHOOK_SECRET": "whsec_c2hvcnQ="},
        {"IZWI_WEBHOOK_URL": url, "IZWI_WEBHOOK_SECRET": "whsec_ü"},
        {"IZWI_WEBHOOK_URL": "http://localhost:80/", "IZWI_WEBHOOK_SECRET": SECRET},
        {"IZWI_WEBHOOK_URL": "https://u@hook.example/", "IZWI_WEBHOOK_SECRET": SECRET},
    ):
        with pytest.raises(InvalidRequest, match="IZWI_WEBHOOK"):
            read_settings(wrong)
