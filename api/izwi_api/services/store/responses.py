"""Store conversations by the id of their last response, so that `previous_response_id` works."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from izwi.errors import InvalidRequest
from izwi.inputs.chat import ChatMessage
from izwi_api.services.store.items import Item, StoredItems

_KIND = "response"
_ENCODER = msgspec.msgpack.Encoder()


class StoredConversation(NamedTuple):
    """A conversation up to a response, and the id that all its responses share."""

    conversation_id: str
    messages: tuple[ChatMessage, ...]


_DECODER = msgspec.msgpack.Decoder(StoredConversation)


class StoredResponses:
    """Responses of the last hour. Each is visible only to its own caller.

    Args:
        items: Where to store them; None for the memory of this process.
    """

    def __init__(self, items: StoredItems | None = None):
        self._items = StoredItems() if items is None else items

    async def store_response(
        self, owner: str, response_id: str, conversation: StoredConversation
    ) -> None:
        """Store a conversation that ends with a response.

        Args:
            owner: Name of the caller's API key, or empty.
            response_id: A new id.
            conversation: With all messages, including the response.
        """
        item = Item(owner, "", _ENCODER.encode(conversation))
        await self._items.put(_KIND, response_id, item)

    async def conversation(self, owner: str, response_id: str) -> StoredConversation:
        """Return the conversation up to a response.

        Raises:
            InvalidRequest: The caller has no such response, or it has expired.
        """
        item = await self._items.get(_KIND, response_id)
        if item is None or item.owner != owner:
            raise InvalidRequest(
                f"there is no response {response_id[:64]!r}; responses are kept for "
                "an hour at most",
                param="previous_response_id",
            )
        return _DECODER.decode(item.content)
