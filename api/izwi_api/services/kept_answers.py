"""Earlier spoken answers by id, so that a client sends an id back instead of the sound.

They are kept as the ids that the model made, 24 KB for a minute. Knows no HTTP.
"""

from __future__ import annotations

import secrets

import numpy as np

from izwi.conversation import Answer
from izwi.errors import InvalidRequest
from izwi_api.services.kept_items import Item, KeptItems

_KIND = "audio"


class KeptAnswers:
    """Answers of the last hour, for their own callers and models.

    Args:
        items: Where they are kept; None: the memory of this process.
    """

    def __init__(self, items: KeptItems | None = None):
        self._items = KeptItems() if items is None else items

    @staticmethod
    def new_id() -> str:
        """Return an id that nobody can guess."""
        return f"audio_{secrets.token_hex(16)}"

    async def keep(
        self, owner: str, model: str, entries: Answer, name: str | None = None
    ) -> tuple[str, int]:
        """Keep an answer.

        Args:
            owner: Whose it is: the API key's name, or empty.
            model: Which made it; another one cannot read it.
            entries: Its log.
            name: One of `new_id`; None takes a new one.

        Returns:
            Its id, and when it expires, in seconds since 1970: now, if it cannot be kept.
        """
        name = self.new_id() if name is None else name
        item = Item(owner, model, _packed(entries))
        return name, int(await self._items.put(_KIND, name, item))

    async def find(self, owner: str, model: str, name: str) -> Answer:
        """Return the log of an answer.

        Raises:
            InvalidRequest: There is none of that id: it never was, has expired, is another
                caller's, or of another model.
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
    """Ids as int32 rows, -1 behind shorter entries, and before them the length of a row."""
    width = max(map(len, entries), default=1)
    rows = np.full((len(entries), width), -1, "<i4")
    for row, ids in zip(rows, entries, strict=True):
        row[: len(ids)] = ids
    return bytes([width]) + rows.tobytes()


def _unpacked(content: bytes) -> Answer:
    rows = np.frombuffer(content, "<i4", offset=1).reshape(-1, content[0])
    return tuple(tuple(i for i in row if i >= 0) for row in rows.tolist())
