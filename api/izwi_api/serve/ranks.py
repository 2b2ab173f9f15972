"""An engine's other ranks: rank 0, the engine process, starts them, and each runs as `main`."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from izwi.backends.choice import open_backend, spread_device
from izwi.backends.protocol import Backend
from izwi.checkpoints.registry import family_of, load_model
from izwi.engine.engine import Engine
from izwi.errors import InvalidRequest, IzwiError
from izwi.host.allocator import settle
from izwi.host.rank_links import FollowerLink, FollowerProcesses
from izwi.ops.ranks import RankPlace
from izwi.runner.following import follow
from izwi.runner.planning import prepare_device
from izwi_api.environment import read_log
from izwi_api.serve.control import EngineSpec, RankSpec, decode_rank, encode_rank
from izwi_api.serve.process_log import log_as_the_server

logger = logging.getLogger("izwi_api.serve.ranks")  # run as __main__

_PROGRAM = (sys.executable, "-P", "-m", "izwi_api.serve.ranks")
# Seconds that rank 0 has to report an error of the start, which every rank finds.
_SAME_ERROR_S = 2.0


class OtherRanks:
    """The other ranks of this engine."""

    def __init__(self, spec: EngineSpec, died: Callable[[], object]):
        """Start them.

        Args:
            spec: What the engine runs.
            died: Called, on another thread, when one of them ends.

        Raises:
            InvalidRequest: There are not enough devices, or they cannot share a model.
            CheckpointError: A checkpoint cannot be read.
        """
        devices = _devices_of(spec)
        store = f"{spec.address.removeprefix('ipc://')}.ranks"
        Path(store).unlink(missing_ok=True)  # another engine's addresses would mislead them
        places = [RankPlace(index, len(devices), store) for index in range(len(devices))]
        self.place, self.device = places[0], devices[0]
        for folder in spec.models.values():  # before any process is started for nothing
            family_of(folder).read_sizes(folder, self.place)
        self._died = died
        rest = zip(places[1:], devices[1:], strict=True)
        firsts = [
            RankSpec(place, spec.models, replace(spec.runtime, device=device), spec.config)
            for place, device in rest
        ]
        self.processes = FollowerProcesses(_PROGRAM, [encode_rank(first) for first in firsts])
        logger.info("ranks on %s: processes %s", ", ".join(devices), self.processes.pids)
        self.processes.watch(self._note_death)

    def open_backend(self, spec: EngineSpec) -> Backend:
        """Open this rank's backend, when all ranks are there. Raises InvalidRequest."""
        where = spec.runtime
        backend = open_backend(self.device, where.dtype, where.weights, where.attention, self.place)
        backend.followers = self.processes
        return backend

    def _note_death(self, rank: int, status: int) -> None:
        if not self.processes.has_run:
            time.sleep(_SAME_ERROR_S)
        logger.critical("rank %d ended with status %d: the engine ends, too", rank, status)
        self._died()


def _devices_of(spec: EngineSpec) -> tuple[str, ...]:
    """Return the device of each rank. Raises InvalidRequest."""
    first = spec.replica * len(spec.rank_devices)
    devices = tuple(
        spread_device(device, first + index) for index, device in enumerate(spec.rank_devices)
    )
    if len(set(devices)) < len(devices) and any(name.startswith("cuda") for name in devices):
        raise InvalidRequest(
            f"--tensor-parallel {len(devices)} needs as many GPUs, got {', '.join(devices)}",
            param="tensor_parallel",
        )
    return devices


def run(spec: RankSpec, link: FollowerLink) -> None:
    """Load the same models as rank 0, and do what it tells until it is gone. Raises IzwiError."""
    where = spec.runtime
    backend = open_backend(where.device, where.dtype, where.weights, where.attention, spec.place)
    weight_bytes = prepare_device(backend, spec.models, spec.config, where.weights)
    models = {name: load_model(folder, backend) for name, folder in spec.models.items()}
    engine = Engine(models, backend, spec.config, weight_bytes=weight_bytes)
    settle()
    prompts: Sequence[type] = list(
        dict.fromkeys(chain.from_iterable(family_of(f).prompts for f in spec.models.values()))
    )
    follow(engine.runners, link, prompts)


def main() -> None:
    """Run as rank 0 specifies."""
    log_as_the_server(read_log(os.environ))
    link = FollowerLink()
    spec = decode_rank(link.receive()[0])
    try:
        run(spec, link)
    except IzwiError as error:
        logger.error("rank %d: %s", spec.place.index, error)
    except Exception:
        logger.exception("rank %d failed", spec.place.index)
    # at once: the device's library would wait for the other ranks
    os._exit(1)


if __name__ == "__main__":
    main()
