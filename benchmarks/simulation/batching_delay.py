"""What does batching delay gain on a device whose passes are expensive?

On a GPU, a pass or an encoder call costs nearly the same for one prompt as for eight. Simulated
devices with such costs run the engine's own scheduling code with speech in a closed loop,
transcriptions in a closed loop, and streams at random times, for each maximum number of steps that
new requests may be delayed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.measure import arguments, write_result
from benchmarks.simulation.arrivals import Arrival, Playback, poisson, summary
from benchmarks.simulation.cluster import Cluster
from benchmarks.simulation.device import Script, SimulatedModel, SimulatedPrompt
from benchmarks.simulation.machine import KINDS, Machine
from izwi.config import EngineConfig
from izwi.request.request import EncodeInput, Request
from izwi.scheduler import batching_delay
from izwi.scheduler.cost import StepCost

# About those of a 1.7B speech model on one H200: 64 rows take 5.3 ms, a short prompt 2.7 ms more.
COMPUTE = StepCost(
    base_s=2.6e-3,
    decode_row_s=4.2e-5,
    prefill_token_s=1e-5,
    encode_s=3e-4,
    vocode_call_s=1e-3,
    vocode_frame_s=1e-5,
    prefill_call_s=2.5e-3,
    encode_call_s=2.5e-3,
)
HOST = StepCost(base_s=2e-4, decode_row_s=1e-5)
FACTORS = (0.95, 1.0, 1.0, 1.0, 1.05, 1.3)  # ratios of measured to predicted step time
MACHINE = Machine(COMPUTE, HOST, dict.fromkeys(KINDS, FACTORS), wake_s=2e-4, reach_s=5e-4)
STREAMS = SimulatedModel(frame_s=0.08, num_codebooks=1, num_pages=8192)
CLIPS = SimulatedModel(frame_s=None, num_codebooks=1, num_pages=8192)
STOP_ID = 1
STREAM_FRAMES, CLIP_TOKENS = 52, 28
# Lengths differ by up to this share, so that streams that began together end apart.
SPREAD = 0.2
# About the duration of a stream; those of a closed loop begin spread over it.
BEGIN_S = 0.4

Drawn = list[tuple[Request, Script]]


def stream(number: int, rng: random.Random) -> tuple[Request, Script]:
    """Draw a stream that is played."""
    prompt = SimulatedPrompt(rng.randint(15, 30), num_shared=9, seed=number)
    return _request(number, prompt, STREAM_FRAMES, rng, streams=True)


def clip(number: int, rng: random.Random) -> tuple[Request, Script]:
    """Draw a clip whose transcript is needed as a whole."""
    piece = EncodeInput("features", np.full(1, number, dtype=np.float32))
    prompt = SimulatedPrompt(rng.randint(100, 140), 9, number, encode_inputs=(piece,))
    return _request(number, prompt, CLIP_TOKENS, rng, streams=False)


def _request(
    number: int, prompt: SimulatedPrompt, entries: int, rng: random.Random, *, streams: bool
) -> tuple[Request, Script]:
    count = round(entries * rng.uniform(1 - SPREAD, 1 + SPREAD))
    request = Request(
        f"{number}",
        "paper",
        prompt,
        max_entries=4 * count,
        stop_ids=(STOP_ID,),
        streams=streams,
    )
    return request, [(0,)] * count


def closed_loop(
    kind: Callable[[int, random.Random], tuple[Request, Script]],
    model: SimulatedModel,
    concurrency: int,
    count: int,
) -> dict[str, Any]:
    """Keep a number of requests alive until a number of them have ended."""
    rng = random.Random(concurrency)
    drawn = [kind(number, rng) for number in range(count)]
    first = [Arrival(rng.random() * BEGIN_S, request) for request, _ in drawn[:concurrency]]
    return _play(model, drawn, sorted(first), [request for request, _ in drawn[concurrency:]])


def open_loop(rate_per_s: float, count: int) -> dict[str, Any]:
    """Start a number of streams at random times."""
    rng = random.Random(count)
    drawn = [stream(number, rng) for number in range(count)]
    times = zip(poisson(rate_per_s, seed=7), drawn, strict=False)
    return _play(STREAMS, drawn, [Arrival(at_s, request) for at_s, (request, _) in times], [])


def _play(
    model: SimulatedModel, drawn: Drawn, arrivals: Sequence[Arrival], followers: Sequence[Request]
) -> dict[str, Any]:
    scripts = {request.request_id: script for request, script in drawn}
    cluster = Cluster(1, model, MACHINE, EngineConfig(), scripts)
    played = cluster.run(arrivals, followers=followers)
    row: dict[str, Any] = {
        "requests": len(played),
        "steps": cluster.num_steps,
        **rates(played, drawn),
    }
    if model.frame_s is not None:
        row |= summary(played)
        row["audio_s_per_s"] = round(row["entries_per_s"] * model.frame_s, 1)
    return row


def rates(played: Sequence[Playback], drawn: Drawn) -> dict[str, float]:
    """Return ended requests and entries per second, in the middle part of a full run."""
    lengths = {request.request_id: len(script) for request, script in drawn}
    ends = sorted(
        (one.ended_s, lengths[one.request.request_id]) for one in played if one.ended_s is not None
    )
    part = ends[len(ends) // 5 : -len(ends) // 5]
    seconds = part[-1][0] - part[0][0]
    return {
        "entries_per_s": round(sum(count for _, count in part[1:]) / seconds, 1),
        "requests_per_s": round((len(part) - 1) / seconds, 1),
    }


def scenes(scale: float) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the scenes by name."""
    found: dict[str, Callable[[], dict[str, Any]]] = {}
    for concurrency in (8, 32, 64):
        found[f"{concurrency} streams in a closed loop"] = lambda concurrency=concurrency: (
            closed_loop(stream, STREAMS, concurrency, round(scale * 1500))
        )
    for rate in (10, 20, 40, 80):
        found[f"{rate} streams/s"] = lambda rate=rate: open_loop(rate, round(scale * 1000))
    found["32 clips in a closed loop"] = lambda: closed_loop(clip, CLIPS, 32, round(scale * 1500))
    return found


def main() -> None:
    """Run each scene for each number of steps; print and write the results."""
    parser = arguments(__doc__)
    parser.add_argument("--most-steps", type=int, nargs="+", default=[1, 2, 3, 4, 6])
    parser.add_argument(
        "--scale", type=float, default=1.0, help="fraction of the requests to simulate"
    )
    options = parser.parse_args()
    rows = []
    for name, play in scenes(options.scale).items():
        for steps in options.most_steps:
            with (
                mock.patch.object(batching_delay, "MOST_STEPS", steps),
                mock.patch.object(
                    batching_delay, "MOST_BACKGROUND_STEPS", 2 * steps - (steps == 1)
                ),
            ):
                rows.append({"scene": name, "most_steps": steps, **play()})
    prices = {name: round(seconds * 1e3, 4) for name, seconds in asdict(COMPUTE).items()}
    write_result(
        "simulate_gpu", rows, compute_ms=prices, in_use_most_steps=batching_delay.MOST_STEPS
    )


if __name__ == "__main__":
    main()
