"""How fast is chat on several devices? Tokens a second, first token, memory and link.

    python -m benchmarks.chat.tensor_parallel --devices cuda:0,cuda:1 --shapes 8B,32B \
        --memory 3.35e12 --link 450e9
    python -m benchmarks.chat.tensor_parallel --devices cpu,cpu --shapes tiny

Each shape runs on 1, 2, 4 ... of the devices, each time in new processes. Weights are drawn on the
devices from a seed, and are the same on any number of them. Columns:

    tokens_per_s, ttft_ms    all rows together; median of the rows, which start together
    of_memory                bytes of weights, and of keys and values, that a device reads for a
                             step, by the time of the step and the bandwidth `--memory`
    all_reduce_us            one sum of the states of all rows, as a step has two in each layer
    of_step                  the share of a step that these take
    page_gib, free_gib       what the plan gives pages, and what is left on the first device
    of_link                  bytes that a device sends and receives for one sum, by its time and the
                             bandwidth `--link` (bytes a second in one direction)
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from msgspec import Struct
from msgspec import json as msgspec_json
from torch import Tensor

from benchmarks.chat.speed import run, write_folder
from benchmarks.measure import write_result
from benchmarks.random_checkpoint import RandomBackend
from izwi.backends.torch.backend import torch_backend
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.host.rank_links import FollowerLink, FollowerProcesses
from izwi.ops.ranks import Part, RankPlace
from izwi.runner.following import follow
from izwi_models.qwen3_chat import FAMILY
from izwi_models.qwen3_chat.config import ChatConfig, read_config
from tests.models.tiny_chat import TINY

_PROGRAM = (sys.executable, "-m", "benchmarks.chat.tensor_parallel")
# Qwen3-32B's config.json differs from 8B's in these.
_LARGE = {
    "hidden_size": 5120,
    "intermediate_size": 25_600,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
}
_SMALL = TINY | {"num_attention_heads": 8, "tie_word_embeddings": False}
# 97 GB in bf16, more than one card of 80 GB holds: 32B with half as many layers again
_LARGER = _LARGE | {"num_hidden_layers": 96}
SHAPES = {
    "tiny": ("tiny", _SMALL),
    "8B": ("8B", {}),
    "32B": ("8B", _LARGE),
    "48B": ("8B", _LARGER),
}
_SUMS = 64  # timed together
GIB = 1 << 30


class Spec(Struct, frozen=True):
    """What one rank runs."""

    shape: str
    devices: tuple[str, ...]
    dtype: str
    rows: tuple[int, ...]
    prompt: int
    tokens: int
    store: str
    index: int = 0

    @property
    def place(self) -> RankPlace | None:
        """The rank's place; None if it is the only one."""
        count = len(self.devices)
        return RankPlace(self.index, count, self.store) if count > 1 else None


class SeededBackend(RandomBackend):
    """A backend that draws the same weights on any number of ranks."""

    def load_weights(
        self,
        folder: Path,  # noqa: ARG002
        shapes: Mapping[str, tuple[int, ...]],
        packable: Container[str] = (),  # noqa: ARG002
        parts: Mapping[str, Part] | None = None,
    ) -> dict[str, Tensor]:
        """Draw each tensor by its name, and keep this rank's part of it."""
        weights = {}
        for name, shape in shapes.items():
            generator = torch.Generator(self.ops.device).manual_seed(crc32(name.encode()))
            drawn = self._draw(name, shape, generator)
            if parts and name in parts:
                drawn = drawn[parts[name].index].clone()
            weights[name] = drawn
        return weights


def engine_of(spec: Spec, processes: FollowerProcesses | None) -> tuple[Engine, SeededBackend]:
    """Make this rank's engine; all ranks do it together."""
    device = spec.devices[spec.index]
    backend = SeededBackend(torch_backend(device, spec.dtype, place=spec.place).ops)
    backend.followers = processes
    base, changes = SHAPES[spec.shape]
    with tempfile.TemporaryDirectory() as parent:
        folder = write_folder(base, Path(parent) / "chat")
        path = folder / "config.json"
        config = json.loads(path.read_text(encoding="utf-8")) | changes
        path.write_text(json.dumps(config), encoding="utf-8")
        model = FAMILY.load_model(folder, backend)
    return Engine({"chat": model}, backend, EngineConfig(max_running=max(spec.rows))), backend


def sum_seconds(backend: SeededBackend, rows: int, width: int) -> float:
    """Time a sum over the ranks, captured where steps are; all ranks call it together."""
    ops = backend.ops
    x = torch.zeros(rows, width, device=ops.device, dtype=ops.dtype)

    def sums() -> None:
        for _ in range(_SUMS):
            ops.ranks.all_reduce(x)

    if ops.device.type != "cuda":
        sums()
        began_s = time.perf_counter()
        sums()
        return (time.perf_counter() - began_s) / _SUMS
    stream = torch.cuda.Stream(ops.device)
    with torch.cuda.stream(stream):
        sums()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        sums()
        graph.capture_end()
        for _ in range(3):
            graph.replay()
        stream.synchronize()
        began_s = time.perf_counter()
        for _ in range(10):
            graph.replay()
        stream.synchronize()
    return (time.perf_counter() - began_s) / (10 * _SUMS)


def sums_by_rows(spec: Spec, backend: SeededBackend) -> dict[int, float]:
    """Time the sums of each number of rows."""
    width = config_of(spec.shape).hidden_size
    with torch.inference_mode():
        return {rows: sum_seconds(backend, rows, width) for rows in spec.rows}


def config_of(shape: str) -> ChatConfig:
    """Return the sizes of a shape."""
    base, changes = SHAPES[shape]
    with tempfile.TemporaryDirectory() as parent:
        path = write_folder(base, Path(parent) / "chat") / "config.json"
        values = json.loads(path.read_text(encoding="utf-8")) | changes
        path.write_text(json.dumps(values), encoding="utf-8")
        return read_config(path.parent)


def step_bytes(engine: Engine, spec: Spec, rows: int) -> int:
    """Return the bytes of weights, keys and values that a rank reads for a step of these rows."""
    runner = engine.runners[0]
    model: Any = runner._model
    weights = {id(w): w for w in (*model._weights.values(), model._head)}
    table = "model.embed_tokens.weight"  # only a few of its rows are read, unless it is the head
    read = sum(w.nbytes for w in weights.values() if w is not model._weights[table])
    positions = spec.prompt + spec.tokens // 2
    return int(read + rows * positions * runner.page_bytes / runner.kv.page_size)


def measure(spec: Spec) -> list[dict[str, Any]]:
    """Run one shape on some devices, this process's first; return a row for each number of rows."""
    processes = None
    if spec.place is not None:
        others = range(1, len(spec.devices))
        firsts = [msgspec_json.encode(_at(spec, index)) for index in others]
        processes = FollowerProcesses([*_PROGRAM, "--follow"], firsts)
        processes.watch(lambda rank, code: print(f"rank {rank} ended with {code}", file=sys.stderr))
    began_s = time.perf_counter()
    engine, backend = engine_of(spec, processes)
    start_s = time.perf_counter() - began_s
    sums = sums_by_rows(spec, backend) if processes else {}
    config, count = config_of(spec.shape), len(spec.devices)
    found = []
    with engine.own_stream():
        run(engine, max(spec.rows), spec.prompt, 8, 0)  # the first one warms up
        for rows in spec.rows:
            row: dict[str, Any] = {"shape": spec.shape, "devices": count, "rows": rows}
            row |= {"streams": engine.plan.num_streams, "start_s": round(start_s, 1)}
            row |= {"page_gib": round(engine.plan.models[0].page_bytes / GIB, 2)}
            if backend.captures:
                row |= {"free_gib": round(torch.cuda.mem_get_info()[0] / GIB, 2)}
            row |= run(engine, rows, spec.prompt, spec.tokens, 1 + rows)
            step_s = rows / row["tokens_per_s"]
            row["step_ms"] = round(1e3 * step_s, 3)
            row["bytes_per_s"] = round(step_bytes(engine, spec, rows) / step_s)
            if sums:
                moved = rows * config.hidden_size * backend.itemsize * 2 * (count - 1) / count
                row["all_reduce_us"] = round(1e6 * sums[rows], 2)
                row["of_step"] = round(2 * config.num_hidden_layers * sums[rows] / step_s, 3)
                row["link_bytes_per_s"] = round(moved / sums[rows])
            found.append(row)
    if processes is not None:
        processes.close()
    return found


def _at(spec: Spec, index: int) -> Spec:
    return Spec(**{name: getattr(spec, name) for name in Spec.__struct_fields__} | {"index": index})


def follow_rank() -> None:
    """Run as one of the other ranks."""
    link = FollowerLink()
    spec = msgspec_json.decode(link.receive()[0], type=Spec)
    engine, backend = engine_of(spec, None)
    sums_by_rows(spec, backend)
    follow(engine.runners, link, FAMILY.prompts)


def in_process(spec: Spec, limit_s: float) -> list[dict[str, Any]]:
    """Measure in a process of its own, which leaves no memory behind."""
    command = [*_PROGRAM, "--measure", msgspec_json.encode(spec).decode()]
    failed = {"shape": spec.shape, "devices": len(spec.devices)}
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return [failed | {"failed": f"more than {limit_s} s"}]
    lines = done.stdout.decode().splitlines()
    if done.returncode or not lines:
        return [failed | {"failed": f"status {done.returncode}"}]
    rows: list[dict[str, Any]] = json.loads(lines[-1])
    return rows


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", default="cpu,cpu")
    parser.add_argument("--shapes", default="tiny", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--counts", help="numbers of devices; default: 1, 2, 4 ... up to all")
    parser.add_argument("--rows", default="1,8,64")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--limit-s", type=float, default=400.0, help="of one shape and count")
    parser.add_argument("--memory", type=float, help="bandwidth of a device's memory, bytes/s")
    parser.add_argument("--link", type=float, help="bandwidth between devices, bytes/s each way")
    parser.add_argument("--name", default="tensor_parallel", help="of the result")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--follow", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.follow:
        follow_rank()
    if options.measure:
        print(json.dumps(measure(msgspec_json.decode(options.measure, type=Spec))), flush=True)
        os._exit(0)  # at once: the device's library would wait for the other ranks
    devices = tuple(options.devices.split(","))
    sizes = [n for n in (1, 2, 4, 8) if n <= len(devices)]
    counts = list(map(int, options.counts.split(","))) if options.counts else sizes
    rows: list[dict[str, Any]] = []
    for shape in options.shapes.split(","):
        for count in counts:
            with tempfile.TemporaryDirectory() as folder:
                spec = Spec(
                    shape,
                    devices[:count],
                    options.dtype,
                    tuple(map(int, options.rows.split(","))),
                    options.prompt,
                    options.tokens,
                    str(Path(folder) / "ranks"),
                )
                rows += in_process(spec, options.limit_s)
            for row in rows:
                if options.memory and "bytes_per_s" in row:
                    row["of_memory"] = round(row["bytes_per_s"] / options.memory, 3)
                if options.link and "link_bytes_per_s" in row:
                    row["of_link"] = round(row["link_bytes_per_s"] / options.link, 3)
            print(json.dumps(rows[-len(spec.rows) :]), file=sys.stderr)
    write_result(options.name, rows, shapes=options.shapes, prompt=options.prompt)


if __name__ == "__main__":
    main()
