"""Other vendors' APIs are served if the operator says so; those that are off cost nothing."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest

from izwi.errors import InvalidRequest
from izwi_api.cli.main import app as izwi
from izwi_api.serve.app import create_app
from izwi_api.settings import APIS, Settings, api_names
from izwi_api.vendors import load_vendors
from tests.api.conftest import FakeEngine, FakeRegistry, FakeSpeech, listening

PATHS = (
    "/elevenlabs/v1/voices",
    "/deepgram/v1/speak",
    "/v1/telephony/twilio",
    "/v1/telephony/vonage",
)


@pytest.mark.parametrize("apis", [(), ("elevenlabs",), ("twilio",)])
def test_an_api_that_is_off_is_not_served(tmp_path, apis):
    settings = Settings(home=tmp_path, apis=apis)
    app = create_app(FakeEngine(), FakeRegistry(tts=FakeSpeech()), settings)
    with listening(app) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as http:
        served = [path for path in PATHS if "no endpoint" not in http.get(path).text]
    assert served == [path for path in PATHS if any(name in path for name in apis)]


def test_names_are_checked():
    assert api_names(" Deepgram,twilio,deepgram", "--api") == ("deepgram", "twilio")
    with pytest.raises(InvalidRequest, match="elevenlabs, deepgram"):
        api_names("azure", "--api")


def test_every_name_has_a_vendor():
    assert len({vendor.prefix for vendor in load_vendors(APIS)}) == len(APIS)


@pytest.mark.slow
def test_what_is_off_is_not_imported():
    assert izwi.registered_commands  # with all commands
    source = (
        "import sys, izwi_api.cli.main, izwi_api.serve.app\n"
        "off = ('izwi_api.vendors.', 'izwi_api.batches.', 'izwi_api.wyoming', 'izwi_api.mcp', "
        "'mcp', 'zeroconf', 'webrtc_noise_gain', 'aiortc', 'diffusers')\n"
        "print([name for name in sys.modules if name.startswith(off)])"
    )
    command = [sys.executable, "-c", source]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"
