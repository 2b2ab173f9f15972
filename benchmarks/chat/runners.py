"""Chat by izwi's loop beside transformers' continuous batching: the same folder and device.

    python -m benchmarks.chat.runners --size 0.6B --device cuda --streams 4

Each engine is in a process of its own, behind its step thread as in a server, and they take turns
round by round. transformers writes the checkpoint with random weights. Greedy, and as sampled by
default.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection
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


def measure(engines: dict[str, Apart], options: argparse.Namespace) -> list[Any]:
    """Run the rounds; returns a row for each runner and sampling."""
    rows: list[Any] = []
    for number, name in enumerate(SAMPLING):
        found: dict[str, list[dict[str, float]]] = {runner: [] for runner in engines}
        ids: dict[str, Any] = {}
        for place in range(options.rounds + 1):
            for runner, engine in engines.items():
                # no prompt comes twice: both keep prefixes
                salt = number * (options.rounds + 1) + place
                row, ids[runner] = engine.run(name, salt)
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
    return rows


def opened(runner: str, folder: Path, options: argparse.Namespace) -> AsyncEngine:
    """Open a runner's engine over a checkpoint, and start it."""
    config = EngineConfig(kv_bytes=options.kv_mib << 20, max_running=options.streams)
    stepped: Any
    if runner == "izwi":
        backend = torch_backend(options.device, "auto")
        model = qwen3_chat.FAMILY.load_model(folder, backend)
        stepped = Engine({"chat": model}, backend, config)
    else:
        folders = {"chat": folder}
        stepped = borrowed_chat.FAMILY.open_engine(folders, options.device, "auto", config)
    engine = AsyncEngine(stepped)
    engine.start()
    return engine


def serve(link: Connection, runner: str, folder: Path, options: argparse.Namespace) -> None:
    """Run in a process of its own: open a runner's engine, and run what is asked for."""

    async def answer() -> None:
        engine = opened(runner, folder, options)
        link.send("ready")
        while (asked := await asyncio.to_thread(link.recv)) is not None:
            link.send(await run(engine, asked[0], options, asked[1]))
        await engine.stop()

    asyncio.run(answer())


class Apart:
    """An engine in a process of its own."""

    def __init__(self, runner: str, folder: Path, options: argparse.Namespace):
        """Start the process, and wait until its engine is open."""
        context = multiprocessing.get_context("spawn")
        self._link, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, runner, folder, options))
        self._process.start()
        theirs.close()
        self._link.recv()  # raises EOFError if it could not open

    def run(self, name: str, salt: int) -> Any:
        """Time answers there; see `run`."""
        self._link.send((name, salt))
        return self._link.recv()

    def stop(self) -> None:
        """End the process."""
        self._link.send(None)
        self._process.join()


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
        engines = {name: Apart(name, folder, options) for name in ("izwi", "transformers")}
    rows = measure(engines, options)
    for engine in engines.values():
        engine.stop()
    what = {"streams": options.streams, "prompt": options.prompt, "tokens": options.tokens}
    write_result(f"chat_runners_{options.size}", rows, size=options.size, **what)


if __name__ == "__main__":
    main()
