"""A server that has the page and nothing behind it: tests say what it answers."""

from __future__ import annotations

import json
import mimetypes
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import izwi_web

FILES = Path(izwi_web.__file__).parent
MODELS = [
    {"id": "chat", "root": "chat", "capabilities": ["chat"], "languages": []},
    {
        "id": "voice",
        "root": "voice",
        "capabilities": ["speech"],
        "languages": ["german", "english"],
    },
    {"id": "ear", "root": "ear", "capabilities": ["transcription"], "languages": ["English"]},
]
VOICES = [
    {"id": name, "name": name, "kind": "speaker", "model": "voice"}
    for name in ("ann", "bob", "eve")
]
ANSWERS = {
    "/readyz": {"status": "ready"},
    "/v1/models": {"object": "list", "data": MODELS, "webrtc": False},
    "/v1/audio/voices": {"object": "list", "data": VOICES},
}


class Handler(BaseHTTPRequestHandler):
    """The files of the page, short lists, and nothing that talks."""

    def do_GET(self):
        path = self.path.partition("?")[0]
        file = FILES / (path.removeprefix("/page/") if path != "/" else "index.html")
        if path in ANSWERS:
            self.answer(200, "application/json", json.dumps(ANSWERS[path]).encode())
        elif file.is_file():
            self.answer(200, mimetypes.guess_type(file.name)[0], file.read_bytes())
        else:
            self.answer(404, "application/json", b"{}")

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.answer(400, "application/json", b"{}")  # no WebRTC

    def answer(self, status, kind, data):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_): ...


@contextmanager
def page_server():
    """Serve the page; yields its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
