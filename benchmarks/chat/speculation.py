"""What do drafts bring (`--speculate`)? Tokens a second and accepted drafts, beside none.

    python -m benchmarks.chat.speculation --size 8B --device cuda --rows 1 8 64

Random weights of a published size. What they write repeats itself more than an answer would, so
the shares of accepted drafts say nothing about real texts; the times that belong to a share do.
Modes take turns on one engine each, all with the same weights, prompts and seeds, and each must
give the ids of the one without drafts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.chat.speed import SAMPLED, SIZES, submit, write_folder
from benchmarks.measure import write_result
from benchmarks.random_checkpoint import RandomBackend
from izwi.backends.torch.backend import torch_backend
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.request.request import SamplingParams
from izwi_models.qwen3_chat import FAMILY

MODES = ("off", "ngram", "auto")
_PAGES_BYTES = 4 << 30
_GREEDY = SamplingParams(0.0, 1, 1.0)
_WARM_UP = 10**6  # of its own prompts, which no measurement has


def answer(
    engine: Engine, rows: int, sampling: SamplingParams, salt: int, options: argparse.Namespace
) -> tuple[float, dict[str, list[int]]]:
    """Answer prompts together; return tokens a second after all had one, and the ids of each."""
    submit(engine, rows, options.prompt, options.tokens, salt, sampling)
    ids: dict[str, list[int]] = {}
    began_s, counted = time.perf_counter(), 0
    while engine.has_work:
        for chunk in engine.step():
            if chunk.error is not None:
                raise chunk.error
            row_ids = ids.setdefault(chunk.request_id.rsplit("-", 1)[1], [])
            is_last_first = not row_ids and len(ids) == rows
            row_ids += [entry[0] for entry in chunk.entries]
            counted = 0 if is_last_first else counted + len(chunk.entries)
            if is_last_first:
                began_s = time.perf_counter()
    return counted / (time.perf_counter() - began_s), ids


def counts(engine: Engine) -> tuple[int, int]:
    """Return how many ids were drafted, and how many accepted, so far."""
    found = engine.load["chat"]
    return int(found["drafted"]), int(found["accepted"])


def measure(options: argparse.Namespace, engines: dict[str, Engine]) -> list[dict[str, Any]]:
    """Let the modes take turns on the same prompts; return a row for each."""
    found = []
    for name, sampling in (("greedy", _GREEDY), ("sampled", SAMPLED)):
        for rows in options.rows:
            expected: dict[str, list[int]] | None = None
            for mode, engine in engines.items():
                drafted, accepted = counts(engine)
                per_s, ids = answer(engine, rows, sampling, rows, options)
                now_drafted, now_accepted = counts(engine)
                expected = expected or ids
                found.append(
                    {
                        "sampling": name,
                        "rows": rows,
                        "mode": mode,
                        "tokens_per_s": round(per_s, 1),
                        "drafted": now_drafted - drafted,
                        "accepted": now_accepted - accepted,
                        "tokens": sum(map(len, ids.values())),
                        "equal": sum(ids[row] == expected[row] for row in expected),
                    }
                )
    return found


def main() -> None:
    """Measure one size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8])
    options = parser.parse_args()
    backend = RandomBackend(torch_backend(options.device, options.dtype).ops)
    with tempfile.TemporaryDirectory() as place:
        model = FAMILY.load_model(write_folder(options.size, Path(place) / "chat"), backend)
    engines = {}
    for mode in MODES:
        config = EngineConfig(max_running=max(options.rows), speculate=mode, kv_bytes=_PAGES_BYTES)
        engines[mode] = Engine({"chat": model}, backend, config)
        answer(engines[mode], max(options.rows), SAMPLED, _WARM_UP, options)
    found = measure(options, engines)
    write_result(f"speculation_{options.size}", found, size=options.size, prompt=options.prompt)


if __name__ == "__main__":
    main()
