"""How many held-out questions does izwi-tiny-chat answer correctly? Runs on the CPU.

One process loads the model once and uses the path of `izwi chat` (`AsyncClient.stream_chat`,
without a server): questions of a conversation are asked one by one, after the model's own answers.
`izwi chat` has no functions, so conversations with functions use `AsyncClient.chat`, with correct
answers before the last question. Only the last answer is scored; it must match exactly.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jsonschema_rs

from benchmarks.measure import write_result
from izwi_api.client import Answer, AsyncClient, RuntimeOptions
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

MODEL = "izwi-tiny-chat"


@dataclass(frozen=True, slots=True)
class Asked:
    """A conversation with its system message."""

    dialogue: Dialogue
    system: str


@dataclass(slots=True)
class Answered:
    """The result of one conversation.

    Attributes:
        said: The last answer, including calls.
        is_right: Whether it is the right one.
        calls: Whether each function call follows its schema.
    """

    said: str
    is_right: bool
    calls: list[bool] = field(default_factory=list)


def draw_conversations(number: int, seed: int) -> list[Asked]:
    """Draw held-out conversations of each kind; every other one has numbers in words."""
    dice, drawn = random.Random(seed), []
    for kind in KINDS:
        for place in range(number):
            dialogue = draw_dialogue(Draw(dice, held_out=True, spoken=place % 2 == 0), kind)
            drawn.append(Asked(dialogue, system_message(dialogue, dice)))
    return drawn


async def in_a_conversation(client: AsyncClient, asked: Asked) -> Answered:
    """Ask the questions one by one, as `izwi chat` does at a terminal. Raises IzwiError."""
    history: list[dict[str, Any]] = [{"role": "system", "content": asked.system}]
    answer = ""
    for turn in asked.dialogue.turns:
        history.append({"role": "user", "content": turn.user})
        answer = (await client.stream_chat(tuple(history), model=MODEL).whole()).content
        history.append({"role": "assistant", "content": answer})
    return Answered(answer, answer == said(asked.dialogue.turns[-1], asked.dialogue))


async def with_functions(client: AsyncClient, asked: Asked) -> Answered:
    """Ask the last question of a conversation that offers functions; follow its calls."""
    dialogue, last = asked.dialogue, asked.dialogue.turns[-1]
    history = [_as_sent(message) for message in up_to_last_question(dialogue, asked.system)]
    _name_calls(history)
    tools = [TOOLS[name] for name in dialogue.tools]
    first = await client.chat(history, model=MODEL, tools=tools)
    calls = [(call.name, call.arguments) for call in first.tool_calls]
    valid = [_is_valid(name, arguments, dialogue.tools) for name, arguments in calls]
    first_is_right = all(valid) and is_right(dialogue, first.content, calls)
    if not called(last, dialogue) or not first_is_right:
        return Answered(f"{first.content} {calls or ''}".strip(), first_is_right, valid)
    history.append(_with_calls(first))
    for call, result in zip(first.tool_calls, last.results, strict=True):
        history.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
    after = await client.chat(history, model=MODEL, tools=tools)
    is_last_right = not after.tool_calls and after.content == last.answer
    return Answered(f"{calls} {after.content}", is_last_right, valid)


def _with_calls(answer: Answer) -> dict[str, Any]:
    """Return an answer with calls, as a client sends it back."""
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in answer.tool_calls
    ]
    return {"role": "assistant", "content": answer.content, "tool_calls": calls}


def _as_sent(message: dict[str, object]) -> dict[str, Any]:
    """Return a message of the recipe as a client sends it: arguments are JSON in a string."""
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
    """Give calls and their results matching ids."""
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


async def _ask_all(conversations: Sequence[Asked], at_once: int) -> list[Answered]:
    places = asyncio.Semaphore(at_once)
    num_asked = 0

    async def ask(asked: Asked) -> Answered:
        nonlocal num_asked
        async with places:
            how = with_functions if asked.dialogue.tools else in_a_conversation
            answer = await how(client, asked)
        num_asked += 1
        if num_asked % 100 == 0:
            print(f"{num_asked} of {len(conversations)}", file=sys.stderr)
        return answer

    async with AsyncClient(models=[MODEL], runtime=RuntimeOptions("cpu", "float32")) as client:
        return await asyncio.gather(*map(ask, conversations))


def main() -> None:
    """Ask, print wrong answers, and write the scores."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--number", type=int, default=130, help="conversations of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=4)
    options = parser.parse_args()
    conversations = draw_conversations(options.number, options.seed)
    answers = asyncio.run(_ask_all(conversations, options.at_once))
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
    in_conversations = sum(not asked.dialogue.tools for asked in conversations)
    write_result(
        "chat_heldout",
        [*rows, total],
        seed=options.seed,
        as_izwi_chat_asks=in_conversations,
        calls=len(calls),
        calls_valid=round(sum(calls) / max(len(calls), 1), 4),
    )


if __name__ == "__main__":
    main()
