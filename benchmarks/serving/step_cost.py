"""What does the engine's loop cost? Host time per step without the model.

The model returns fixed ids at once. What remains is planning, building the batch (block tables,
sampler inputs), and processing the results (logs, chunks, pages). Sequences arrive, decode, vocode
and end all the time.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.measure import arguments, write_result
from izwi.arrays import Int64
from izwi.backends.torch.backend import TorchBackend
from izwi.backends.torch.ops import TorchOps
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.model.capability import Capability
from izwi.model.layers import PagedAttention, StateSpec
from izwi.model.protocol import Pick
from izwi.model.step_batch import Row, Span
from izwi.model.tracks import Track
from izwi.request.request import EncodeInput, Request, SamplingParams

CODEBOOKS = 16
PROMPT = 40
FRAMES = 120
STEP_S = 0.02  # of the engine's clock; the steps themselves take much less


@dataclass(frozen=True, slots=True)
class FixedPrompt:
    """Text ids; each prompt has its own."""

    ids: tuple[int, ...]
    encode_inputs: tuple[EncodeInput, ...] = ()

    @property
    def num_positions(self) -> int:
        """Number of positions of the prompt."""
        return len(self.ids)

    @property
    def content_keys(self) -> Int64:
        """Content keys of the positions: the ids."""
        return np.array(self.ids, np.int64)


class InstantSpeech:
    """A speech model that takes no time: the stopwatch is stopped while it works."""

    capabilities = (Capability.SPEAK,)
    layers = (PagedAttention(1, 8),)
    max_positions = 512
    sample_rate = 24_000
    frame_samples = 1920
    lookahead_samples = 0
    state: Mapping[str, StateSpec] = {"history": StateSpec((64,))}
    warms_up = False

    def __init__(self) -> None:
        self.seconds = 0.0
        self.tracks = (Track("frames", CODEBOOKS, 2048, codec=self),)

    def content_keys(self, span: Span) -> list[int]:
        """Use the ids as content keys."""
        prompt = span.request.prompt
        assert isinstance(prompt, FixedPrompt)
        frames = range(len(prompt.ids), span.stop)
        return [*prompt.ids, *(1 << 40 | position for position in frames)][span.start : span.stop]

    def embed(self, rows: Seq[Row]) -> torch.Tensor:
        """Return a number for each position."""
        return torch.ones(sum(row.stop - row.start for row in rows), 1)

    def run(self, x: torch.Tensor, context: Any) -> torch.Tensor:  # noqa: ARG002
        """Return the input unchanged."""
        return x

    def draw(self, hidden: torch.Tensor, pick: Pick, track: int = 0) -> torch.Tensor:  # noqa: ARG002
        """Return ones."""
        return torch.ones(len(hidden), CODEBOOKS, dtype=torch.int64)

    def warm_codes(self, span: Span) -> None:  # noqa: ARG002
        """Return None: no clip precedes the speech."""
        return

    def decode(
        self, codes: torch.Tensor, state: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return silence."""
        began = time.perf_counter()
        audio = torch.zeros(len(codes), codes.shape[1] * self.frame_samples)
        self.seconds += time.perf_counter() - began
        return audio, dict(state)


def request(number: int, length: int) -> Request:
    """Return one stream with its own prompt ids."""
    ids = tuple((number * 64 + position) % 100_000 for position in range(PROMPT))
    sampling = SamplingParams(0.9, 50)
    return Request(
        f"r{number}", "m", FixedPrompt(ids), sampling, sampling, seed=number, max_entries=length
    )


class Stopwatch:
    """A stopwatch for the parts of a step, which it wraps."""

    def __init__(self) -> None:
        self.parts: defaultdict[str, float] = defaultdict(float)

    def wrap(self, owner: Any, method: str, part: str) -> None:
        """Count a method's time as part of a step."""
        work: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            try:
                return work(*args)
            finally:
                self.parts[part] += time.perf_counter() - began

        setattr(owner, method, timed)


def measure(running: int, steps: int, policy: str) -> dict[str, Any]:
    """Measure the host time of steps with a number of sequences, in microseconds."""
    model, ops, now_s = InstantSpeech(), TorchOps(), 0.0
    config = EngineConfig(
        max_running=running,
        max_waiting=running,
        max_step_tokens=max(2048, running),
        max_step_vocodes=running,
        kv_bytes=1 << 28,
        policy=policy,
        max_step_s=1.0,
    )
    engine = Engine({"m": model}, TorchBackend(ops), config, clock=lambda: now_s)  # type: ignore[dict-item]
    (worker,) = engine._workers.values()
    watch = Stopwatch()
    watch.wrap(worker, "schedule", "plan")
    watch.wrap(worker, "launch", "batch")
    watch.wrap(worker, "_results", "batch")
    watch.wrap(worker, "process", "process")
    generator = np.random.default_rng(0)
    samples: dict[str, list[float]] = {"plan": [], "batch": [], "process": [], "total": []}
    number = live = 0
    for step in range(steps + FRAMES):
        while live < running and (number < running or step > 0):
            # different lengths at the start only, so that the ends are staggered
            length = int(generator.integers(8, FRAMES)) if number < running else FRAMES
            engine.submit(request(number, length))
            number, live = number + 1, live + 1
        watch.parts.clear()
        model.seconds = 0.0
        ended = sum(chunk.reason is not None for chunk in engine.step())
        live -= ended
        now_s += STEP_S
        if step >= FRAMES:  # earlier steps warm up
            parts = {name: 1e6 * seconds for name, seconds in watch.parts.items()}
            parts["process"] -= 1e6 * model.seconds
            parts["total"] = sum(parts.values())
            for name, microseconds in parts.items():
                samples[name].append(microseconds)
    row: dict[str, Any] = {"sequences": running, "policy": policy}
    for name, values in samples.items():
        row[f"{name}_us_p50"] = round(float(np.percentile(values, 50)))
        row[f"{name}_us_p95"] = round(float(np.percentile(values, 95)))
    return row


def main() -> None:
    """Measure, print and write."""
    parser = arguments(__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 64, 128, 256, 512])
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(n, options.steps, "deadline") for n in options.sequences]
    rows += [measure(64, options.steps, policy) for policy in ("fcfs", "priority")]
    by_number = {row["sequences"]: row for row in rows if row["policy"] == "deadline"}
    growth = None
    if {64, 512} <= by_number.keys():
        growth = round(by_number[512]["total_us_p95"] / by_number[64]["total_us_p95"] / 8, 2)
    write_result("step_cost", rows, growth_64_to_512_against_linear=growth)


if __name__ == "__main__":
    main()
