"""Shared by benchmarks: texts, a timed request, and results with a description of the machine."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from izwi.arrays import Float32
from izwi.backends.torch.backend import TorchBackend, torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi.inputs.speech import SpeechInput
from izwi.model.frontend import SpeechFrontend
from izwi.request.request import Reason

RESULTS = Path(__file__).parent / "results"
AUDIBLE = 10 ** (-50 / 20)  # -50 dBFS; quieter samples count as silence
AUDIBLE_BLOCK = 120  # 5 ms at 24 kHz
_AUDIBLE_WINDOW = 480  # 20 ms

TEXTS = (
    "The weather is nice today and we are going out.",
    "Please call me when you get home this evening.",
    "She put the book on the table near the window.",
    "We have been waiting for the train for an hour.",
    "He said that he would come back in the morning.",
    "There are five people in the small white house.",
    "I would like to have a cup of tea with milk.",
    "The children are playing in the garden with the dog.",
)


def audible_blocks(samples: Float32) -> npt.NDArray[np.int64]:
    """Return the indices of blocks of AUDIBLE_BLOCK samples that are louder than -50 dBFS (RMS).

    A click of a few samples, as a codec makes at the start of a stream, is not audible. A shorter
    block at the end does not count.
    """
    count = len(samples) // AUDIBLE_BLOCK
    blocks = samples[: count * AUDIBLE_BLOCK].reshape(count, AUDIBLE_BLOCK)
    return np.flatnonzero(np.sqrt(np.mean(np.square(blocks), axis=1)) > AUDIBLE)


def first_audible(audio: Float32) -> int | None:
    """Return the sample where audio at 24 kHz becomes audible: 20 ms from there are over -50 dBFS.

    A codec's click of 5 ms is shorter, and is not heard.
    """
    power = np.cumsum(np.pad(np.square(audio, dtype=np.float64), (1, 0)))
    means = (power[_AUDIBLE_WINDOW:] - power[:-_AUDIBLE_WINDOW]) / _AUDIBLE_WINDOW
    over = np.flatnonzero(means > AUDIBLE**2)
    if not len(over):
        return None
    start = int(over[0])
    return start + int(np.argmax(np.abs(audio[start : start + _AUDIBLE_WINDOW]) > AUDIBLE))


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of all benchmarks."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="izwi-tiny-tts", help="folder, embedded name or hub id")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    return parser


@dataclass(frozen=True, slots=True)
class Bench:
    """A loaded speech model behind a running engine."""

    name: str
    model: SpeechFrontend
    engine: AsyncEngine


def start(options: argparse.Namespace) -> Bench:
    """Load the model and start the engine; call from the event loop."""
    backend: TorchBackend = torch_backend(options.device, options.dtype)
    registry = Registry(backend)
    name = registry.load(options.model)
    engine = AsyncEngine(Engine(registry.models, backend, EngineConfig()))
    engine.start()
    return Bench(name, registry.speech(name), engine)


@dataclass(frozen=True, slots=True)
class Spoken:
    """One request as seen by its listener; times in seconds after the request.

    Attributes:
        first_s: First chunk of audio.
        audible_s: Arrival of the chunk with the first sample louder than -50 dBFS.
        total_s: Last chunk.
        audio_s: Seconds of audio generated.
    """

    first_s: float
    audible_s: float
    total_s: float
    audio_s: float
    codes: np.ndarray[Any, Any]


async def speak(bench: Bench, text: str, seed: int, request_id: str, **ask: Any) -> Spoken:
    """Run one request and time it, including preparation."""
    began = time.perf_counter()
    request = bench.model.prepare_speech(
        request_id, bench.name, SpeechInput(text=text, seed=seed, **ask)
    )
    first = audible = None
    samples, codes = 0, []
    start = np.zeros(0, np.float32)  # until something is audible
    async for chunk in bench.engine.submit(request):
        if chunk.reason is Reason.ERROR:
            raise RuntimeError(f"{text!r} failed") from chunk.error
        codes.extend(chunk.entries.tolist())
        if chunk.pcm is None:
            continue
        now = time.perf_counter() - began
        first = first or now
        if audible is None:
            start = np.concatenate([start, chunk.pcm])
            audible = now if len(audible_blocks(start)) else None
        samples += len(chunk.pcm)
    total = time.perf_counter() - began
    audio_s = samples / bench.model.sample_rate
    return Spoken(first or total, audible or total, total, audio_s, np.array(codes))


def _module_that_runs() -> str:
    """Return the name behind `python -m`, also of a module in a folder."""
    spec = sys.modules["__main__"].__spec__
    return Path(sys.argv[0]).stem if spec is None else spec.name


def write_result(name: str, rows: list[dict[str, Any]], **extra: Any) -> Path:
    """Write rows to results/NAME.json with commit, command, device and versions; print them."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    result = {
        "benchmark": name,
        "command": " ".join(["python", "-m", _module_that_runs(), *sys.argv[1:]]),
        "commit": commit.stdout.strip(),
        "device": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        **({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
        "versions": {package: version(package) for package in ("torch", "numpy", "izwi")},
        **extra,
        "rows": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    print(f"written to {path}")
    return path
