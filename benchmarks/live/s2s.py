"""Measure speech to speech: first audio, real-time sessions, and the cost of a step.

    python -m benchmarks.live.s2s                               # a tiny checkpoint on a CPU
    python -m benchmarks.live.s2s --device cuda --size 1.5b     # the published size, random weights

Tiny: how many sessions one engine sustains on one thread, with interleaved answers of a fixed
length that start together. Times are processor time, so that other load does not count.

1.5b: first audio of a single query of 4 s; sessions in which a question of 4 s follows once the
answer was played; and text and frame steps by device events, beside the time to read their data
from memory. Questions never repeat.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.live.s2s_sessions import first_audio_row, session_row
from benchmarks.live.s2s_sizes import CODECS, EndlessBackend, step_bytes, write_folder
from benchmarks.live.s2s_steps import step_rows
from benchmarks.measure import write_result
from izwi.backends.torch.backend import TorchBackend, torch_backend
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.chat import Role
from izwi.inputs.conversation import ConversationInput, SpokenTurn
from izwi_models.lfm2_audio import FAMILY
from tests.models.loading import load_checkpoint
from tests.models.tiny_lfm2_audio import CALM, write_tiny_lfm2_audio


def measure(model: Any, ops: Any, sessions: int, entries: int) -> dict[str, Any]:
    config = EngineConfig(kv_bytes=1 << 26, max_running=max(16, sessions))
    engine = Engine({"s2s": model.model}, TorchBackend(ops), config)
    for n in range(sessions):
        turns = (SpokenTurn(Role.USER, (f"question {n}",)),)
        ask = ConversationInput(turns, seed=n, max_new_tokens=entries)
        engine.submit(model.frontend.prepare_conversation(str(n), "s2s", ask))
    began, made = time.process_time(), 0
    while engine.has_work:
        made += sum(len(chunk.entries) for chunk in engine.step())
    return {"sessions": sessions, "entries_per_s": round(made / (time.process_time() - began), 1)}


def tiny(options: argparse.Namespace) -> None:
    """Measure the tiny checkpoint on one thread."""
    torch.set_num_threads(1)
    backend = torch_backend("cpu", "float32")
    with tempfile.TemporaryDirectory() as folder:
        model = load_checkpoint(FAMILY, write_tiny_lfm2_audio(Path(folder), loudness=CALM), backend)
    measure(model, backend.ops, 1, options.entries)  # warms up
    rows = [measure(model, backend.ops, n, options.entries) for n in options.sessions]
    for row in rows:
        row["of_one"] = round(row["entries_per_s"] / rows[0]["entries_per_s"], 2)
    write_result("s2s", rows, entries=options.entries)


def published(options: argparse.Namespace) -> None:
    """Measure the published size."""
    backend = EndlessBackend(torch_backend(options.device, options.dtype).ops)
    with tempfile.TemporaryDirectory() as place:
        model = load_checkpoint(FAMILY, write_folder(Path(place) / "s2s", options.codec), backend)
    began = time.perf_counter()
    config = EngineConfig(max_running=max(options.sessions))
    engine = Engine({"s2s": model.model}, backend, config)
    setup_s = time.perf_counter() - began
    rows: list[dict[str, Any]] = []
    if backend.ops.captures:
        floors = [n / options.bandwidth for n in step_bytes(backend.ops.dtype.itemsize)]
        rows += step_rows(engine, [n for n in (1, 8, 32, 64) if n <= max(options.sessions)], floors)
    first_audio_row(engine, model.frontend, 2)  # warms up
    rows.append(first_audio_row(engine, model.frontend, 10))
    for sessions in options.sessions:
        rows.append(session_row(engine, model.frontend, sessions, options.entries, options.seconds))
    name = f"s2s_{options.size}_{options.codec}"
    write_result(name, rows, entries=options.entries, setup_s=round(setup_s, 1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=("tiny", "1.5b"), default="tiny")
    parser.add_argument("--codec", choices=CODECS, default="mimi", help="codec, with --size 1.5b")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--sessions", type=int, nargs="+")
    parser.add_argument(
        "--entries", type=int, default=72, help="text tokens and frames of an answer"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of each level")
    parser.add_argument(
        "--bandwidth", type=float, default=4.8e12, help="memory bandwidth, bytes a second"
    )
    options = parser.parse_args()
    if options.size == "tiny":
        options.sessions = options.sessions or [1, 2, 4, 8]
        tiny(options)
    else:
        options.sessions = options.sessions or [1, 8, 32, 64]
        published(options)


if __name__ == "__main__":
    main()
