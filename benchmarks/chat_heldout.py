"""Does izwi-tiny-chat answer held-out questions? Asked through `izwi chat`, on the CPU.

Each conversation is typed at a terminal, line by line, to an `izwi chat` of its own before `izwi
serve`; what it said before is its own. `izwi chat` has no functions, so conversations that offer
some go over /v1/chat/completions, with the right answers before the last question. The last answer
counts, and is right if it is the only right one, to the letter.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs

from benchmarks.measure import write_result
from izwi_models.tiny.recipes.chat.conversations import (
    KINDS,
    called,
    draw_dialogue,
    said,
    system_message,
)
from izwi_models.tiny.recipes.chat.devices import TOOLS
from izwi_models.tiny.recipes.chat.judge import is_right, up_to_last_question
from izwi_models.tiny.recipes.chat.turns import Dialogue, Turn
from izwi_models.tiny.recipes.chat.wording import Draw
from tests.api.served import served

MODEL = "izwi-tiny-chat"
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A conversation, and what its system message says."""

    dialogue: Dialogue
    system: str


@dataclass(slots=True)
class Answered:
    """What became of one.

    Attributes:
        said: The last answer, calls included.
        is_right: It is the right one.
        calls: For each call of a function, whether it follows its schema.
    """

    said: str
    is_right: bool
    calls: list[bool] = field(default_factory=list)


def draw_conversations(number: int, seed: int) -> list[Asked]:
    """So many held-out conversations of each kind; every other one has its numbers in words."""
    dice, drawn = random.Random(seed), []
    for kind in KINDS:
        for place in range(number):
            dialogue = draw_dialogue(Draw(dice, held_out=True, spoken=place % 2 == 0), kind)
            drawn.append(Asked(dialogue, system_message(dialogue, dice)))
    return drawn


def at_a_terminal(url: str, asked: Asked) -> Answered:
    """Type a conversation to `izwi chat`.

    Raises:
        RuntimeError: It failed.
    """
    ours, theirs = pty.openpty()
    command = [str(Path(sys.executable).parent / "izwi"), "chat", "--json", "--server", url]
    command += ["--model", MODEL, "--system", asked.system]
    lines = [turn.user for turn in asked.dialogue.turns]
    try:
        process = subprocess.Popen(
            command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        os.write(ours, "".join(f"{line}\n" for line in [*lines, "\x04"]).encode())
        out, errors = process.communicate(timeout=_TIMEOUT_S)
    finally:
        os.close(ours)
        os.close(theirs)
    answers = [json.loads(line)["text"] for line in out.splitlines()]
    if process.returncode or len(answers) != len(lines):
        raise RuntimeError(f"izwi chat ended with {process.returncode}: {errors.decode()[-500:]}")
    return Answered(answers[-1], answers[-1] == said(asked.dialogue.turns[-1], asked.dialogue))


def with_functions(url: str, asked: Asked) -> Answered:
    """Ask the last question of a conversation that offers functions; follow its calls."""
    dialogue, last = asked.dialogue, asked.dialogue.turns[-1]
    history = [_as_sent(message) for message in up_to_last_question(dialogue, asked.system)]
    _name_calls(history)
    first = _complete(url, dialogue, history)
    calls = [
        (c["function"]["name"], c["function"]["arguments"]) for c in first.get("tool_calls") or ()
    ]
    valid = [_is_valid(name, arguments, dialogue.tools) for name, arguments in calls]
    first_is_right = all(valid) and is_right(dialogue, first["content"], calls)
    if not called(last, dialogue):
        return Answered(first["content"] or str(calls), first_is_right, valid)
    if not first_is_right:
        return Answered(f"{first['content']} {calls}", False, valid)
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)}
        for call, result in zip(first["tool_calls"], last.results, strict=True)
    ]
    after = _complete(url, dialogue, [*history, first, *results])
    is_last_right = not after.get("tool_calls") and after["content"] == last.answer
    return Answered(f"{calls} {after['content']}", is_last_right, valid)


def _complete(url: str, dialogue: Dialogue, history: Sequence[dict[str, Any]]) -> dict[str, Any]:
    body = {"model": MODEL, "messages": history, "tools": [TOOLS[name] for name in dialogue.tools]}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=_TIMEOUT_S)
    message: dict[str, Any] = answer.raise_for_status().json()["choices"][0]["message"]
    return message


def _as_sent(message: dict[str, object]) -> dict[str, Any]:
    """A message of the recipe as a client sends it: arguments are JSON in a string."""
    if "tool_calls" not in message:
        return dict(message)
    calls: Any = message["tool_calls"]
    return message | {
        "tool_calls": [
            call
            | {
                "function": call["function"]
                | {"arguments": json.dumps(call["function"]["arguments"])}
            }
            for call in calls
        ]
    }


def _name_calls(history: Sequence[dict[str, Any]]) -> None:
    """Give calls and their results the ids that belong together."""
    waiting: list[str] = []
    for place, message in enumerate(history):
        for number, call in enumerate(message.get("tool_calls") or ()):
            call["id"] = f"call_{place}_{number}"
            waiting.append(call["id"])
        if message["role"] == "tool":
            message["tool_call_id"] = waiting.pop(0)


def _is_valid(name: str, arguments: str, offered: Sequence[str]) -> bool:
    if name not in offered:
        return False
    schema = TOOLS[name]["function"]["parameters"] | {"additionalProperties": False}
    try:
        return bool(jsonschema_rs.is_valid(schema, json.loads(arguments)))
    except json.JSONDecodeError:
        return False


def _ask(url: str, asked: Asked) -> Answered:
    return with_functions(url, asked) if asked.dialogue.tools else at_a_terminal(url, asked)


def main() -> None:
    """Ask, print what was answered wrong, and write the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=130, help="conversations of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=2)
    options = parser.parse_args()
    conversations = draw_conversations(options.number, options.seed)
    folder = Path("build/chat_heldout")
    folder.mkdir(parents=True, exist_ok=True)
    with served(folder, "--model", MODEL) as server, ThreadPoolExecutor(options.at_once) as pool:
        answers = list(pool.map(lambda asked: _ask(server.url, asked), conversations))
    right, counts, calls = Counter[str](), Counter[str](), [v for a in answers for v in a.calls]
    for asked, answer in zip(conversations, answers, strict=True):
        counts[asked.dialogue.kind] += 1
        right[asked.dialogue.kind] += answer.is_right
        if not answer.is_right:
            turn: Turn = asked.dialogue.turns[-1]
            wanted = said(turn, asked.dialogue)
            print(f"{asked.dialogue.kind}: {turn.user} -> {answer.said} | {wanted}")
    rows = [
        {"kind": kind, "asked": count, "right": round(right[kind] / count, 4)}
        for kind, count in counts.items()
    ]
    total = {"kind": "all", "asked": len(answers), "right": round(right.total() / len(answers), 4)}
    at_terminals = sum(not asked.dialogue.tools for asked in conversations)
    write_result(
        "chat_heldout",
        [*rows, total],
        seed=options.seed,
        through_izwi_chat=at_terminals,
        calls=len(calls),
        calls_valid=round(sum(calls) / max(len(calls), 1), 4),
    )


if __name__ == "__main__":
    main()
