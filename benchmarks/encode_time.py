"""How long does the audio encoder of a published size take, recorded and not, by batch and length?

Random weights. Milliseconds a call with the result on the device, features staged on the host
included; with --kernels also which kernels the longest call spends them in.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.measure import write_result
from benchmarks.random_checkpoint import LISTENING, load_listening
from izwi.model import EncodesPadded
from izwi.request import EncodeInput
from izwi.runner.encoder_graphs import EncoderGraphs
from izwi.runner.recorder import Recorder

_REPEATS = 20


def milliseconds(run: Callable[[], object], device: torch.device) -> float:
    """Median time of a call, the device's work included."""
    taken = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - began)
    return round(float(np.median(taken)) * 1e3, 3)


def show_kernels(run: Callable[[], object]) -> None:
    """Print what one call runs on the device, the longest first."""
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        run()
        torch.cuda.synchronize()
    table = profile.key_averages().table("cuda_time_total", row_limit=15, max_name_column_width=80)
    print(table)


@torch.inference_mode()
def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    registry, backend = load_listening(options.size, options.device, options.dtype)
    model, ops = registry.transcription(options.size), backend.ops
    assert isinstance(model, EncodesPadded)
    encoder, rows = model.padded_encoder, []
    largest = max(options.batches)
    graphs = EncoderGraphs(encoder, Recorder(ops.device), largest, ops.device, ops.dtype)
    began = time.perf_counter()
    graphs.warm_up()
    print(f"recorded in {time.perf_counter() - began:.2f} s")
    if ops.device.type == "cuda":
        print(f"memory taken: {torch.cuda.memory_reserved(ops.device) / 2**30:.2f} GiB in all")
    rng = np.random.default_rng(0)
    for shape in encoder.shapes:
        for batch in options.batches:
            values = rng.standard_normal((batch, *shape)).astype(np.float32)
            pieces = [EncodeInput(encoder.kind, part) for part in values]
            plain = milliseconds(lambda pieces=pieces: model.encode(pieces), ops.device)
            recorded = milliseconds(lambda pieces=pieces: graphs.encode(pieces), ops.device)
            rows.append(
                {"batch": batch, "frames": shape[-1], "plain_ms": plain, "recorded_ms": recorded}
            )
    if options.kernels:
        show_kernels(lambda: graphs.encode(pieces))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=LISTENING, default="asr-1.7b")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--kernels", action="store_true", help="print the longest kernels")
    options = parser.parse_args()
    write_result("encode_time", measure(options), size=options.size)


if __name__ == "__main__":
    main()
