"""Log what a server's processes do and when, for benchmarks that break down latency.

If the environment variable BENCHMARK_TIMELINE names a folder, each process appends lines to its own
file there: what was called, when (seconds since the epoch, the clients' clock), for how long, and
what was compiled, loaded or captured and why. Otherwise nothing is changed.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

FOLDER = "BENCHMARK_TIMELINE"


class Timeline:
    """The log of one process."""

    def __init__(self, folder: Path):
        self._file = (folder / f"{os.getpid()}.jsonl").open("a", encoding="utf-8", buffering=1)
        self._lock = threading.Lock()

    def add(self, what: str, at_s: float, took_s: float, **more: Any) -> None:
        """Write a line."""
        line = {"at_s": round(at_s, 6), "what": what, "ms": round(took_s * 1e3, 3), **more}
        with self._lock:
            self._file.write(json.dumps(line) + "\n")

    def watch(
        self, owner: Any, name: str, tell: Callable[..., dict[str, Any]] = lambda *_, **__: {}
    ) -> None:
        """Write a line for each call of a function.

        Args:
            owner: Class or module of the function.
            name: Name of the function.
            tell: Returns further values to write, given the arguments.
        """
        run = getattr(owner, name)
        label = f"{getattr(owner, '__name__', type(owner).__name__)}.{name}"

        @wraps(run)
        def timed(*arguments: Any, **named: Any) -> Any:
            began_s, clock_s = time.time(), time.perf_counter()
            try:
                return run(*arguments, **named)
            finally:
                took_s = time.perf_counter() - clock_s
                self.add(label, began_s, took_s, **tell(*arguments, **named))

        setattr(owner, name, timed)


def engine_timeline() -> None:
    """Log the engine process."""
    timeline = _opened()
    if timeline is None:
        return
    from izwi.backends import compilations
    from izwi.backends.torch.captured.codec_graphs import CodecGraphs
    from izwi.backends.torch.captured.decode_graphs import DecodeGraphs
    from izwi.backends.torch.captured.encoder_graphs import EncoderGraphs
    from izwi.backends.torch.captured.graphs import Graphs
    from izwi.backends.torch.captured.prompt_graphs import PromptGraphs
    from izwi.backends.torch.transfer import HostCopy
    from izwi.engine.model_worker import ModelWorker
    from izwi.engine.step_thread import SteppingThread
    from izwi.runner.encoding import Encoders
    from izwi.runner.runner import Runner
    from izwi_api.serve import wire

    def compiled(one: compilations.Compilation) -> None:
        cause = compilations.cause()
        timeline.add(one.kind, time.time() - one.seconds, one.seconds, name=one.name, cause=cause)

    compilations.observers.append(compiled)

    def work_of(_: Any, work: Any) -> dict[str, Any]:
        lengths = [row.stop - row.start for row in work.forward]
        counts = {"encode": len(work.encode), "vocode": len(work.vocode)}
        return {**counts, "rows": len(lengths), "positions": sum(lengths)}

    timeline.watch(ModelWorker, "schedule")
    timeline.watch(ModelWorker, "launch", work_of)
    timeline.watch(ModelWorker, "_results")
    timeline.watch(ModelWorker, "process")
    for name in ("encode", "launch", "forward", "vocode", "_warm"):
        timeline.watch(Runner, name)
    timeline.watch(Encoders, "_encode_plain")
    timeline.watch(
        Graphs, "_run", lambda _, rows: {"last": max((row.stop for row in rows), default=0)}
    )
    timeline.watch(PromptGraphs, "run")
    timeline.watch(EncoderGraphs, "encode", lambda _, pieces: {"pieces": len(pieces)})
    timeline.watch(DecodeGraphs, "decode")
    timeline.watch(HostCopy, "wait")
    timeline.watch(SteppingThread, "_next_commands")
    timeline.watch(SteppingThread, "take_in")
    timeline.watch(SteppingThread, "_dispatch", lambda _, chunks: {"chunks": len(chunks)})
    timeline.watch(wire.RequestCodec, "decode")
    for graphs in (DecodeGraphs, PromptGraphs, EncoderGraphs, CodecGraphs):
        timeline.watch(graphs, "warm_up")


def api_server_timeline(registry: Any) -> None:
    """Log an API-server process."""
    timeline = _opened()
    if timeline is None:
        return
    from izwi.sandbox.client import LimitedPool
    from izwi_api.serve.remote_engine import RemoteEngine
    from izwi_api.services.speech import request

    timeline.watch(request, "decode_base64_audio")
    timeline.watch(LimitedPool, "run")
    timeline.watch(RemoteEngine, "submit_all")
    timeline.watch(RemoteEngine, "_read")
    for name in registry.names():
        model = registry.model(name)
        for part in ("prepare_speech", "prepare_transcription", "split_audio", "read"):
            if hasattr(model, part):
                timeline.watch(model, part)


def _opened() -> Timeline | None:
    folder = os.environ.get(FOLDER)
    return Timeline(Path(folder)) if folder else None
