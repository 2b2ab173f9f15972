"""Chat by izwi's loop beside transformers' continuous batching: the same folder and device.

    python -m benchmarks.chat.runners --size 0.6B --device cuda --streams 4

Both engines are in this process, each behind its step thread as in a server, and take turns round
by round. transformers writes the checkpoint with random weights. Greedy, and as sampled by default.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.chat.speed import write_folder
from benchmarks.measure import write_result
from izwi.backends.torch.backend import torch_backend
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi.request.request import Request, SamplingParams
from izwi_models import borrowed_chat, qwen3_chat
from izwi_models.qwen3_chat.prompt import ChatPrompt

SAMPLING = {"greedy": SamplingParams(0.0), "sampled": SamplingParams(0.7, 20, 0.8)}


def write_checkpoint(size: str, folder: Path, device: str) -> None:
    """Write a checkpoint of a published size with random weights, as transformers does."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    write_folder(size, folder)
    config = Qwen3Config(**json.loads((folder / "config.json").read_text()))
    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    with torch.device(device):
        model: Any = Qwen3ForCausalLM(config).to(dtype)
    model.save_pretrained(folder)


async def run(engine: AsyncEngine, name: str, options: argparse.Namespace, salt: int) -> Any:
    """Time answers that start together: returns a row, and their ids."""
    streams, chance = options.streams, np.random.default_rng(salt)
    requests = [
        Request(
            f"{time.monotonic_ns()}-{place}",
            "chat",
            ChatPrompt(chance.integers(0, 256, options.prompt, dtype=np.int64), False),
            SAMPLING[name],
            max_entries=options.tokens,
            seed=place,
        )
        for place in range(streams)
    ]
    first: list[float] = []
    ids: list[list[int]] = [[] for _ in requests]
    began = time.perf_counter()

    async def read(place: int, answer: Any) -> None:
        async for chunk in answer:
            if chunk.error is not None:
                raise chunk.error
            if not ids[place] and len(chunk.entries):
                first.append(time.perf_counter() - began)
            ids[place] += chunk.entries[:, 0].tolist()

    await asyncio.gather(*(read(n, one) for n, one in enumerate(engine.submit_all(requests))))
    seconds = time.perf_counter() - began
    num_tokens = sum(map(len, ids))
    decoding_s = seconds - max(first)
    row = {
        "ttft_ms": 1e3 * median(first),
        "tokens_per_s": num_tokens / seconds,
        "decode_tokens_per_s": (num_tokens - streams) / decoding_s,
    }
    return row, ids


async def measure(engines: dict[str, AsyncEngine], options: argparse.Namespace) -> list[Any]:
    """Run the rounds; returns a row for each runner and sampling."""
    rows: list[Any] = []
    for number, name in enumerate(SAMPLING):
        found: dict[str, list[dict[str, float]]] = {runner: [] for runner in engines}
        ids: dict[str, Any] = {}
        for place in range(options.rounds + 1):
            for runner, engine in engines.items():
                # no prompt comes twice: both keep prefixes
                salt = number * (options.rounds + 1) + place
                row, ids[runner] = await run(engine, name, options, salt)
                if place:  # the first one warms up
                    found[runner].append(row)
        ours, theirs = (np.array(one) for one in ids.values())
        same = float((ours == theirs).mean())
        for runner, timed in found.items():
            middle = {key: round(median(one[key] for one in timed), 2) for key in timed[0]}
            rows.append({"runner": runner, "sampling": name} | middle)
        times = rows[-2]["tokens_per_s"] / rows[-1]["tokens_per_s"]
        rows[-2] |= {"times_transformers": round(times, 2), "same_ids": round(same, 3)}
        print(rows[-2:], flush=True)
    for engine in engines.values():
        await engine.stop()
    return rows


def opened(folder: Path, options: argparse.Namespace) -> dict[str, AsyncEngine]:
    """Open both engines over a checkpoint, and start them."""
    config = EngineConfig(kv_bytes=options.kv_mib << 20, max_running=options.streams)
    backend = torch_backend(options.device, "auto")
    model = qwen3_chat.FAMILY.load_model(folder, backend)
    stepped = {
        "izwi": Engine({"chat": model}, backend, config),
        "transformers": borrowed_chat.FAMILY.open_engine(
            {"chat": folder}, options.device, "auto", config
        ),
    }
    engines = {name: AsyncEngine(one) for name, one in stepped.items()}
    for engine in engines.values():
        engine.start()
    return engines


def main() -> None:
    """Measure one size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kv-mib", type=int, default=2048)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "chat")
        folder.mkdir()
        write_checkpoint(options.size, folder, options.device)
        engines = opened(folder, options)
    rows = asyncio.run(measure(engines, options))
    what = {"streams": options.streams, "prompt": options.prompt, "tokens": options.tokens}
    write_result(f"chat_runners_{options.size}", rows, size=options.size, **what)


if __name__ == "__main__":
    main()
