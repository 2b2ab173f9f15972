"""A vendor's WebSocket protocol over one of our live sessions.

Our session keeps its limits, its charges and its backpressure; only the messages on the wire are
another vendor's.

    client ──▶ vendor's message ──▶ Translation.incoming ──▶ ours ──▶ Service
    client ◀── vendor's message ◀── Translation.outgoing ◀── ours ◀── Service
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from izwi_api.sessions.core import Message, Wire
from izwi_api.sessions.errors import ClientLeft
from izwi_api.sessions.loop_turns import LoopTurns


@dataclass(frozen=True, slots=True)
class Reply:
    """A message for the client that no service needs to know of."""

    message: Message


@dataclass(frozen=True, slots=True)
class Pause:
    """The rest of a long message waits for its turn of the event loop."""


class Translation(Protocol):
    """Translates the messages of one session, in both directions."""

    @property
    def failure(self) -> int | None:
        """Close code, if an error that was sent ends the connection in the vendor's protocol."""
        ...

    def greeting(self) -> Iterable[Message]:
        """Return the client's first messages."""
        ...

    def incoming(self, message: Message) -> Iterable[Message | Reply | Pause]:
        """Return our messages for a client's. Raises SessionOver, which ends the session.

        They are read one by one: each when the service has handled the one before. What takes
        more than some milliseconds is cut by pauses.
        """
        ...

    def outgoing(self, message: Message) -> Iterable[Message]:
        """Return the client's messages for one of ours."""
        ...

    def farewell(self, code: int) -> Iterable[Message]:
        """Return the last messages before the connection is closed with a code."""
        ...


class TranslatedWire:
    """A `Wire` of our messages over one of a vendor's.

    Args:
        wire: The vendor's messages.
        translation: Translates them.
        turns: What a pause waits for.
    """

    def __init__(self, wire: Wire, translation: Translation, turns: LoopTurns):
        self._wire, self._translation, self._turns = wire, translation, turns
        self._greets = True
        self._inbox: Iterator[Message | Reply | Pause] = iter(())

    async def receive(self) -> Message:
        """Return the next message. Raises ClientLeft and SessionOver."""
        if self._greets:
            self._greets = False
            for message in self._translation.greeting():
                await self._wire.send(message)
        while True:
            for translated in self._inbox:
                match translated:
                    case Pause():
                        await self._turns.wait_for_turn()
                    case Reply(reply):
                        await self._wire.send(reply)
                    case _:
                        return translated
            self._inbox = iter(self._translation.incoming(await self._wire.receive()))

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
