"""Keep a long conversation within the model's context: the oldest turns are left out of prompts.

A prompt that begins at another item for each answer is never found in the prefix cache. So a cut
leaves room for several turns, and later prompts begin where it was made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from izwi.errors import ContextTooLong
from izwi_api.realtime.answering.live_answer import LiveAnswer
from izwi_api.realtime.protocol.items import Item

# Share of the context that is kept for the answer, and the most tokens of it.
_ANSWER_SHARE = 8
_MOST_ANSWER_TOKENS = 4096
# Audio that takes the room of one character, and what each item takes besides its content.
_MS_PER_CHARACTER = 20
_CHARACTERS_PER_ITEM = 16
# Room of an image of a megapixel, 1,024 tokens.
_CHARACTERS_PER_IMAGE = 4096


def answer_room(max_positions: int, max_tokens: int | None) -> int:
    """Return the tokens of a context that a prompt leaves to the answer."""
    return min(max_tokens or _MOST_ANSWER_TOKENS, max_positions // _ANSWER_SHARE)


async def open_within(
    items: Sequence[Item],
    ratio: float | None,
    most_tokens: int,
    start: Callable[[Sequence[Item]], Awaitable[LiveAnswer]],
) -> LiveAnswer:
    """Start an answer; leave out the oldest turns if the prompt is too long.

    Args:
        items: What the answer is to. Items that are left out get `is_left_out`.
        ratio: Share of the items that a cut keeps, from 0 to 1; None never cuts.
        most_tokens: Longest prompt, in tokens.
        start: Starts the answer to items.

    Raises:
        ContextTooLong: The last turn alone is too long, or the items are and nothing may be cut.
        IzwiError: The answer cannot be started.
    """
    while True:
        shorter = [] if ratio is None else without_oldest(items, ratio)
        try:
            answer = await start(items)
        except ContextTooLong:
            if not shorter:
                raise
        else:
            if not shorter or answer.answer.num_prompt_tokens <= most_tokens:
                return answer
            answer.abort()
        kept = {item.item_id for item in shorter}
        for item in items:
            item.is_left_out |= item.item_id not in kept
        items = shorter


def without_oldest(items: Sequence[Item], ratio: float) -> list[Item]:
    """Return the items without the oldest turns, or none if there is only one turn.

    What remains begins with a message of the user, so that no call is cut from its output. Messages
    of the system remain.
    """
    turns = [n for n, item in enumerate(items) if item.role == "user"]
    starts = [n for n in turns if any(item.role != "system" for item in items[:n])]
    most = ratio * sum(_size(item) for item in items if item.role != "system")
    for start in starts:
        rest = items[start:]
        size = sum(_size(item) for item in rest if item.role != "system")
        if size <= most or start == starts[-1]:
            return [item for item in items[:start] if item.role == "system"] + list(rest)
    return []


def _size(item: Item) -> float:
    """Return the room that an item takes in a prompt, in characters."""
    audio_ms = sum(part.audio_ms for part in item.content)
    images = sum(part.image is not None for part in item.content) * _CHARACTERS_PER_IMAGE
    return item.num_characters + audio_ms / _MS_PER_CHARACTER + images + _CHARACTERS_PER_ITEM
