"""How many sessions of speech to speech does one engine hold, on a CPU?

A tiny LFM2-Audio checkpoint of random weights, one thread, interleaved answers of a fixed length
that all start together. Entries are text tokens and frames of sound, the codec included; time is
that of the processor, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import write_result
from izwi.chat import Role
from izwi.config import EngineConfig
from izwi.conversation import ConversationInput, SpokenTurn
from izwi.engine import Engine
from izwi.runner.device import torch_backend
from izwi_models.lfm2_audio import FAMILY
from tests.models.tiny_lfm2_audio import CALM, write_tiny_lfm2_audio


def measure(model: Any, ops: Any, sessions: int, entries: int) -> dict[str, Any]:
    config = EngineConfig(kv_bytes=1 << 26, max_running=max(16, sessions))
    engine = Engine({"s2s": model}, ops, config)
    for n in range(sessions):
        turns = (SpokenTurn(Role.USER, (f"question {n}",)),)
        ask = ConversationInput(turns, seed=n, max_new_tokens=entries)
        engine.submit(model.prepare_conversation(str(n), "s2s", ask))
    began, made = time.process_time(), 0
    while engine.has_work:
        made += sum(len(chunk.entries) for chunk in engine.step())
    return {"sessions": sessions, "entries_per_s": round(made / (time.process_time() - began), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--entries", type=int, default=72)
    options = parser.parse_args()
    torch.set_num_threads(1)
    backend = torch_backend("cpu", "float32")
    with tempfile.TemporaryDirectory() as folder:
        model = FAMILY.load(write_tiny_lfm2_audio(Path(folder), loudness=CALM), backend)
    measure(model, backend.ops, 1, options.entries)  # warms up
    rows = [measure(model, backend.ops, n, options.entries) for n in options.sessions]
    for row in rows:
        row["of_one"] = round(row["entries_per_s"] / rows[0]["entries_per_s"], 2)
    write_result("s2s", rows, entries=options.entries)


if __name__ == "__main__":
    main()
