"""Proxies with the configurations of docs/operations/proxies: nothing waits in them for more.

The other side goes on only when this side has got what was sent, so a proxy that buffers would
never let a test end.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
import websockets
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute

FOLDER = Path(__file__).parents[2] / "docs" / "operations" / "proxies"
WAIT_S = 20.0


def nginx(port: int, upstream: int, folder: Path) -> list[str]:
    text = (FOLDER / "nginx.conf").read_text()
    text = re.sub(r"\n    ssl_certificate.*", "", text)
    text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port}")
    text = text.replace("127.0.0.1:8000", f"127.0.0.1:{upstream}")
    path, kinds = folder / "nginx.conf", ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    path.write_text(
        f"daemon off; pid {folder}/pid; error_log stderr;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}{text}}}\n"
    )
    return ["nginx", "-p", str(folder), "-c", str(path), "-e", "stderr"]


def caddy(port: int, upstream: int, folder: Path) -> list[str]:
    text = (FOLDER / "Caddyfile").read_text()
    text = text.replace("izwi.example {", f"http://127.0.0.1:{port} {{", 1)
    text = text.replace("127.0.0.1:8000", f"127.0.0.1:{upstream}")
    path = folder / "Caddyfile"
    path.write_text("{\n\tadmin off\n}\n" + text)
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(path)]


def haproxy(port: int, upstream: int, folder: Path) -> list[str]:
    text = (FOLDER / "haproxy.cfg").read_text()
    text = re.sub(r"bind :443 ssl crt \S+", f"bind 127.0.0.1:{port}", text)
    text = text.replace("127.0.0.1:8000", f"127.0.0.1:{upstream}")
    path = folder / "haproxy.cfg"
    path.write_text(text)
    return ["haproxy", "-db", "-f", str(path)]


class Server:
    """What stands behind the proxy."""

    def __init__(self):
        self.has_more, self.has_first = asyncio.Event(), asyncio.Event()
        self.has_left = asyncio.Event()
        self.hosts = []

    async def stream(self, request):
        self.hosts.append(request.headers["host"])

        async def parts():
            try:
                yield b"first"
                await self.has_more.wait()
                yield b"second"
            finally:
                self.has_left.set()

        return StreamingResponse(parts(), media_type="audio/pcm")

    async def upload(self, request):
        got = b""
        async for part in request.stream():
            got += part
            self.has_first.set()
        return PlainTextResponse(got)

    async def echo(self, socket):
        await socket.accept()
        async for text in socket.iter_text():
            await socket.send_text(text.upper())

    @property
    def app(self):
        upload = Route("/upload", self.upload, methods=["POST"])
        return Starlette(
            routes=[Route("/stream", self.stream), upload, WebSocketRoute("/echo", self.echo)]
        )


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@asynccontextmanager
async def proxied(command, folder: Path):
    """Yield a server and the port of a proxy before it."""
    server, port = Server(), free_port()
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    runner = uvicorn.Server(uvicorn.Config(server.app, log_level="critical", lifespan="off"))
    running = asyncio.create_task(runner.serve(sockets=[listening]))
    arguments = command(port, listening.getsockname()[1], folder)
    with (folder / "log").open("wb") as log:
        proxy = subprocess.Popen(  # noqa: ASYNC220
            arguments, stdout=log, stderr=log, env={"PATH": "/usr/sbin:/usr/bin", "HOME": folder}
        )
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    try:
                        _, writer = await asyncio.open_connection("127.0.0.1", port)
                        break
                    except OSError:
                        assert proxy.poll() is None, (folder / "log").read_text()
                        await asyncio.sleep(0.05)
                writer.close()
            yield server, port
        finally:
            proxy.terminate()
            proxy.wait(10)
            runner.should_exit = runner.force_exit = True
            await running
            listening.close()


def each(command):
    missing = shutil.which(command.__name__, path="/usr/sbin:/usr/bin:/usr/local/bin") is None
    mark = pytest.mark.skipif(missing, reason=f"apt-get install {command.__name__}")
    return pytest.param(command, marks=mark, id=command.__name__)


@pytest.mark.slow
@pytest.mark.parametrize("command", [each(nginx), each(caddy), each(haproxy)])
async def test_streams_uploads_and_sockets_pass_a_proxy_as_they_are_made(command, tmp_path):
    async with (
        proxied(command, tmp_path) as (server, port),
        asyncio.timeout(WAIT_S),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        async with http.stream("GET", "/stream") as answer:
            parts = answer.aiter_raw()
            assert await anext(parts) == b"first"
            server.has_more.set()
            assert b"".join([part async for part in parts]) == b"second"
        assert server.hosts == [f"127.0.0.1:{port}"] or command is nginx

        async def body():
            yield b"a" * 1000
            await server.has_first.wait()
            yield b"b" * 3_000_000

        assert len((await http.post("/upload", content=body())).content) == 3_001_000
        async with websockets.connect(f"ws://127.0.0.1:{port}/echo", proxy=None) as live:
            for text in ("one", "two"):
                await live.send(text)
                assert await live.recv() == text.upper()


@pytest.mark.slow
@pytest.mark.parametrize("command", [each(nginx), each(caddy), each(haproxy)])
async def test_a_proxy_tells_the_server_that_a_caller_has_left(command, tmp_path):
    async with (
        proxied(command, tmp_path) as (server, port),
        asyncio.timeout(WAIT_S),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        async with http.stream("GET", "/stream") as answer:
            assert await anext(answer.aiter_raw()) == b"first"
        await server.has_left.wait()
