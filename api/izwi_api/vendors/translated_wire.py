"""A vendor's WebSocket protocol over one of our live sessions.

Our session keeps its limits, its charges and its backpressure; only the messages on the wire are
another vendor's.

    client ──▶ vendor's message ──▶ Translation.incoming ──▶ ours ──▶ Service
    client ◀── vendor's message ◀── Translation.outgoing ◀── ours ◀── Service
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from izwi_api.sessions.core import Message, Wire
from izwi_api.sessions.errors import ClientLeft


class Translation(Protocol):
    """Translates the messages of one session, in both directions."""

    def incoming(self, message: Message) -> Iterable[Message]:
        """Return our messages for a client's. Raises SessionOver, which ends the session."""
        ...

    def outgoing(self, message: Message) -> Iterable[Message]:
        """Return the client's messages for one of ours."""
        ...

    @property
    def failure(self) -> int | None:
        """Close code, if an error that was sent ends the connection in the vendor's protocol."""
        ...

    def farewell(self, code: int) -> Iterable[Message]:
        """Return the last messages before the connection is closed with a code."""
        ...


class TranslatedWire:
    """A `Wire` of our messages over one of a vendor's."""

    def __init__(self, wire: Wire, translation: Translation):
        self._wire, self._translation = wire, translation
        self._inbox: deque[Message] = deque()

    async def receive(self) -> Message:
        """Return the next message. Raises ClientLeft and SessionOver."""
        while not self._inbox:
            self._inbox.extend(self._translation.incoming(await self._wire.receive()))
        return self._inbox.popleft()

    async def send(self, message: Message) -> None:
        """Send a message; wait while the client reads nothing. Raises ClientLeft."""
        for translated in self._translation.outgoing(message):
            await self._wire.send(translated)
        if self._translation.failure is not None:
            await self._wire.close(self._translation.failure, "")
            raise ClientLeft

    async def close(self, code: int, reason: str) -> None:
        """Close the connection. Raises ClientLeft."""
        for message in self._translation.farewell(code):
            await self._wire.send(message)
        await self._wire.close(code, reason)
