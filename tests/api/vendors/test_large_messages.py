"""A message that is too large ends a socket with 1009 and a reason, at every route."""

from __future__ import annotations

import json
import time

import pytest
from starlette.routing import WebSocketRoute
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from izwi_api.http.client_secrets import ClientSecret
from izwi_api.http.server import MAX_WEBSOCKET_BYTES, server_config
from izwi_api.serve.app import create_app
from izwi_api.settings import APIS, Settings
from tests.api.conftest import FakeChat, FakeEngine, FakeRegistry, running
from tests.api.routes.test_speech_stream import FakeWritableSpeech
from tests.api.vendors.streaming import FakeStreaming

TOO_BIG = 1009
QUERY = "?encoding=linear16&sample_rate=16000"
VENDORS = {
    "/elevenlabs/v1/text-to-speech/{voice_id}/stream-input": json.dumps(
        {"text": "a" * (200 << 10)}
    ),
    "/elevenlabs/v1/text-to-speech/{voice_id}/multi-stream-input": json.dumps(
        {"text": "a" * (200 << 10)}
    ),
    "/deepgram/v1/listen": bytes((1 << 20) + 1),
    "/deepgram/v1/speak": json.dumps({"type": "Speak", "text": "a" * (200 << 10)}),
    "/v1/telephony/twilio": json.dumps({"event": "media", "more": "a" * (256 << 10)}),
    "/v1/telephony/twilio/{secret}": json.dumps({"event": "media", "more": "a" * (256 << 10)}),
    "/v1/telephony/vonage": bytes((256 << 10) + 1),
    "/v1/telephony/vonage/{secret}": bytes((256 << 10) + 1),
}
OURS = {"/v1/realtime", "/v1/audio/speech/stream", "/v1/audio/transcriptions/stream"}


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    registry = FakeRegistry(tts=FakeWritableSpeech(), asr=FakeStreaming(), chat=FakeChat())
    return create_app(FakeEngine(), registry, Settings(home=home, apis=APIS))


@pytest.fixture(scope="module")
def opened(app):
    secret = ClientSecret(int(time.time()) + 600, None, {"type": "realtime", "model": "chat"})
    made = app.state.izwi.client_secrets.make(secret)
    with running(server_config(app, "127.0.0.1", 0, 1.0)) as port:

        def open_socket(path):
            filled = path.replace("{voice_id}", "Ann").replace("{secret}", made) + QUERY
            return connect(f"ws://127.0.0.1:{port}{filled}", proxy=None, max_size=None)

        yield open_socket


def closed_after(socket, message):
    """Send a message; the code and the reason of the server's close frame."""
    try:
        socket.send(message)
        while True:
            socket.recv(60)
    except ConnectionClosed as closed:
        frame = closed.rcvd
    return None if frame is None else (frame.code, frame.reason)


def sockets(app):
    found, routes = [], list(app.routes)
    for route in routes:
        routes += getattr(getattr(route, "original_router", None), "routes", [])
        found += [route.path] if isinstance(route, WebSocketRoute) else []
    return found


def test_every_socket_is_in_the_tables(app):
    assert set(sockets(app)) == OURS | set(VENDORS)


@pytest.mark.parametrize("path", sorted(OURS | set(VENDORS)))
def test_a_message_over_the_servers_limit_ends_any_socket(opened, path):
    with opened(path) as socket:
        code, reason = closed_after(socket, bytes(MAX_WEBSOCKET_BYTES + 1))
    assert code == TOO_BIG
    assert str(MAX_WEBSOCKET_BYTES) in reason


@pytest.mark.parametrize("path", VENDORS)
def test_a_message_over_a_vendors_limit_ends_its_socket(opened, path):
    with opened(path) as socket:
        assert closed_after(socket, VENDORS[path]) == (TOO_BIG, "too_large")
