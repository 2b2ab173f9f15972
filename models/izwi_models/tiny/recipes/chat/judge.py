"""Judge the last answer of a conversation: it must equal the right one exactly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from izwi_models.tiny.recipes.chat.conversations import called, messages, said
from izwi_models.tiny.recipes.chat.turns import Dialogue


def up_to_last_question(dialogue: Dialogue, system: str) -> list[dict[str, Any]]:
    """Return the messages up to the last question, each earlier one with its right answer."""
    before = Dialogue(dialogue.kind, dialogue.turns[:-1], dialogue.now, dialogue.tools)
    question = {"role": "user", "content": dialogue.turns[-1].user}
    return [{"role": "system", "content": system}, *messages(before, ""), question]


def is_right(dialogue: Dialogue, content: str, calls: Sequence[tuple[str, str]]) -> bool:
    """Return whether the first message after the last question is the right one.

    Args:
        dialogue: The conversation.
        content: Text of the message.
        calls: Name and JSON arguments of each function call in the message.
    """
    last = dialogue.turns[-1]
    if not called(last, dialogue):
        return not calls and content == said(last, dialogue)
    wanted = [(call.name, dict(call.arguments)) for call in last.calls]
    try:
        return [(name, json.loads(arguments)) for name, arguments in calls] == wanted
    except json.JSONDecodeError:
        return False
