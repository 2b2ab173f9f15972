"""Do all sampled answers of a model with random weights follow a schema? Prints JSON.

    python -m benchmarks.chat.structured [--answers 1000] [--folder CHECKPOINT]

Answers are sampled at temperature 1 from the whole vocabulary, 64 at a time, beside 8 unconstrained
answers. Each is parsed and validated; the unconstrained ones are compared with the same requests
run alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import jsonschema_rs

from izwi.backends.torch.backend import torch_backend
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.request.request import Reason
from izwi_models.qwen3_chat import FAMILY
from tests.api.services.chat.test_structured import SCHEMA
from tests.models.loading import Checkpoint, load_checkpoint
from tests.models.tiny_chat import write_tiny_chat

ROWS, FREE = 64, 8


def ask(seed: int, schema: str) -> ChatInput:
    """Return a question whose answer is drawn from all tokens."""
    return ChatInput(
        (ChatMessage(Role.USER, f"question {seed}"),),
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        seed=seed,
        max_new_tokens=None if schema else 40,
        response_schema=schema,
    )


def answers(model: Checkpoint, engine: Engine, asks: dict[str, ChatInput]) -> dict[str, Any]:
    """Run the questions; return the text and end reason of each answer."""
    requests = {name: model.frontend.prepare_chat(name, "chat", one) for name, one in asks.items()}
    readers = {name: model.frontend.open_answer(request) for name, request in requests.items()}
    said, reasons = dict.fromkeys(asks, ""), {}
    waiting = list(requests.values())
    while waiting or engine.has_work:
        while waiting and engine.load["chat"]["waiting"] < ROWS:
            engine.submit(waiting.pop(0))
        for chunk in engine.step():
            name = chunk.request_id
            if chunk.error is not None:
                raise chunk.error
            said[name] += readers[name].read(chunk.entries[:, 0].tolist()).content
            if chunk.reason is not None:
                said[name] += readers[name].close().content
                reasons[name] = chunk.reason
    return {name: (said[name], reasons[name]) for name in asks}


def main() -> None:
    """Sample and validate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = options.folder or write_tiny_chat(Path(place) / "chat")
        backend = torch_backend(options.device)
        model = load_checkpoint(FAMILY, folder, backend)
        config = EngineConfig(max_running=ROWS + FREE)
        engine = Engine({"chat": model.model}, backend, config)
        free = {f"free {n}": ask(n, "") for n in range(FREE)}
        alone = answers(model, engine, free)
        began = time.perf_counter()
        schema = json.dumps(SCHEMA)
        asks = {str(n): ask(n, schema) for n in range(options.answers)}
        got = answers(model, engine, free | asks)
    validator = jsonschema_rs.validator_for(SCHEMA)
    valid = 0
    for name in asks:
        text, reason = got[name]
        try:
            valid += reason is Reason.STOP and validator.is_valid(json.loads(text))
        except ValueError:
            print("not JSON:", text)
    same = sum(got[name] == alone[name] for name in free)
    seconds = round(time.perf_counter() - began, 1)
    report = {"answers": options.answers, "valid": valid, "free": FREE, "free_unchanged": same}
    print(json.dumps(report | {"seconds": seconds}))


if __name__ == "__main__":
    main()
