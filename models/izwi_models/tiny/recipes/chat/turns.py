"""What one question and its answer are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Call:
    """One function that the assistant calls."""

    name: str
    arguments: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Turn:
    """A question with the only answer that counts as right.

    Attributes:
        user: What is asked.
        answer: What is said, after the calls' results where there are calls.
        calls: Functions to call first.
        results: What each call gives, as JSON values.
        refused: The answer instead where the functions are not offered.
    """

    user: str
    answer: str
    calls: tuple[Call, ...] = ()
    results: tuple[object, ...] = ()
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One conversation: where it takes place, and its turns.

    Attributes:
        kind: The part of the closed world that its last question belongs to.
        turns: In order.
        now: What the system message says the time is; None where it says nothing of it.
        tools: Names of the functions that are offered.
    """

    kind: str
    turns: tuple[Turn, ...]
    now: datetime | None = None
    tools: tuple[str, ...] = field(default=())
