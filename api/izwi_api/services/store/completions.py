"""Store chat completions by id (`store: true`), for an hour and in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from izwi.errors import CompletionNotFound
from izwi_api.schemas.chat_messages import Message
from izwi_api.services.store.items import Item, Range, StoredItems

_KIND = "completion"
_READ_AT_ONCE = 100

Fields = dict[str, Any]


class _Kept(msgspec.Struct):
    """A completion as it was sent, with its metadata, and the messages of its request."""

    completion: Fields
    messages: list[Fields]


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Kept)


class Listed(NamedTuple):
    """A page of a list, and whether more items follow."""

    data: list[Fields]
    has_more: bool


class StoredCompletions:
    """Completions of the last hour. Each is visible only to its own caller.

    Args:
        items: Where to store them; None for the memory of this process.
    """

    def __init__(self, items: StoredItems | None = None):
        self._items = StoredItems() if items is None else items

    async def store_completion(
        self, owner: str, completion: Fields, messages: Sequence[Message]
    ) -> None:
        """Store a completion.

        Args:
            owner: Name of the caller's API key, or empty.
            completion: The completion as it was sent, with its metadata.
            messages: The messages of its request.
        """
        name = completion["id"]
        numbered = [
            {"id": f"{name}-{place}", **_shown(message)} for place, message in enumerate(messages)
        ]
        content = _ENCODER.encode(_Kept(completion, numbered))
        await self._items.put(_KIND, name, Item(owner, completion["model"], content))

    async def find(self, owner: str, name: str) -> Fields:
        """Return a completion. Raises CompletionNotFound."""
        return (await self._find(owner, name)).completion

    async def label(self, owner: str, name: str, metadata: Mapping[str, str]) -> Fields:
        """Replace a completion's metadata; return the completion. Raises CompletionNotFound."""

        def labelled(content: bytes) -> bytes:
            kept = _DECODER.decode(content)
            kept.completion["metadata"] = dict(metadata)
            return _ENCODER.encode(kept)

        content = await self._items.change(_KIND, name, owner, labelled)
        if content is None:
            raise _no_completion(name)
        return _DECODER.decode(content).completion

    async def delete(self, owner: str, name: str) -> None:
        """Delete a completion. Raises CompletionNotFound."""
        if not await self._items.remove(_KIND, name, owner):
            raise _no_completion(name)

    async def page(self, owner: str, wanted: Range, metadata: Mapping[str, str]) -> Listed:
        """List completions.

        Args:
            owner: Name of the caller's API key, or empty.
            wanted: The page to return.
            metadata: Return only completions that have all of these entries.

        Raises:
            CompletionNotFound: `wanted.after` is unknown or has expired.
        """
        found: list[Fields] = []
        next_ones = wanted._replace(limit=_READ_AT_ONCE)
        while True:
            items = await self._items.page(_KIND, owner, next_ones)
            if items is None and next_ones.after == wanted.after and wanted.after is not None:
                raise _no_completion(wanted.after)
            for _, content in items or ():
                completion = _DECODER.decode(content).completion
                if metadata.items() <= completion["metadata"].items():
                    found.append(completion)
            if len(found) > wanted.limit or len(items or ()) < _READ_AT_ONCE:
                return Listed(found[: wanted.limit], len(found) > wanted.limit)
            next_ones = next_ones._replace(after=items[-1][0] if items else None)

    async def messages(self, owner: str, name: str, wanted: Range) -> Listed:
        """List the messages of a completion's request.

        Raises:
            CompletionNotFound: The completion is not stored, or `wanted.after` is no message of it.
        """
        listed = (await self._find(owner, name)).messages
        if wanted.newest_first:
            listed.reverse()
        if wanted.after is not None:
            ids = [message["id"] for message in listed]
            if wanted.after not in ids:
                raise _no_completion(wanted.after)
            listed = listed[ids.index(wanted.after) + 1 :]
        return Listed(listed[: wanted.limit], len(listed) > wanted.limit)

    async def _find(self, owner: str, name: str) -> _Kept:
        item = await self._items.get(_KIND, name)
        if item is None or item.owner != owner:
            raise _no_completion(name)
        return _DECODER.decode(item.content)


def _shown(message: Message) -> Fields:
    """Return a message as OpenAI lists it: with its parts beside its text."""
    fields = message.model_dump(mode="json", exclude_unset=True)
    parts = fields["content"] if isinstance(message.content, list) else None
    text = None if message.content is None else message.text
    return fields | {"content": text, "content_parts": parts, "refusal": None}


def _no_completion(name: str) -> CompletionNotFound:
    return CompletionNotFound(
        f"there is no stored completion {name[:64]!r}, or it has expired: completions with "
        "`store` are kept for an hour at most",
        param="completion_id",
    )
