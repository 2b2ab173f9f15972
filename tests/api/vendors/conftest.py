"""A server with all vendors' APIs over the small engine, with keys and with limits."""

from __future__ import annotations

import json
from types import SimpleNamespace

import httpx
import pytest
from websockets.sync.client import connect

from izwi_api.serve.app import create_app
from izwi_api.settings import APIS, Access, Settings
from izwi_api.usage.keys import add_key
from izwi_api.usage.limits import KeyLimits
from tests.api.conftest import (
    FakeChat,
    FakeEngine,
    FakeRegistry,
    listening,
    wait_for,
)
from tests.api.routes.test_align import FakeAligner
from tests.api.routes.test_speech_stream import FakeWritableSpeech
from tests.api.vendors.streaming import FakeStreaming

KEYS = {
    "free": KeyLimits(),
    "poor": KeyLimits(characters_per_day=3, audio_seconds_per_day=1),
    "slow": KeyLimits(requests_per_minute=1),
    "slower": KeyLimits(requests_per_minute=1),
}


@pytest.fixture(scope="package")
def vendors(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    file, log = home / "keys.toml", home / "audit.jsonl"
    keys = {name: add_key(file, name, limits) for name, limits in KEYS.items()}
    speech = FakeWritableSpeech()
    registry = FakeRegistry(tts=speech, asr=FakeStreaming(), chat=FakeChat(), aligner=FakeAligner())
    settings = Settings(
        home=home,
        apis=APIS,
        max_json_bytes=1 << 16,
        max_upload_bytes=1 << 20,
        max_reference_bytes=1 << 20,
        access=Access(api_keys_file=file, audit_log=log),
        voice_aliases={"thalia": "Bob", "rachel-id": "Bob"},
        model_aliases={"eleven_alias": "tts"},
    )
    engine = FakeEngine()
    with listening(create_app(engine, registry, settings), ws="auto") as port:

        def socket(path, headers):
            url = f"ws://127.0.0.1:{port}{path}"
            return connect(url, additional_headers=headers, proxy=None)

        def audited(key, path):
            """The last line of the audit log for a key and a path."""
            found = []

            def is_written():
                lines = map(json.loads, log.read_text().splitlines())
                found[:] = [one for one in lines if (one["key"], one["route"]) == (key, path)]
                return bool(found)

            wait_for(is_written)
            return found[-1]

        yield SimpleNamespace(
            url=f"http://127.0.0.1:{port}",
            keys=keys,
            engine=engine,
            speech=speech,
            hearing=registry.models["asr"],
            connect=socket,
            audited=audited,
        )


@pytest.fixture
def http(vendors):
    with httpx.Client(base_url=vendors.url, timeout=60) as client:
        yield client
