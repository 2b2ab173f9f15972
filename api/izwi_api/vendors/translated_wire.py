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
from izwi_api.sessions.errors import POLICY, TOO_BIG, ClientLeft, SessionOver
from izwi_api.sessions.loop_turns import LoopTurns


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that ends a connection in a vendor's protocol.

    Attributes:
        close_code: Of the close frame.
        reason: Of the close frame: our code of the error.
    """

    close_code: int
    reason: str


def failure_of(code: str) -> Failure:
    """Return how a connection ends after an error with one of our codes."""
    return Failure(TOO_BIG if code == "too_large" else POLICY, code)


def check_size(message: Message, max_bytes: int) -> None:
    """Check the size of a client's message, in bytes or characters. Raises SessionOver."""
    if len(message) > max_bytes:
        raise SessionOver(f"the message is larger than {max_bytes} bytes", "too_large", TOO_BIG)


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
    def failure(self) -> Failure | None:
        """The error that was sent, if it ends the connection in the vendor's protocol."""
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
        if (failure := self._translation.failure) is not None:
            await self._wire.close(failure.close_code, failure.reason)
            raise ClientLeft

    async def close(self, code: int, reason: str) -> None:
        """Close the connection. Raises ClientLeft."""
        for message in self._translation.farewell(code):
            await self._wire.send(message)
        await self._wire.close(code, reason)
