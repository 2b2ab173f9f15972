"""How fast is chat? First token, tokens a second, share of the bandwidth floor, prefill rate.

    python -m benchmarks.chat.speed --size 0.6B --device cuda --bandwidth 4.8e12

Random weights of a published size: speed does not depend on their values. `--size tiny` runs
anywhere. The floor of a step is the time in which the device reads every weight once.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.chat.speed_profile import host_rows, loop_row, prompt_rows, token_rows
from benchmarks.measure import write_result
from benchmarks.random_checkpoint import RandomBackend
from izwi.backends.torch.backend import torch_backend
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.request.request import Request, SamplingParams
from izwi_models.qwen3_chat import FAMILY
from izwi_models.qwen3_chat.config import read_config, tensor_shapes
from izwi_models.qwen3_chat.prompt import ChatPrompt
from tests.models.tiny_chat import GENERATION, TEMPLATES, TINY, write_tokenizer

_GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "chat.npz"
SIZES = ("tiny", "0.6B", "1.7B", "4B", "8B")
ROWS = (1, 8, 64)
SAMPLED = SamplingParams(0.7, 20, 0.8)


def write_folder(size: str, folder: Path) -> Path:
    """Write a checkpoint's folder of a published size without weights."""
    real = json.loads(str(np.load(_GOLDEN)["real"]))
    config = TINY if size == "tiny" else real[size]["config"]
    write_tokenizer(folder, TEMPLATES["ASKED"])
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps(GENERATION), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")  # no tensors
    return folder


def submit(
    engine: Engine,
    rows: int,
    prompt: int,
    tokens: int,
    salt: int,
    sampling: SamplingParams = SAMPLED,
) -> None:
    """Submit prompts of random ids; no two share a page."""
    chance = np.random.default_rng(salt)
    for row in range(rows):
        ids = chance.integers(0, 256, prompt, dtype=np.int64)
        request = Request(
            f"{salt}-{row}", "chat", ChatPrompt(ids, False), sampling, max_entries=tokens, seed=row
        )
        engine.submit(request)


def run(engine: Engine, rows: int, prompt: int, tokens: int, salt: int) -> dict[str, float]:
    """Time rows that start together: first token of each, then tokens per second."""
    submit(engine, rows, prompt, tokens, salt)
    began = time.perf_counter()
    first: dict[str, float] = {}
    num_tokens = 0
    all_first_s = began
    while engine.has_work:
        for chunk in engine.step():
            if chunk.error is not None:
                raise chunk.error
            now = time.perf_counter()
            if len(chunk.entries) and chunk.request_id not in first:
                first[chunk.request_id] = now - began
                all_first_s = now
                num_tokens = 0  # count only while all rows decode
            num_tokens += len(chunk.entries)
    seconds = time.perf_counter() - all_first_s
    return {
        "ttft_ms": round(1e3 * float(np.median(list(first.values()))), 2),
        "last_ttft_ms": round(1e3 * max(first.values()), 2),
        "tokens_per_s": round(num_tokens / seconds, 1) if tokens > 1 else 0.0,
    }


def profile(engine: Engine, rows: list[int], prompt: int) -> list[dict[str, Any]]:
    """Break down the time of a token and of a prompt; see `benchmarks.chat.speed_profile`."""
    found: list[dict[str, Any]] = []
    for count in rows:
        salt = 5000 + count
        found.append(loop_row(engine, partial(submit, engine, count, prompt, 128, salt), count))
    found += host_rows(engine, partial(submit, engine, rows[0], prompt, 128, 5999), rows[0])
    found += token_rows(engine, rows, 300) + token_rows(engine, rows[:1], prompt + 100)
    return found + prompt_rows(engine, [512, 2048], [0, 6144, 30_720])


def main() -> None:
    """Measure one size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--long", type=int, nargs="*", default=[8192, 32768])
    parser.add_argument("--rows", type=int, nargs="*", default=list(ROWS))
    parser.add_argument(
        "--bandwidth", type=float, help="memory bandwidth of the device, bytes a second"
    )
    parser.add_argument("--profile", action="store_true", help="report the time by operation")
    options = parser.parse_args()
    backend = RandomBackend(torch_backend(options.device, options.dtype).ops)
    with tempfile.TemporaryDirectory() as place:
        folder = write_folder(options.size, Path(place) / "chat")
        config = read_config(folder)
        model = FAMILY.load_model(folder, backend)
    shapes = tensor_shapes(config).values()
    num_bytes = sum(int(np.prod(shape)) for shape in shapes) * backend.ops.dtype.itemsize
    if not config.tie_word_embeddings:  # only one of its rows is read per token
        num_bytes -= config.vocab_size * config.hidden_size * backend.ops.dtype.itemsize
    engine = Engine({"chat": model}, backend, EngineConfig(max_running=max(options.rows)))
    run(engine, 1, options.prompt, 8, 0)  # the first one warms up
    rows: list[dict[str, Any]] = []
    for count in options.rows:
        row = {"rows": count, "prompt": options.prompt}
        row |= run(engine, count, options.prompt, options.tokens, 1 + count)
        if options.bandwidth:
            floor = options.bandwidth / num_bytes * count  # tokens a second
            row["of_floor"] = round(row["tokens_per_s"] / floor, 3)
        rows.append(row)
    for length in options.long:
        if length < model.max_positions:
            seconds = run(engine, 1, length, 1, 1000 + length)["ttft_ms"] / 1e3
            rows.append({"prompt": length, "prefill_tokens_per_s": round(length / seconds)})
    if options.profile:
        rows += profile(engine, options.rows, options.prompt)
    write_result(f"chat_{options.size}", rows, size=options.size, weight_bytes=num_bytes)


if __name__ == "__main__":
    main()
