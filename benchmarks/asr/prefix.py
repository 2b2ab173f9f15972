"""How much time do prefix-cache hits save? 64 transcriptions with one context of 500 positions.

A miss computes the context; a hit finds its keys and values in cached pages. Timed are the steps
that run the prompt, without the audio encoder, over several contexts.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.measure import arguments, write_result
from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.speech import TranscriptionInput
from izwi.model.frontend import TranscriptionFrontend
from izwi.request.request import Request

POSITIONS = 500
WORDS = ("the", "train", "river", "leaves", "seven", "comes", "back", "late", "evening", "and")


def context(seed: int, model: TranscriptionFrontend) -> str:
    """Return words whose prompt has at least POSITIONS positions before the audio."""
    generator = np.random.default_rng(seed)
    words: list[str] = []
    while True:
        words += generator.choice(WORDS, 20).tolist()
        silent = prepare(model, " ".join(words), 0, "measure")
        if silent.prompt.num_positions >= POSITIONS + 30:
            return " ".join(words)


def prepare(model: TranscriptionFrontend, text: str, clip: int, name: str) -> Request:
    """Return one request: a second of noise, different for each clip, after the context."""
    generator = np.random.default_rng(clip)
    samples = (0.05 * generator.standard_normal(16_000)).astype(np.float32)
    ask = TranscriptionInput(samples, context=text, max_new_tokens=2)
    return model.prepare_transcription(name, "asr", ask)


def prompt_ms(engine: Engine, request: Request) -> float:
    """Measure the steps up to the first token, in milliseconds."""
    (worker,) = engine._workers.values()
    began, seconds = 0.0, 0.0
    forward = worker.runner.forward

    def timed(rows: Any) -> Any:
        nonlocal began, seconds
        began = time.perf_counter()
        try:
            return forward(rows)
        finally:
            seconds += time.perf_counter() - began

    worker.runner.forward = timed  # type: ignore[method-assign]
    engine.submit(request)
    while not any(len(chunk.entries) or chunk.reason for chunk in engine.step()):
        pass
    worker.runner.forward = forward  # type: ignore[method-assign]
    while engine.has_work:
        engine.step()
    return 1e3 * seconds


def main() -> None:
    """Measure, print and write."""
    parser = arguments(__doc__)
    parser.set_defaults(model="izwi-tiny-asr")
    parser.add_argument("--requests", type=int, default=64)
    options = parser.parse_args()
    backend = torch_backend(options.device, options.dtype)
    registry = Registry(backend)
    model = registry.transcription(registry.load(options.model))
    # only time is measured, so a checkpoint that cannot follow a context gets it, too
    model._config = replace(model._config, follows_context=True)  # type: ignore[attr-defined]

    def new_engine() -> Engine:
        return Engine({"asr": model}, backend, EngineConfig())

    engine = new_engine()
    misses, hits = [], []
    for seed in range(8):
        text = context(seed, model)
        misses.append(prompt_ms(engine, prepare(model, text, 2 * seed, "miss")))
        hits.append(prompt_ms(engine, prepare(model, text, 2 * seed, "hit")))
    miss, hit = float(np.median(misses[1:])), float(np.median(hits[1:]))  # the first warms up

    engine, text = new_engine(), context(99, model)
    together = [prepare(model, text, clip, f"r{clip}") for clip in range(options.requests)]
    positions = sum(request.prompt.num_positions for request in together)
    for request in together:
        engine.submit(request)
    began = time.perf_counter()
    while engine.has_work:
        engine.step()
    load = engine.load["asr"]
    row = {
        "prompt_miss_ms": round(miss, 1),
        "prompt_hit_ms": round(hit, 1),
        "hit_to_miss": round(hit / miss, 3),
        "requests": options.requests,
        "prompt_positions": positions,
        "positions_hit": int(load["prefix_positions_hit"]),
        "hit_rate": round(load["prefix_positions_hit"] / load["prefix_positions_asked"], 3),
        "seconds": round(time.perf_counter() - began, 2),
    }
    write_result("prefix", [row])


if __name__ == "__main__":
    main()
