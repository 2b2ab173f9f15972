"""`izwi mcp`: speech as tools for assistants."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from izwi.errors import InvalidRequest
from izwi_api.cli.options import ApiKey, Device, Dtype, Offline, ServerUrl
from izwi_api.console import messages, report_failures

if TYPE_CHECKING:
    from izwi_api.client import AsyncClient


def mcp(
    folder: Annotated[
        Path, typer.Option(help="Folder of the files that an assistant may read and write.")
    ] = Path("~/izwi-speech"),
    http: Annotated[
        bool, typer.Option("--http", help="Streamable HTTP at /mcp instead of stdio.")
    ] = False,
    host: Annotated[
        str, typer.Option(help="With --http: address of this machine's own to listen on.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65_535, help="With --http.")] = 8001,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Without a server: folder, hub id or embedded name; repeatable."),
    ] = None,
    server: ServerUrl = None,
    api_key: ApiKey = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
) -> None:
    """Serve assistants (MCP): say, transcribe, clone and list voices as tools."""
    from izwi_api.cli.running_server import speech_client
    from izwi_api.client import RuntimeOptions

    with report_failures():
        check_installed()
        check_address(host)
        runtime = RuntimeOptions(device, dtype, offline)
        client = speech_client(server, api_key, model, runtime)
        asyncio.run(_serve(client, folder.expanduser(), (host, port) if http else None))


def check_installed() -> None:
    """Raise InvalidRequest if the official SDK is not installed."""
    if find_spec("mcp") is None:
        raise InvalidRequest("izwi mcp needs a package: pip install 'izwi[mcp]'")


def check_address(host: str) -> None:
    """Raise InvalidRequest if other machines could reach an address: there are no keys here."""
    try:
        is_own = ip_address(host).is_loopback
    except ValueError:
        is_own = host == "localhost"
    if not is_own:
        raise InvalidRequest(
            f"--host {host}: tools have no keys, so they are served to this machine alone; use "
            "127.0.0.1, and a proxy that checks who calls",
            param="host",
        )


async def _serve(client: AsyncClient, folder: Path, address: tuple[str, int] | None) -> None:
    from izwi_api.mcp.server import serve_http, serve_stdio
    from izwi_api.mcp.tools import SpeechTools

    async with client:
        tools = SpeechTools(client, folder)
        if address is None:
            await serve_stdio(tools)
            return
        host, port = address
        messages().print(f"MCP server at http://{host}:{port}/mcp", markup=False)
        await serve_http(tools, host, port)
