"""Which models fit on which card, with how many streams, and what is the first audio there?

    python -m benchmarks.serving.device_memory --device cuda

Random weights of published sizes. Another process holds all but the given size of the device's
memory, so that the case is as on a smaller card. Each case is a process of its own: it plans from
estimates, loads, plans from what was measured, captures, and serves as many streams as were planned
for of all models at once, twice. `--extra-gib` holds more memory while the second turn runs, as
another program would.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from benchmarks.chat.speed import write_folder as write_chat
from benchmarks.fixed_length import fix_lengths
from benchmarks.live.s2s_sessions import questions
from benchmarks.live.s2s_sizes import EndlessBackend
from benchmarks.live.s2s_sizes import write_folder as write_s2s
from benchmarks.measure import TEXTS, write_result
from benchmarks.random_checkpoint import RandomBackend, folder_of
from izwi.backends.memory_plan import MemoryPlan
from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.errors import DoesNotFit
from izwi.inputs.speech import SpeechInput, TranscriptionInput
from izwi.model.capability import Capability
from izwi.request.request import Request, SamplingParams
from izwi.runner.planning import plan_folders, prepare_device
from izwi_models.qwen3_chat.prompt import ChatPrompt

_GIB = 1 << 30
_SMALL = ("tts-0.6b", "asr-0.6b", "chat-0.6B")
_LARGE = ("tts-1.7b-base", "asr-1.7b", "chat-1.7B")
# GiB of the card, models, weights
CASES = (
    (8, _SMALL, "int8"),
    (12, _SMALL, "auto"),
    (16, _LARGE, "auto"),
    (24, _LARGE, "auto"),
    (40, _LARGE, "auto"),
    (80, _LARGE, "auto"),
    (8, ("lfm2-audio",), "auto"),
)
_CLIP_S, _FRAMES, _TOKENS = 8.0, 52, 64
_ATTEMPTS = 3


def folder_of_case(name: str, parent: Path) -> Path:
    """Write the folder of one of the models of CASES, without weights."""
    if name.startswith("chat-"):
        (parent / name).mkdir()
        return write_chat(name.removeprefix("chat-"), parent / name)
    if name == "lfm2-audio":
        (parent / name).mkdir()
        return write_s2s(parent / name, "detokenizer")
    return folder_of(name, parent)


def _parts(plan: MemoryPlan) -> dict[str, float]:
    """Return the sizes of a plan's parts over all models, in GiB."""
    models = plan.models
    sizes = {
        "weights": sum(model.weight_bytes for model in models),
        "state": sum(model.state_bytes for model in models),
        "buffers": sum(model.buffer_bytes for model in models),
        "pages": sum(model.page_bytes for model in models),
        "graphs": plan.graph_bytes,
        "workspace": plan.workspace_bytes,
        "reserve": plan.reserve_bytes,
    }
    return {name: round(size / _GIB, 3) for name, size in sizes.items()}


def _requests(registry: Registry, streams: int, salt: int) -> Iterator[Request]:
    """Yield a request of each model for each stream; no two share a prefix."""
    chance = np.random.default_rng(salt)
    for name in registry.names():
        able = registry.model(name).capabilities
        for stream in range(streams):
            key = f"{name}-{salt}-{stream}"
            if Capability.CONVERSE in able:
                asked = questions(registry.conversation(name), f"{salt}{stream}", _FRAMES)
                yield replace(next(asked), request_id=key, model=name)
            elif Capability.SPEAK in able:
                text = f"{TEXTS[stream % len(TEXTS)]} {salt} {stream}"
                ask = SpeechInput(text, seed=stream, max_new_tokens=_FRAMES + 1)
                yield registry.speech(name).prepare_speech(key, name, ask)
            elif Capability.TRANSCRIBE in able:
                samples = chance.normal(0.0, 0.1, int(16_000 * _CLIP_S)).astype(np.float32)
                heard = TranscriptionInput(samples)
                yield registry.transcription(name).prepare_transcription(key, name, heard)
            else:
                ids = chance.integers(0, 256, 512, dtype=np.int64)
                sampling = SamplingParams(0.7, 20, 0.8)
                yield Request(key, name, ChatPrompt(ids, False), sampling, max_entries=_TOKENS)


def serve(engine: Engine, registry: Registry, streams: int, salt: int) -> dict[str, Any]:
    """Run requests of all models that start together; return times and failures."""
    for request in list(_requests(registry, streams, salt)):
        engine.submit(request)
    began = time.perf_counter()
    first: dict[str, float] = {}
    errors: list[str] = []
    while engine.has_work:
        for chunk in engine.step():
            if chunk.error is not None:
                errors.append(f"{type(chunk.error).__name__}: {chunk.error}"[:200])
            if chunk.pcm is not None and len(chunk.pcm):
                first.setdefault(chunk.request_id, time.perf_counter() - began)
    return {
        "first_audio_ms": round(1e3 * float(np.median(list(first.values()))), 1) if first else None,
        "seconds": round(time.perf_counter() - began, 2),
        "failed": len(errors),
        "errors": sorted(set(errors))[:3],
    }


@contextmanager
def _held(num_bytes: int, device: str) -> Iterator[None]:
    """Let another process hold device memory."""
    if num_bytes <= 0:
        yield
        return
    code = (
        f"import torch; x = torch.empty({num_bytes}, dtype=torch.uint8, device={device!r});"
        "torch.cuda.synchronize(); print('held', flush=True); input()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    if "held" not in holder.stdout.readline():
        raise RuntimeError("the memory could not be held")
    try:
        yield
    finally:
        holder.communicate("\n")


def run_case(options: argparse.Namespace) -> dict[str, Any]:
    """Run one case in this process, while another one holds the rest of the device."""
    names, weights = tuple(options.models), options.weights
    began = time.perf_counter()
    kind = EndlessBackend if "lfm2-audio" in names else RandomBackend
    backend = kind(torch_backend(options.device, options.dtype, weights).ops)
    config = EngineConfig(max_running=options.streams)
    row: dict[str, Any] = {"card_gib": options.card, "models": list(names), "weights": weights}
    registry = Registry(backend)
    with tempfile.TemporaryDirectory() as parent:
        folders = {name: folder_of_case(name, Path(parent)) for name in names}
        row["free_gib"] = round(backend.memory().free_bytes / _GIB, 2)
        try:
            row["estimated"] = _parts(plan_folders(folders, backend, config, weights))
            weight_bytes = prepare_device(backend, folders, config, weights)
        except DoesNotFit as error:
            return {**row, "refused": str(error), "refused_s": time.perf_counter() - began}
        row["planned_s"] = round(time.perf_counter() - began, 1)
        for name, folder in folders.items():
            registry.load(str(folder), name)
    fix_lengths(registry, _FRAMES)
    torch.cuda.empty_cache()
    row["weights_gib"] = round(torch.cuda.memory_allocated() / _GIB, 3)
    engine = Engine(registry.models, backend, config, weight_bytes=weight_bytes)
    row["start_s"] = round(time.perf_counter() - began, 1)
    row["measured"], row["streams"] = _parts(engine.plan), engine.plan.num_streams
    row["used"] = _used()
    with engine.own_stream():
        serve(engine, registry, 1, 1)
        row["alone"] = serve(engine, registry, 1, 2)
        row["full"] = serve(engine, registry, engine.plan.num_streams, 3)
        row["after"] = _used()
        if options.extra_gib:
            free = torch.cuda.mem_get_info()[0]
            with _held(min(int(options.extra_gib * _GIB), free - (600 << 20)), options.device):
                row["beside_another"] = serve(engine, registry, engine.plan.num_streams, 4)
                row["beside_free_gib"] = _used()["free"]
    return row


def _used() -> dict[str, float]:
    free, _ = torch.cuda.mem_get_info()
    sizes = {
        "free": free,
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
    }
    pools: dict[Any, int] = {}
    for segment in torch.cuda.memory_snapshot():
        pool = tuple(segment["segment_pool_id"])
        if pool != (0, 0):
            pools[pool] = pools.get(pool, 0) + segment["total_size"]
    sizes["graph_pools"] = sum(pools.values())
    return {name: round(size / _GIB, 3) for name, size in sizes.items()}


def _measured(card: float, names: tuple[str, ...], weights: str, options: Any) -> dict[str, Any]:
    """Run a case in a process of its own, on a device with the given size."""
    free, _ = torch.cuda.mem_get_info()
    command = [sys.executable, "-m", "benchmarks.serving.device_memory", "--models", *names]
    command += ["--weights", weights, "--card", str(card), "--device", options.device]
    command += ["--streams", str(options.streams), "--extra-gib", str(options.extra_gib)]
    with _held(free - int(card * _GIB), options.device):
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout_s)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        tail = done.stderr.strip().splitlines()[-6:]
        return {"card_gib": card, "models": names, "weights": weights, "died": tail}
    row: dict[str, Any] = json.loads(lines[-1])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--streams", type=int, default=64, help="the most of each model")
    parser.add_argument("--models", nargs="+", help="run one case in this process")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--card", type=float, default=0.0)
    parser.add_argument("--extra-gib", type=float, default=10.0)
    parser.add_argument("--timeout-s", type=float, default=170.0)
    parser.add_argument("--cases", type=int, nargs="+", default=list(range(len(CASES))))
    options = parser.parse_args()
    if options.models:
        print(json.dumps(run_case(options)), flush=True)
        return
    rows = []
    for case in options.cases:
        card, names, weights = CASES[case]
        rows.append(_measured(card, names, weights, options))
        print(json.dumps(rows[-1]), flush=True)
    write_result("device_memory", rows)


if __name__ == "__main__":
    main()
