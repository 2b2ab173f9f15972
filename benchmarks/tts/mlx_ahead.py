"""Compare MLX with steps launched ahead and without: one run, the same requests, alternating.

Requests never repeat: each has its own text and seed, and a fixed number of entries.
    python -m benchmarks.tts.mlx_ahead --models izwi-tiny-tts izwi-tiny-chat --streams 1 8
On a shared machine, "cpu_ms" (processor time of all threads) says more than the clock. Times are
per entry of each stream.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

from benchmarks.backends import request_of
from benchmarks.measure import arguments, write_result
from izwi.backends.mlx.backend import mlx_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.engine import Engine


class Loop:
    """An engine on MLX, and its models."""

    def __init__(self, ahead: bool, models: list[str], kv_bytes: int):
        backend = mlx_backend(launches_ahead=ahead)
        self._registry, self._made = Registry(backend), 0
        for model in models:
            self._registry.load(model)
        config = EngineConfig(kv_bytes=kv_bytes, max_models=len(models))
        self._engine = Engine(self._registry.models, backend, config)

    @property
    def names(self) -> list[str]:
        """The names of the models."""
        return self._registry.names()

    def run(self, name: str, streams: int, entries: int) -> dict[str, float]:
        """Run streams together; return milliseconds of an entry by the clock and of processors."""
        for _ in range(streams):
            self._made += 1
            self._engine.submit(request_of(self._registry, name, self._made, entries))
        began_s, cpu_began_s = time.perf_counter(), time.process_time()
        while self._engine.has_work:
            for chunk in self._engine.step():
                assert chunk.error is None, chunk.error
        wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_began_s
        return {"wall_ms": 1e3 * wall_s / entries, "cpu_ms": 1e3 * cpu_s / entries}


def main() -> None:
    """Measure, print and write."""
    parser = arguments(__doc__)
    parser.add_argument("--models", nargs="+", default=["izwi-tiny-tts", "izwi-tiny-chat"])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--entries", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kv-mib", type=int, nargs="+", default=[64])
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for kv_mib in options.kv_mib:
        loops = {ahead: Loop(ahead, options.models, kv_mib << 20) for ahead in (False, True)}
        for name in loops[True].names:
            for streams in options.streams:
                found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
                for number in range(1 + options.rounds):
                    for ahead, loop in loops.items():
                        made = loop.run(name, streams, options.entries)
                        if number:  # the first does not count
                            found[ahead].append(made)
                for ahead, runs in found.items():
                    row = {"model": name, "streams": streams, "kv_mib": kv_mib, "ahead": ahead}
                    for key in runs[0]:
                        row[key] = round(statistics.median(run[key] for run in runs), 2)
                    rows.append(row)
                    print(row, flush=True)
    load_average = round(os.getloadavg()[1], 1)  # of five minutes
    write_result("mlx_ahead", rows, load_average=load_average)


if __name__ == "__main__":
    main()
