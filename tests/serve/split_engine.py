"""An engine in this process whose models are split over it and others."""

from __future__ import annotations

import queue
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import load_model
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.request.request import Request
from izwi.runner.planning import prepare_device
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.serve.control import EngineSpec
from izwi_api.serve.ranks import OtherRanks

CONFIG = EngineConfig(kv_bytes=1 << 24)
# Entries, audio, and log probabilities of a request.
Output = tuple[list[list[int]], np.ndarray, list[Any]]


class SplitEngine:
    """An engine over several devices, of which the first is this process's.

    Attributes:
        dead: One item for each rank that has died.
    """

    def __init__(
        self,
        folders: Mapping[str, Path],
        where: Path,
        devices: Sequence[str] = ("cpu", "cpu"),
        dtype: str = "float32",
        config: EngineConfig = CONFIG,
    ):
        runtime = RuntimeOptions(devices[0], dtype, offline=True)
        address = f"ipc://{where}/engine"
        spec = EngineSpec(
            *(where, address, folders, runtime, config, None), rank_devices=tuple(devices)
        )
        self.dead: queue.Queue[None] = queue.Queue()
        self.ranks = OtherRanks(spec, lambda: self.dead.put(None))
        self.backend = self.ranks.open_backend(spec)
        prepare_device(self.backend, folders, config, "auto")
        models = {name: load_model(folder, self.backend) for name, folder in folders.items()}
        self.engine = Engine(models, self.backend, config)

    def close(self) -> None:
        """End the other processes, and leave their group."""
        self.ranks.processes.close()
        self.backend.ops.ranks.close()  # type: ignore[attr-defined]


@contextmanager
def split(*arguments: Any, **named: Any) -> Iterator[SplitEngine]:
    """As `SplitEngine`, which is closed at the end."""
    made = SplitEngine(*arguments, **named)
    try:
        yield made
    finally:
        made.close()


def whole(
    folders: Mapping[str, Path],
    device: str = "cpu",
    dtype: str = "float32",
    config: EngineConfig = CONFIG,
) -> Engine:
    """The same models on one device."""
    backend = torch_backend(device, dtype)
    models = {name: load_model(folder, backend) for name, folder in folders.items()}
    return Engine(models, backend, config)


def outputs(engine: Engine, requests: Sequence[Request]) -> dict[str, Output]:
    """Run requests to their ends."""
    for request in requests:
        engine.submit(request)
    entries: defaultdict[str, list[list[int]]] = defaultdict(list)
    pcm: defaultdict[str, list[np.ndarray]] = defaultdict(lambda: [np.zeros(0, np.float32)])
    logprobs: defaultdict[str, list[Any]] = defaultdict(list)
    while engine.has_work:
        for chunk in engine.step():
            assert chunk.error is None, chunk.error
            entries[chunk.request_id] += chunk.entries.tolist()
            if chunk.logprobs is not None:
                logprobs[chunk.request_id] += np.array(chunk.logprobs).tolist()
            if chunk.pcm is not None:
                pcm[chunk.request_id].append(chunk.pcm)
    return {name: (entries[name], np.concatenate(pcm[name]), logprobs[name]) for name in entries}
