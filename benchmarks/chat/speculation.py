"""How many guesses are right, and what steps they save? Prints JSON.

    python -m benchmarks.chat.speculation [--dialogues 24] [--rows 1,4] [--rounds 2]

`izwi-tiny-chat` answers the last question of dialogues that it was not trained on, sampled with a
seed: questions with tools, and questions to repeat what was said. Each way to speculate takes turns
with the others in one process. Answers must be equal; times are processor time.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from typing import Any

from benchmarks.measure import write_result
from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import SPECULATIONS, EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.chat import ChatInput, ChatMessage, Role, ToolCall
from izwi.request.request import Request
from izwi_models.tiny.recipes.chat.conversations import KINDS, draw_dialogue, system_message
from izwi_models.tiny.recipes.chat.devices import TOOLS
from izwi_models.tiny.recipes.chat.judge import up_to_last_question
from izwi_models.tiny.recipes.chat.wording import Draw

NAME = "izwi-tiny-chat"


def message_of(listed: dict[str, Any]) -> ChatMessage:
    """Return a message of a drawn dialogue."""
    calls = tuple(
        ToolCall("c", call["function"]["name"], json.dumps(call["function"]["arguments"]))
        for call in listed.get("tool_calls") or ()
    )
    name = "c" if listed["role"] == "tool" else None
    return ChatMessage(Role(listed["role"]), listed["content"], None, calls, name, None)


def questions(registry: Registry, count: int) -> list[Request]:
    """Return requests: each kind of dialogue in turn."""
    frontend, made = registry.frontends[NAME], []
    kinds = sorted(KINDS)
    for n in range(count):
        dice = random.Random(n)
        dialogue = draw_dialogue(Draw(dice, held_out=True), kinds[n % len(kinds)])
        listed = up_to_last_question(dialogue, system_message(dialogue, dice))
        tools = json.dumps([TOOLS[name] for name in dialogue.tools]) if dialogue.tools else ""
        ask = ChatInput(tuple(map(message_of, listed)), seed=n, tools=tools, max_new_tokens=80)
        made.append(frontend.prepare_chat(str(n), NAME, ask))
    return made


def run(engine: Engine, requests: list[Request], rows: int) -> dict[str, list[int]]:
    """Answer them, so many at a time; return the ids."""
    answers: dict[str, list[int]] = {request.request_id: [] for request in requests}
    waiting = list(requests)
    while waiting or engine.has_work:
        load = engine.load[NAME]
        for _ in range(int(rows - load["running"] - load["waiting"])):
            if waiting:
                engine.submit(waiting.pop(0))
        for chunk in engine.step():
            if chunk.error is not None:
                raise chunk.error
            answers[chunk.request_id] += chunk.entries[:, 0].tolist()
    return answers


def main() -> None:
    """Measure each number of rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dialogues", type=int, default=24)
    parser.add_argument("--rows", default="1,4")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    backend = torch_backend("cpu", "float32")
    registry = Registry(backend)
    registry.load(NAME)
    requests, results = questions(registry, options.dialogues), []
    for rows in map(int, options.rows.split(",")):
        engines = {
            mode: Engine(registry.models, backend, EngineConfig(speculate=mode))
            for mode in SPECULATIONS
        }
        seconds, answers = dict.fromkeys(engines, 0.0), {}
        for _ in range(options.rounds):
            for mode, engine in engines.items():
                began_s = time.process_time()
                answers[mode] = run(engine, requests, rows)
                seconds[mode] += time.process_time() - began_s
        for mode, engine in engines.items():
            load, entries = engine.load[NAME], sum(map(len, answers[mode].values()))
            results.append(
                {
                    "rows": rows,
                    "speculate": mode,
                    "equal": answers[mode] == answers["off"],
                    "entries": entries,
                    "steps": load["steps"] / options.rounds,
                    "entries_per_step": round(entries * options.rounds / load["steps"], 3),
                    "drafted": load["drafted"],
                    "accepted": load["accepted"],
                    "processor_seconds": round(seconds[mode], 2),
                }
            )
    write_result("chat_speculation", results)


if __name__ == "__main__":
    main()
