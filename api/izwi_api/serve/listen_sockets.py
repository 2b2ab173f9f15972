"""Listening sockets: opened once, shared by all API servers."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from izwi_api.settings import TlsFiles

_BACKLOG = 2048


def open_listen_sockets(host: str, port: int) -> list[socket.socket]:
    """Listen at every address of a host.

    Args:
        host: Name or address; empty for all addresses of this machine.
        port: 0 takes a free port, the same at every address.

    Raises:
        OSError: The host has no address on this machine, or the port is taken.
    """
    flags = socket.AI_PASSIVE
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
    made: list[socket.socket] = []
    with ExitStack() as stack:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                listener = stack.enter_context(socket.socket(family, kind, protocol))
            except OSError:  # a kernel without IPv6 may still list IPv6 addresses
                continue
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if made and not port:
                address = (address[0], made[0].getsockname()[1], *address[2:])
            listener.bind(address)
            listener.listen(_BACKLOG)
            made.append(listener)
        stack.pop_all()
    if not made:
        raise OSError(f"{host!r} has no address to listen on")
    return made


class ListenSocket(socket.socket):
    """A socket that already listens, in one of the processes that accept from it."""

    def listen(self, backlog: int = 0, /) -> None:
        """Do nothing: asyncio would shorten the queue to what it accepts at once."""


def url_of(host: str, listen_sockets: list[socket.socket], tls: TlsFiles | None = None) -> str:
    """Return the URL of a listening server."""
    scheme = "http" if tls is None else "https"
    name = host or "0.0.0.0"
    port = listen_sockets[0].getsockname()[1]
    return f"{scheme}://[{name}]:{port}" if ":" in name else f"{scheme}://{name}:{port}"
