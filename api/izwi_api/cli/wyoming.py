"""`izwi wyoming`: speech and transcription for Home Assistant."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from izwi_api.cli.options import ApiKey, Device, Dtype, Offline, ServerUrl
from izwi_api.console import messages, report_failures

if TYPE_CHECKING:
    from izwi_api.client import AsyncClient


def wyoming(
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for other machines, without a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on.")] = 10_300,
    zeroconf: Annotated[
        bool,
        typer.Option(
            "--zeroconf", help="Let Home Assistant find it (pip install 'izwi[wyoming]')."
        ),
    ] = False,
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
    """Serve Home Assistant (Wyoming): in front of a server, or with models of its own."""
    from izwi_api.cli.running_server import speech_client
    from izwi_api.client import RuntimeOptions

    with report_failures():
        runtime = RuntimeOptions(device, dtype, offline)
        client = speech_client(server, api_key, model, runtime)
        asyncio.run(_serve(client, host, port, zeroconf=zeroconf))


async def _serve(client: AsyncClient, host: str, port: int, *, zeroconf: bool) -> None:
    from izwi_api.wyoming.info import describe
    from izwi_api.wyoming.server import announced, own_address, wyoming_server

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(client)
        await describe(client)  # a server that cannot be reached is reported now
        port = await stack.enter_async_context(wyoming_server(client, host, port))
        if zeroconf:
            await stack.enter_async_context(announced(port, own_address(host)))
        messages().print(f"Wyoming server at tcp://{host}:{port}", markup=False)
        await asyncio.Event().wait()
