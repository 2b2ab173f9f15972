"""Store spoken answers by id, so that a client sends an id back instead of the audio.

Stored is what the next turn's prompt has of an answer: its text, or, of a speech-to-speech model,
the ids that it emitted, 24 KB per minute. Without HTTP.
"""

from __future__ import annotations

import secrets

import msgspec

from izwi.errors import InvalidRequest
from izwi.inputs.conversation import AnswerContent
from izwi_api.services.store.items import Item, StoredItems

# The text that a chat model wrote and a speech model spoke, or what one model wrote and spoke.
StoredAnswer = str | AnswerContent

_KIND = "audio"
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[StoredAnswer] = msgspec.msgpack.Decoder(StoredAnswer)


class StoredAnswers:
    """Answers of the last hour. Each is visible only to its own caller and model.

    Args:
        items: Where to store them; None for the memory of this process.
    """

    def __init__(self, items: StoredItems | None = None):
        self._items = StoredItems() if items is None else items

    @staticmethod
    def new_id() -> str:
        """Return a new random id that cannot be guessed."""
        return f"audio_{secrets.token_hex(16)}"

    async def store_answer(
        self, owner: str, model: str, answer: StoredAnswer, name: str | None = None
    ) -> tuple[str, int]:
        """Store an answer.

        Args:
            owner: Name of the caller's API key, or empty.
            model: The model that generated the answer; no other model can read it.
            answer: What it said.
            name: An id from `new_id`; None takes a new one.

        Returns:
            Its id, and its time of expiry in seconds since 1970: now, if it could not be stored.
        """
        name = self.new_id() if name is None else name
        item = Item(owner, model, _ENCODER.encode(answer))
        return name, int(await self._items.put(_KIND, name, item))

    async def find(self, owner: str, model: str, name: str) -> StoredAnswer:
        """Return an answer.

        Raises:
            InvalidRequest: No answer has that id for this caller and model, or it has expired.
        """
        item = await self._items.get(_KIND, name)
        if item is None or item.owner != owner:
            raise InvalidRequest(
                f"there is no answer {name[:64]!r}, or it has expired: answers are kept for "
                f"{self._items.kept_s / 60:g} minutes; send its transcript as text instead",
                param="messages",
            )
        if item.model != model:
            raise InvalidRequest(
                f"the answer {name[:64]!r} was given by the model {item.model!r}",
                param="messages",
            )
        return _DECODER.decode(item.content)
