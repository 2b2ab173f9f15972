"""Types of a conversation: function calls, turns and dialogues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Call:
    """One function call of the assistant."""

    name: str
    arguments: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Turn:
    """A question with its only right answer.

    Attributes:
        user: The question.
        answer: The answer; if there are calls, the one after their results.
        calls: Functions to call first.
        results: The result of each call, as a JSON value.
        refused: The answer if the functions are not offered.
    """

    user: str
    answer: str
    calls: tuple[Call, ...] = ()
    results: tuple[object, ...] = ()
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One conversation: its turns, and the contents of its system message.

    Attributes:
        kind: Kind of its last question.
        turns: The turns in order.
        now: The time in the system message; None if it has none.
        tools: Names of the offered functions.
    """

    kind: str
    turns: tuple[Turn, ...]
    now: datetime | None = None
    tools: tuple[str, ...] = field(default=())
