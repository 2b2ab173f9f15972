"""How long until a server is ready, with an empty and with a filled kernel cache?

    python -m benchmarks.serving.start_time --sizes tts-1.7b asr-1.7b --device cuda

Each row starts a server with one model, or with all of them, twice: "cold" as on a new machine, and
"warm" as after `izwi warm`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from typing import Any
from unittest import mock

import torch

from benchmarks.measure import write_result
from benchmarks.random_checkpoint import EMBEDDED, EMBEDDED_LISTENER, NAMES
from benchmarks.serving.http_server import served


def start_s(sizes: list[str], device: str, port: int) -> float:
    """Return the seconds until a server of these models is ready."""
    began_s = time.perf_counter()
    with served(",".join(sizes), 52, 64, port, device):
        return round(time.perf_counter() - began_s, 1)


def start_row(sizes: list[str], device: str, port: int) -> dict[str, Any]:
    """Start once with an empty cache, and once again."""
    with (
        tempfile.TemporaryDirectory() as cache,
        mock.patch.dict(os.environ, TRITON_CACHE_DIR=cache),
    ):
        cold_s, warm_s = (start_s(sizes, device, port) for _ in range(2))
    return {"models": sizes, "cold_s": cold_s, "warm_s": warm_s}


def main() -> None:
    """Start a server of all models together."""
    on_gpu = torch.cuda.is_available()
    usual = ["tts-1.7b", "asr-1.7b"] if on_gpu else [EMBEDDED, EMBEDDED_LISTENER]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", choices=NAMES, nargs="+", default=usual)
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--port", type=int, default=8100)
    options = parser.parse_args()
    row = start_row(options.sizes, options.device, options.port)
    print(row, flush=True)
    write_result("start_time", [row], device_kind=options.device)


if __name__ == "__main__":
    main()
