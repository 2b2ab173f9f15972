"""Chat completions that their callers asked to store, by id, for an hour in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from izwi.errors import CompletionNotFound
from izwi_api.services.kept_items import Item, KeptItems, Range

_KIND = "completion"
_READ_AT_ONCE = 100

Fields = dict[str, Any]


class _Kept(msgspec.Struct):
    """A completion as it was answered, with its metadata; and the messages that it answers."""

    completion: Fields
    messages: list[Fields]


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Kept)


class Listed(NamedTuple):
    """A page of a list, and whether there are more behind it."""

    data: list[Fields]
    has_more: bool


class KeptCompletions:
    """Completions of the last hour, for their own callers.

    Args:
        items: Where they are kept; None: the memory of this process.
    """

    def __init__(self, items: KeptItems | None = None):
        self._items = KeptItems() if items is None else items

    async def keep(
        self, owner: str, completion: Fields, messages: Sequence[Mapping[str, Any]]
    ) -> None:
        """Keep a completion.

        Args:
            owner: Whose it is: the API key's name, or empty.
            completion: As it was answered, with its metadata.
            messages: That it answers, as they were sent.
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
        """Give a completion other metadata, and return it. Raises CompletionNotFound."""

        def labelled(content: bytes) -> bytes:
            kept = _DECODER.decode(content)
            kept.completion["metadata"] = dict(metadata)
            return _ENCODER.encode(kept)

        content = await self._items.change(_KIND, name, owner, labelled)
        if content is None:
            raise _no_completion(name)
        return _DECODER.decode(content).completion

    async def delete(self, owner: str, name: str) -> None:
        """Forget a completion. Raises CompletionNotFound."""
        if not await self._items.remove(_KIND, name, owner):
            raise _no_completion(name)

    async def page(self, owner: str, wanted: Range, metadata: Mapping[str, str]) -> Listed:
        """List completions.

        Args:
            owner: Whose.
            wanted: Which of them.
            metadata: Only those that have all of it.

        Raises:
            CompletionNotFound: The one to begin behind is not kept, or not any more.
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
        """List the messages that a completion answers.

        Raises:
            CompletionNotFound: It is not kept, or has no message of the id to begin behind.
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


def _shown(message: Mapping[str, Any]) -> Fields:
    """A message as OpenAI lists it: parts beside the text, not instead of it."""
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    text = "\n".join(part["text"] for part in parts) if parts else content
    shown = {"content": text, "content_parts": parts, "refusal": None}
    return {**message, **shown}


def _no_completion(name: str) -> CompletionNotFound:
    return CompletionNotFound(
        f"there is no stored completion {name[:64]!r}, or it has expired: completions with "
        "`store` are kept for an hour at most",
        param="completion_id",
    )
