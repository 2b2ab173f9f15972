"""Responses of the last hour, so that the next one can go on from them; in bounded memory."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from izwi.chat import ChatInput, ChatMessage, num_characters
from izwi.errors import InvalidRequest

KEPT_S = 3600.0
MAX_CHARACTERS = 64_000_000


class KeptResponses:
    """Conversations up to a response, by its id; the oldest go first where there is no room.

    A conversation keeps the messages that it shares with the one before by reference.

    Args:
        max_characters: Of all, counted once for each response.
        clock: Seconds.
    """

    def __init__(
        self, max_characters: int = MAX_CHARACTERS, clock: Callable[[], float] = time.monotonic
    ):
        self._max_characters, self._clock = max_characters, clock
        self._kept: OrderedDict[str, tuple[float, int, tuple[ChatMessage, ...]]] = OrderedDict()
        self._num_characters = 0

    def keep(self, response_id: str, messages: tuple[ChatMessage, ...]) -> None:
        """Keep a conversation that ends with a response."""
        size = num_characters(ChatInput(messages)) + 100 * len(messages)
        self._kept[response_id] = self._clock() + KEPT_S, size, messages
        self._num_characters += size
        while self._kept and (self._num_characters > self._max_characters or self._is_old()):
            _, (_, size, _) = self._kept.popitem(last=False)
            self._num_characters -= size

    def messages(self, response_id: str) -> tuple[ChatMessage, ...]:
        """Return the conversation up to a response.

        Raises:
            InvalidRequest: It is not kept, or not any more.
        """
        until_s, _, messages = self._kept.get(response_id, (0.0, 0, ()))
        if not messages or until_s < self._clock():
            raise InvalidRequest(
                f"no response {response_id[:64]!r} is kept; they are for an hour, at most",
                param="previous_response_id",
            )
        return messages

    def _is_old(self) -> bool:
        return next(iter(self._kept.values()))[0] < self._clock()
