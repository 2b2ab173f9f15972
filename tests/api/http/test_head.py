"""HEAD answers as GET does, without a body: what health checks such as `wget --spider` send."""

from __future__ import annotations

import asyncio
import socket

import pytest

from izwi_api.http.head import Head

PATHS = ("/livez", "/readyz", "/v1/models", "/v1/models/tts", "/", "/docs", "/openapi.json")


@pytest.mark.parametrize("path", PATHS)
def test_it_has_the_headers_of_get(client, path):
    head, get = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"") == (200, b"")
    for name in ("content-type", "content-length"):
        assert head.headers[name] == get.headers[name]


def test_paths_without_get_refuse_it(client):
    refused = client.head("/v1/audio/speech")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert client.head("/v1/nothing").status_code == 404
    assert client.post("/livez").headers["allow"] == "GET, HEAD"


def test_a_connection_goes_on_after_it(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
        raw.sendall(
            b"HEAD /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
            b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        answers = raw.makefile("rb").read()
    first, second = answers.split(b"\r\n\r\n", 1)
    assert first.startswith(b"HTTP/1.1 200")
    assert second.startswith(b"HTTP/1.1 200")
    assert second.endswith(b'{"status":"ok"}')


def test_head_of_a_stream_sends_no_body():
    sent = []

    async def app(scope, receive, send):
        assert scope["method"] == "GET"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(3):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await send({"type": "http.response.body", "body": b"x"})

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "HEAD"}
    asyncio.run(Head(app)(scope, None, send))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[-1].get("body") == b""
    assert scope["method"] == "HEAD"  # what the server sees
