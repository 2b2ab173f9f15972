"""An app whose WebSocket echoes every message: our server without a protocol."""

from __future__ import annotations

from contextlib import contextmanager

from fastapi import WebSocket

from izwi_api.http.live_socket import serve_socket
from izwi_api.http.server import server_config
from izwi_api.serve.app import create_app
from izwi_api.sessions.limits import SessionLimits
from izwi_api.settings import Settings
from tests.api.conftest import FakeEngine, FakeRegistry, running


class Echo:
    """A `Service` that answers each message with itself."""

    is_busy = False

    def __init__(self, session):
        self._session = session

    def start_session(self):
        pass

    def background_tasks(self):
        return ()

    async def handle_message(self, message):
        self._session.put(message)

    def report(self, error):
        raise error

    def tick(self, now_s):
        pass

    def close(self):
        pass


@contextmanager
def echoing(folder):
    """Serve it at `/`, in a thread, with the configuration of `izwi serve`; gives the port."""
    app = create_app(FakeEngine(), FakeRegistry(), Settings(home=folder))

    @app.websocket("/")
    async def echo(socket: WebSocket) -> None:
        await serve_socket(socket, SessionLimits(), Echo)

    config = server_config(app, "127.0.0.1", 0, 30.0)
    config.log_level = "critical"
    with running(config) as port:
        yield port
