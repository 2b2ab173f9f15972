"""Time the audio encoders of a published size, with and without graphs, by batch and length.

Random weights. Times are milliseconds per call, including staging of features on the host:
`plain_ms` (without graphs) and `captured_ms` for pieces as long as their bucket; for pieces of
different lengths in that bucket, without graphs, `one_by_one_ms` (one pass each) and `together_ms`
(one pass). --kernels also reports the kernels of the longest call.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.measure import write_result
from benchmarks.random_checkpoint import NAMES, load
from izwi.backends.padded import encode_together
from izwi.backends.torch.captured.capturer import GraphCapturer
from izwi.backends.torch.captured.encoder_graphs import EncoderGraphs
from izwi.backends.torch.ops import TorchOps
from izwi.model.encoders import EncodesPadded, PaddedEncoder
from izwi.model.protocol import Model
from izwi.request.request import EncodeInput

_REPEATS = 20


def milliseconds(run: Callable[[], object], device: torch.device) -> float:
    """Return the median time of a call, including the device's work."""
    taken = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - began)
    return round(float(np.median(taken)) * 1e3, 3)


def show_kernels(run: Callable[[], object]) -> None:
    """Print the kernels of one call, the longest first."""
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        run()
        torch.cuda.synchronize()
    table = profile.key_averages().table("cuda_time_total", row_limit=15, max_name_column_width=80)
    print(table)


def load_model(size: str, device: str, dtype: str) -> tuple[Model, TorchOps]:
    """Load one of NAMES."""
    registry, backend = load(size, device, dtype, frames=8)
    return registry.models[size], backend.ops


def pieces_of(kind: str, encoder: PaddedEncoder, bucket: int, lengths: Any) -> list[EncodeInput]:
    """Make noise with the given lengths along the encoder's axis, at most the bucket's."""
    rng = np.random.default_rng(0)
    shape = list(encoder.shapes[bucket])
    pieces = []
    for length in lengths:
        shape[encoder.axis] = int(length)
        pieces.append(EncodeInput(kind, rng.standard_normal(shape).astype(np.float32)))
    return pieces


def measure_bucket(
    model: Model, ops: TorchOps, graphs: EncoderGraphs, kind: str, bucket: int, batch: int
) -> dict[str, Any]:
    """Time one batch of one encoder's bucket."""
    assert isinstance(model, EncodesPadded)
    encoder = model.padded_encoders[kind]
    axis, shapes = encoder.axis, encoder.shapes
    longest = shapes[bucket][axis]
    shortest = shapes[bucket - 1][axis] + 1 if bucket else longest // 2
    equal = pieces_of(kind, encoder, bucket, [longest] * batch)
    unequal = pieces_of(kind, encoder, bucket, np.linspace(shortest, longest, batch))
    timed: dict[str, Callable[[], object]] = {
        "plain_ms": lambda: model.encode(equal),
        "captured_ms": lambda: graphs.encode(equal),
    }
    if batch > 1:
        timed["one_by_one_ms"] = lambda: model.encode(unequal)
        timed["together_ms"] = lambda: encode_together(model, ops, batch, unequal)
    taken = {name: milliseconds(run, ops.device) for name, run in timed.items()}
    each = round(taken["captured_ms"] / batch, 3)
    return {"kind": kind, "length": longest, "batch": batch, **taken, "captured_ms_a_piece": each}


@torch.inference_mode()
def measure(size: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time every bucket of every encoder of one model."""
    model, ops = load_model(size, options.device, options.dtype)
    assert isinstance(model, EncodesPadded), f"{size} has no encoder that takes pads"
    encoders = model.padded_encoders
    graphs = EncoderGraphs(
        encoders, GraphCapturer(ops.device), max(options.batches), ops.device, ops.dtype
    )
    before = torch.cuda.memory_reserved(ops.device) if ops.device.type == "cuda" else 0
    began = time.perf_counter()
    graphs.warm_up()
    print(f"{size}: captured in {time.perf_counter() - began:.2f} s")
    if ops.device.type == "cuda":
        taken = torch.cuda.memory_reserved(ops.device) - before
        print(f"{size}: the graphs take {taken / 2**30:.2f} GiB")
    rows = [
        {"size": size, **measure_bucket(model, ops, graphs, kind, bucket, batch)}
        for kind, encoder in encoders.items()
        for bucket in range(len(encoder.shapes))
        for batch in options.batches
    ]
    if options.kernels:
        for kind, encoder in encoders.items():
            last = len(encoder.shapes) - 1
            longest = encoder.shapes[last][encoder.axis]
            pieces = pieces_of(kind, encoder, last, [longest] * max(options.batches))
            show_kernels(lambda pieces=pieces: graphs.encode(pieces))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", choices=NAMES, nargs="+", default=["asr-1.7b", "tts-1.7b-base"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--kernels", action="store_true", help="print the longest kernels")
    options = parser.parse_args()
    rows = [row for size in options.sizes for row in measure(size, options)]
    write_result("encode_time", rows, sizes=options.sizes)


if __name__ == "__main__":
    main()
