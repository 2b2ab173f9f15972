"""Store spoken answers by id, so that a client sends an id back instead of the audio.

Stored are the token ids that the model emitted, 24 KB per minute. Without HTTP.
"""

from __future__ import annotations

import secrets

import numpy as np

from izwi.errors import InvalidRequest
from izwi.inputs.conversation import Answer
from izwi_api.services.store.items import Item, StoredItems

_KIND = "audio"


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

    async def keep(
        self, owner: str, model: str, entries: Answer, name: str | None = None
    ) -> tuple[str, int]:
        """Store an answer.

        Args:
            owner: Name of the caller's API key, or empty.
            model: The model that generated the answer; no other model can read it.
            entries: The answer's log.
            name: An id from `new_id`; None takes a new one.

        Returns:
            Its id, and its time of expiry in seconds since 1970: now, if it could not be stored.
        """
        name = self.new_id() if name is None else name
        item = Item(owner, model, _packed(entries))
        return name, int(await self._items.put(_KIND, name, item))

    async def find(self, owner: str, model: str, name: str) -> Answer:
        """Return the log of an answer.

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
        return _unpacked(item.content)


def _packed(entries: Answer) -> bytes:
    """Pack ids as int32 rows, shorter entries padded with -1, after the length of a row."""
    width = max(map(len, entries), default=1)
    rows = np.full((len(entries), width), -1, "<i4")
    for row, ids in zip(rows, entries, strict=True):
        row[: len(ids)] = ids
    return bytes([width]) + rows.tobytes()


def _unpacked(content: bytes) -> Answer:
    rows = np.frombuffer(content, "<i4", offset=1).reshape(-1, content[0])
    return tuple(tuple(i for i in row if i >= 0) for row in rows.tolist())
