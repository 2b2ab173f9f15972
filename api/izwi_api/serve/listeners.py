"""The sockets that listen for clients: made once, and shared by all doors."""

from __future__ import annotations

import socket
from contextlib import ExitStack

_BACKLOG = 2048


def open_listeners(host: str, port: int) -> list[socket.socket]:
    """Listen at every address of a host.

    Args:
        host: Name or address; empty for all of this machine.
        port: 0 takes one that is free, the same at every address.

    Raises:
        OSError: The host has no address here, or the port is taken.
    """
    flags = socket.AI_PASSIVE
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
    made: list[socket.socket] = []
    with ExitStack() as stack:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                listener = stack.enter_context(socket.socket(family, kind, protocol))
            except OSError:  # a kernel without IPv6 may name addresses of it
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
        raise OSError(f"{host!r} has no address to listen at")
    return made


class SharedListener(socket.socket):
    """A socket that listens already, in one of the processes that accept from it."""

    def listen(self, backlog: int = 0, /) -> None:
        """Nothing: asyncio would make the queue as short as what it accepts in one go."""


def url_of(host: str, listeners: list[socket.socket]) -> str:
    """The address for people."""
    name = host or "0.0.0.0"
    port = listeners[0].getsockname()[1]
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"
