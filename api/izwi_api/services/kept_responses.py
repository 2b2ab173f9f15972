"""Conversations up to a response, by its id, so that the next one can go on from them."""

from __future__ import annotations

import msgspec

from izwi.chat import ChatMessage
from izwi.errors import InvalidRequest
from izwi_api.services.kept_items import Item, KeptItems

_KIND = "response"
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(tuple[ChatMessage, ...])


class KeptResponses:
    """Responses of the last hour, for their own callers.

    Args:
        items: Where they are kept; None: the memory of this process.
    """

    def __init__(self, items: KeptItems | None = None):
        self._items = KeptItems() if items is None else items

    async def keep(self, owner: str, response_id: str, messages: tuple[ChatMessage, ...]) -> None:
        """Keep a conversation that ends with a response.

        Args:
            owner: Whose it is: the API key's name, or empty.
            response_id: New.
            messages: All of them.
        """
        item = Item(owner, "", _ENCODER.encode(messages))
        await self._items.put(_KIND, response_id, item)

    async def messages(self, owner: str, response_id: str) -> tuple[ChatMessage, ...]:
        """Return the conversation up to a response.

        Raises:
            InvalidRequest: It is not kept, not any more, or is another caller's.
        """
        item = await self._items.get(_KIND, response_id)
        if item is None or item.owner != owner:
            raise InvalidRequest(
                f"there is no response {response_id[:64]!r}; responses are kept for "
                "an hour at most",
                param="previous_response_id",
            )
        return _DECODER.decode(item.content)
