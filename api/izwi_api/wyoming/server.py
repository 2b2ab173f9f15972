"""The Wyoming server: TCP connections, and its announcement in the local network."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec

from izwi.errors import InvalidRequest
from izwi_api.client import AsyncClient
from izwi_api.wyoming.connection import Connection

logger = logging.getLogger(__name__)

_SERVICE = "_wyoming._tcp.local."
# Home Assistant opens one for each command.
_MAX_CONNECTIONS = 64


@asynccontextmanager
async def wyoming_server(client: AsyncClient, host: str, port: int) -> AsyncGenerator[int]:
    """Serve the protocol, and yield the port.

    Args:
        client: The server or the models that do the work, opened.
        host: Where to listen.
        port: As `host`; 0 takes a free one.

    Raises:
        OSError: The address cannot be used.
    """
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(tasks) >= _MAX_CONNECTIONS:
            writer.close()
            return
        tasks.add(task)
        try:
            await Connection(client, reader, writer).serve()
        except OSError:
            pass  # the client has left
        except Exception:
            logger.exception("a connection failed")
        finally:
            tasks.discard(task)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, host, port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


@asynccontextmanager
async def announced(port: int, address: str) -> AsyncGenerator[None]:
    """Announce the server in the local network, so that Home Assistant finds it.

    Raises:
        InvalidRequest: zeroconf is not installed.
    """
    if find_spec("zeroconf") is None:
        raise InvalidRequest(
            "--zeroconf needs a package: pip install 'izwi[wyoming]'", param="zeroconf"
        )
    from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

    name = f"izwi-{socket.gethostname().partition('.')[0]}"
    info = AsyncServiceInfo(
        _SERVICE, f"{name}.{_SERVICE}", addresses=[socket.inet_aton(address)], port=port
    )
    announcer = AsyncZeroconf()
    try:
        await announcer.async_register_service(info)
        yield
    finally:
        await announcer.async_unregister_all_services()
        await announcer.async_close()


def own_address(host: str) -> str:
    """Return the IPv4 address under which other machines reach a host that listens here."""
    if host not in ("", "0.0.0.0"):
        return socket.gethostbyname(host)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("224.0.0.251", 1))  # mDNS; nothing is sent
        return str(probe.getsockname()[0])
