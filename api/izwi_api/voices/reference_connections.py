"""Connect to hosts that the operator listed or named, and to nothing that their names hide.

A name is resolved once, all of its addresses must be public, and the connection uses one of these:
a name server that changes its answer a moment later has no effect. No proxy is used.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from izwi_api.fair_timeout import fair_timeout
from izwi_api.voices.reference_hosts import ReferenceHost, is_public

# Name -> its IP addresses. Raises OSError if it has none.
Resolve = Callable[[str], Awaitable[Sequence[str]]]

_MAX_ADDRESSES = 3  # of one name that are tried


class NotReached(Exception):
    """Why nothing was exchanged with a host, for the log."""


class HostConnector:
    """Opens connections.

    Args:
        setting: What names the hosts, for messages.
        resolve: Resolves a name; by default the system's resolver.
        tls: Verifies servers; by default with the system's certificates.
    """

    def __init__(
        self, setting: str, resolve: Resolve | None = None, tls: ssl.SSLContext | None = None
    ):
        self._setting = setting
        self._resolve = resolve or self._ask_system
        self._tls = tls
        # A separate pool, because a slow name server must not delay decoding.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="resolve")

    def stop(self) -> None:
        """Stop resolving names."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def connect(
        self, host: ReferenceHost, within_s: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a host; its addresses share the time.

        Raises:
            NotReached: It leads to an internal address, or no address accepts.
            OSError: The name cannot be resolved.
        """
        # An IP address that the operator wrote may be an internal one.
        addresses = [host.name] if host.is_literal else await self._public_addresses(host.name)
        is_tls = host.scheme == "https"
        if is_tls and self._tls is None:
            self._tls = await asyncio.to_thread(ssl.create_default_context)
        failure: OSError | None = None
        for address in addresses:
            try:
                async with fair_timeout(within_s / len(addresses)):
                    return await asyncio.open_connection(
                        address,
                        host.port,
                        ssl=self._tls if is_tls else None,
                        server_hostname=host.name if is_tls else None,
                    )
            except OSError as error:
                failure = error
        raise NotReached(f"no connection, {reason_of(failure)}")

    async def _public_addresses(self, name: str) -> Sequence[str]:
        """Return the addresses of a name, all of which must be public."""
        addresses = list(dict.fromkeys(await self._resolve(name)))
        if not addresses:
            raise NotReached("the name has no address")
        for address in addresses:
            if not is_public(address):
                raise NotReached(
                    f"the name resolves to {address}, which is not public; {self._setting} with "
                    "that address itself allows it"
                )
        return addresses[:_MAX_ADDRESSES]

    async def _ask_system(self, name: str) -> Sequence[str]:
        def look_up() -> list[str]:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            return [str(where[0]) for family, _, _, _, where in found if family in families]

        families = (socket.AF_INET, socket.AF_INET6)
        return await asyncio.get_running_loop().run_in_executor(self._threads, look_up)


def reason_of(error: BaseException | None) -> str:
    """Return why an exchange failed, for the log."""
    if isinstance(error, NotReached):
        return str(error)
    if isinstance(error, TimeoutError):
        return "it took too long"
    return f"{type(error).__name__}: {error}"
