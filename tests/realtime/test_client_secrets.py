"""Client secrets: what they permit, for how long, and for which key."""

from __future__ import annotations

import json

import httpx
import openai
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from izwi.errors import TooLarge
from izwi_api.http.client_secrets import ClientSecret, ClientSecrets
from izwi_api.serve.app import create_app
from izwi_api.settings import Access, Settings
from izwi_api.usage.keys import digest_of
from tests.api.conftest import (
    FakeChat,
    FakeEngine,
    FakeRegistry,
    FakeSpeech,
    FakeTranscription,
    listening,
)

KEY = "a-long-key-of-an-operator"


def test_another_process_reads_a_secret_until_it_expires(tmp_path):
    now_s = 1000.0
    ours = ClientSecrets(tmp_path, lambda: now_s)
    made = ClientSecret(1600, "ann", {"type": "realtime", "instructions": "Say \u00e9."})
    value = ours.make(made)
    other_process = ClientSecrets(tmp_path, lambda: now_s)
    assert other_process.read(value) == made
    assert (tmp_path / "realtime_key").stat().st_mode & 0o077 == 0
    now_s = 1599.9
    assert ours.read(value) == made
    now_s = 1600.0
    assert ours.read(value) is None


def test_a_changed_secret_is_rejected(tmp_path):
    ours = ClientSecrets(tmp_path, lambda: 0.0)
    value = ours.make(ClientSecret(10, None, {}))
    for place in range(len(value)):
        changed = value[:place] + ("A" if value[place] != "A" else "B") + value[place + 1 :]
        assert place < 3 or ours.read(changed) is None or changed[-1:] != value[-1:]
    for other in ("", "ek_", "ek_.", "ek_x", "ek_%.%", "ek_" + "A" * 9999):
        assert ours.read(other) is None
    elsewhere = ClientSecrets(tmp_path / "other", lambda: 0.0)
    assert elsewhere.read(value) is None


def test_a_session_too_long_for_a_header_is_rejected(tmp_path):
    with pytest.raises(TooLarge):
        ClientSecrets(tmp_path, lambda: 0.0).make(ClientSecret(1, None, {"x": "y" * 5000}))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    registry = FakeRegistry(chat=FakeChat(), tts=FakeSpeech(), asr=FakeTranscription())
    settings = Settings(
        home=tmp_path_factory.mktemp("home"), access=Access(api_key_digest=digest_of(KEY))
    )
    app = create_app(FakeEngine(), registry, settings)
    with listening(app, ws="auto") as port:
        yield port


@pytest.fixture
def sdk(guarded):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{guarded}/v1", api_key=KEY, max_retries=0)


def test_the_sdk_creates_a_secret_and_a_browser_connects_with_it(sdk, guarded):
    made = sdk.realtime.client_secrets.create(
        session={"type": "realtime", "model": "chat", "instructions": "Be kind."},
        expires_after={"anchor": "created_at", "seconds": 60},
    )
    assert made.value.startswith("ek_")
    assert made.session.instructions == "Be kind."
    url = f"ws://127.0.0.1:{guarded}/v1/realtime"
    offered = ["realtime", f"openai-insecure-api-key.{made.value}"]
    with connect(url, subprotocols=offered, origin="https://page.example") as socket:
        assert socket.subprotocol == "realtime"
        assert json.loads(socket.recv())["session"]["instructions"] == "Be kind."
    with connect(url, additional_headers={"authorization": f"Bearer {made.value}"}) as socket:
        assert json.loads(socket.recv())["type"] == "session.created"


def test_a_secret_gives_access_to_live_sessions_only(sdk, guarded):
    value = sdk.realtime.client_secrets.create().value
    head = {"authorization": f"Bearer {value}"}
    for path in ("/v1/models", "/v1/realtime/client_secrets"):
        assert httpx.get(f"http://127.0.0.1:{guarded}{path}", headers=head).status_code == 401
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(f"ws://127.0.0.1:{guarded}/v1/audio/speech/stream", additional_headers=head),
    ):
        pass
    assert refused.value.response.status_code == 401


@pytest.mark.parametrize("shown", ["ek_x", "ek_e30.e30", "", KEY[:-1]])
def test_an_invalid_client_secret_gets_401(guarded, shown):
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(
            f"ws://127.0.0.1:{guarded}/v1/realtime",
            additional_headers={"authorization": f"Bearer {shown}"},
        ),
    ):
        pass
    assert refused.value.response.status_code == 401


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"expires_after": {"seconds": 5}}, "expires_after.seconds"),
        ({"nonsense": 1}, "nonsense"),
        ({"session": {"type": "realtime", "foo": 1}}, "session.foo"),
        ({"session": {"type": "realtime", "model": "nope"}}, "model"),
    ],
)
def test_a_secret_for_an_unsupported_session_is_refused(sdk, body, param):
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as refused:
        sdk.post("/realtime/client_secrets", body=body, cast_to=object)
    assert refused.value.param == param
