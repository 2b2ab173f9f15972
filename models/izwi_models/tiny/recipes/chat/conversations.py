"""Whole conversations of the closed world, and their token ids.

The ids equal those of the checkpoint's own template (`settings.TEMPLATE`); a test compares them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from izwi_models.tiny.recipes.chat import settings
from izwi_models.tiny.recipes.chat.arithmetic import arithmetic
from izwi_models.tiny.recipes.chat.clock import a_moment, clock, clock_time, date
from izwi_models.tiny.recipes.chat.devices import TOOLS, devices
from izwi_models.tiny.recipes.chat.facts import facts
from izwi_models.tiny.recipes.chat.small_talk import small_talk, unknown
from izwi_models.tiny.recipes.chat.turns import Call, Dialogue, Turn
from izwi_models.tiny.recipes.chat.units import units
from izwi_models.tiny.recipes.chat.wording import Draw, NoWordingError
from izwi_models.tiny.recipes.chat.words import words

_PERSONAS = (
    "",
    "You are a helpful assistant.",
    "You are izwi, a friendly voice assistant.",
    "You are a helpful voice assistant. Answer briefly.",
    "Be short.",
    "You are a smart home assistant.",
    "Answer the user's questions.",
)
KINDS: dict[str, float] = {
    "arithmetic": 5.0,
    "words": 3.5,
    "units": 2.0,
    "facts": 3.0,
    "clock": 2.0,
    "devices": 2.0,
    "small talk": 1.0,
    "unknown": 1.2,
}
# Shares in training: more questions of hard kinds. Function lists are long, so they are rare, but
# then most questions use them.
_TRAINED = KINDS | {"arithmetic": 6.0, "units": 9.0, "clock": 2.5, "small talk": 1.3}
_TRAINED_WITH_TOOLS = _TRAINED | {"devices": 8.0}
_TOOLS_OFFERED = 0.12
_PLAIN: dict[str, Callable[[Draw], list[Turn]]] = {
    "arithmetic": arithmetic,
    "words": words,
    "units": units,
    "facts": facts,
    "devices": devices,
    "small talk": small_talk,
    "unknown": unknown,
}


class Tokens(NamedTuple):
    """A conversation as token ids.

    Attributes:
        ids: (n,) int64.
        spans: [start, stop) of each message of the assistant.
    """

    ids: npt.NDArray[np.int64]
    spans: list[tuple[int, int]]

    @property
    def answers(self) -> npt.NDArray[np.bool_]:
        """(n,) bool, whether an id belongs to a message of the assistant."""
        told = np.zeros(len(self.ids), bool)
        for begin, end in self.spans:
            told[begin:end] = True
        return told


def draw_dialogue(draw: Draw, kind: str | None = None) -> Dialogue:
    """Draw a conversation of one or a few questions.

    Args:
        draw: Source of choices from one part of the split.
        kind: Kind of the last question; None draws it.
    """
    dice = draw.random
    now = a_moment(draw) if dice.random() < 0.85 else None
    offered = tuple(TOOLS) if dice.random() < 0.5 else ()
    if offered and dice.random() < 0.2:
        offered = tuple(dice.sample(offered, 2))
    if kind == "devices" or dice.random() < 0.1:
        offered = tuple(TOOLS)
    kinds = list(KINDS)
    several = 1 if dice.random() < 0.65 else dice.randint(2, 3)
    chosen = dice.choices(kinds, list(KINDS.values()), k=several)
    if kind is not None:
        chosen[-1] = kind
    turns: list[Turn] = []
    for name in chosen:
        turns += _questions(draw, name, now)
    return Dialogue(chosen[-1], tuple(turns), now, offered)


def draw_trained(draw: Draw) -> Dialogue:
    """Draw a conversation for training; hard kinds of questions are more frequent."""
    dice = draw.random
    now = a_moment(draw) if dice.random() < 0.85 else None
    offered: tuple[str, ...] = ()
    if dice.random() < _TOOLS_OFFERED:
        offered = tuple(TOOLS) if dice.random() < 0.8 else tuple(dice.sample(tuple(TOOLS), 2))
    several = dice.randint(2, 4) if offered else dice.choices((1, 2, 3, 4), (5, 3, 2, 1))[0]
    weights = _TRAINED_WITH_TOOLS if offered else _TRAINED
    chosen = dice.choices(list(weights), list(weights.values()), k=several)
    turns = [turn for name in chosen for turn in _questions(draw, name, now)]
    return Dialogue(chosen[-1], tuple(turns), now, offered)


def _questions(draw: Draw, kind: str, now: datetime | None) -> list[Turn]:
    """Draw questions of one kind that have a wording in this part of the split."""
    for _ in range(1000):
        try:
            return clock(draw, now) if kind == "clock" else _PLAIN[kind](draw)
        except NoWordingError:
            continue
    raise NoWordingError(kind)


def system_message(dialogue: Dialogue, dice: random.Random) -> str:
    """Return the system message: a persona, and the time if the conversation has one."""
    now = dialogue.now
    default = now is not None and dice.random() < 0.6
    persona = "" if default else dice.choice(_PERSONAS)
    told = "" if now is None else (told_time(now) if default else _told(now, dice))
    return " ".join(part for part in (persona, told) if part)


def told_time(now: datetime) -> str:
    """Return the time in the words of the checkpoint's template."""
    return now.strftime("It is %H:%M on %A, %-d %B %Y.")


def _told(now: datetime, dice: random.Random) -> str:
    forms = (
        told_time(now),
        now.strftime("The time is %H:%M. Today is %A, %-d %B %Y."),
        now.strftime("Current date: %Y-%m-%d (%A). Current time: %H:%M."),
        now.strftime("Now: %Y-%m-%d %H:%M, %A."),
        f"The time is {clock_time(now)} and the date is {date(now)}.",
    )
    return dice.choice(forms)


def messages(dialogue: Dialogue, system: str) -> list[dict[str, object]]:
    """Return the messages that a client of the chat endpoint would send, including answers."""
    listed: list[dict[str, object]] = [{"role": "system", "content": system}] if system else []
    for turn in dialogue.turns:
        listed.append({"role": "user", "content": turn.user})
        if not called(turn, dialogue):
            listed.append({"role": "assistant", "content": said(turn, dialogue)})
            continue
        calls = [
            {"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
            for c in turn.calls
        ]
        listed.append({"role": "assistant", "content": "", "tool_calls": calls})
        listed += [{"role": "tool", "content": json.dumps(result)} for result in turn.results]
        listed.append({"role": "assistant", "content": turn.answer})
    return listed


def called(turn: Turn, dialogue: Dialogue) -> bool:
    """Return whether a turn calls functions: it has calls, and all of them are offered."""
    return bool(turn.calls) and all(call.name in dialogue.tools for call in turn.calls)


def said(turn: Turn, dialogue: Dialogue) -> str:
    """Return the assistant's final message of a turn."""
    return turn.refused if turn.calls and not called(turn, dialogue) else turn.answer


def call_text(call: Call) -> str:
    """Return a call as JSON, as written between its tags."""
    arguments = json.dumps(dict(call.arguments))
    return f'\n{{"name": "{call.name}", "arguments": {arguments}}}\n'


def encode(dialogue: Dialogue, system: str) -> Tokens:
    """Return the ids of a conversation, as the template renders it."""
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    tokens = settings

    def add(*parts: int | str) -> None:
        for part in parts:
            ids.extend([part] if isinstance(part, int) else part.encode())

    def answer(*parts: int | str) -> None:
        add(tokens.START, "assistant\n")
        begin = len(ids)
        add(*parts, tokens.END)
        spans.append((begin, len(ids)))
        add("\n")

    offered = "".join(f"\n{json.dumps(TOOLS[name])}" for name in dialogue.tools)
    head = system + (f"\n\n# Tools{offered}" if offered else "")
    if head:
        add(tokens.START, f"system\n{head}", tokens.END, "\n")
    for turn in dialogue.turns:
        add(tokens.START, f"user\n{turn.user}", tokens.END, "\n")
        if called(turn, dialogue):
            written: list[int | str] = []
            for place, call in enumerate(turn.calls):
                written += ["\n"] if place else []
                written += [tokens.TOOL_CALL, call_text(call), tokens.END_TOOL_CALL]
            answer(*written)
            for result in turn.results:
                add(tokens.START, "user\n", tokens.TOOL_RESPONSE, f"\n{json.dumps(result)}\n")
                add(tokens.END_TOOL_RESPONSE, tokens.END, "\n")
        answer(said(turn, dialogue))
    return Tokens(np.array(ids, np.int64), spans)
