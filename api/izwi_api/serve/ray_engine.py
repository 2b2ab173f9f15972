"""An engine of a Ray cluster: an actor that starts one engine process and watches it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from threading import Thread

import ray

from izwi.checkpoints.registry import named
from izwi.errors import StartFailed
from izwi.router.scaling import figures_of
from izwi_api.serve.child import start_process
from izwi_api.serve.control import EngineSpec, Failed, Ready
from izwi_api.serve.ray_options import RayOptions
from izwi_api.serve.remote_engine import RemoteEngine
from izwi_api.serve.wire import RequestCodec

# Seconds without a heartbeat after which the requests go to another engine.
_UNRESPONSIVE_S = 3.5
# Seconds between looks at whether the last request has gone.
_LOOK_S = 0.1


class EngineReplica:
    """One engine process, which API servers reach over TCP at an address that Ray tells them.

    Ray replaces the actor if the process ends or hangs. If the actor is killed, the process reads
    the end of its standard input, and ends.
    """

    async def __init__(self, options: RayOptions):  # type: ignore[misc]
        self._options = options
        host = ray.util.get_node_ip_address()
        self._folder = Path(tempfile.mkdtemp(prefix="izwi-"))
        offline = options.runtime.offline
        models = dict(
            [await asyncio.to_thread(named, one, offline=offline) for one in options.models]
        )
        spec = EngineSpec(
            *(self._folder, f"tcp://{host}", models, options.runtime, options.engine_config),
            record=None,
            publishes_prefixes=True,
        )
        self._process, self._control = start_process("izwi_api.serve.engine_process", spec)
        self._heartbeat_s = time.monotonic()
        self._address = await asyncio.to_thread(self._wait_ready)
        Thread(target=self._read, daemon=True).start()
        # reads figures only
        self._observer = RemoteEngine(f"actor-{host}", f"tcp://{host}", RequestCodec())
        self._observer.connect(self._address)

    def _wait_ready(self) -> str:
        try:
            while True:
                for message in self._control.receive():
                    if isinstance(message, Failed):
                        raise StartFailed(message.message, exit_code=message.code)
                    if isinstance(message, Ready):
                        return message.address
        except EOFError:
            raise StartFailed("the engine process ended while it loaded", exit_code=1) from None

    def _read(self) -> None:
        while True:
            try:
                self._control.receive()
            except EOFError:
                return
            self._heartbeat_s = time.monotonic()

    @property
    def _silent_s(self) -> float:
        return time.monotonic() - self._heartbeat_s

    def record_replica_metadata(self) -> dict[str, str]:
        """Return what routers are told of this engine once; called by Ray."""
        return {"address": self._address}

    def record_routing_stats(self) -> dict[str, bool]:
        """Return what routers are told of this engine every second; called by Ray."""
        return {"is_hung": self._silent_s > _UNRESPONSIVE_S}

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return what the number of engines depends on; called by Ray, if it may change."""
        return asdict(figures_of(self._observer.load))

    async def ping(self) -> int:
        """Return the number of the engine process."""
        return self._process.pid

    def check_health(self) -> None:
        """Raise RuntimeError if the engine process has ended, or hangs; called by Ray."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the engine process ended with status {self._process.returncode}")
        if self._silent_s > self._options.hung_after_s:
            raise RuntimeError(f"the engine process has not responded for {self._silent_s:.0f} s")

    async def __del__(self) -> None:
        """Wait until API servers have moved its requests; Ray stops waiting after `drain_s`."""
        while self._process.poll() is None and self._num_requests:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        await self._observer.stop()
        self._control.finish()
        await asyncio.to_thread(self._process.wait)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _num_requests(self) -> float:
        levels = ("running", "waiting", "paused")
        return sum(one[level] for one in self._observer.load.values() for level in levels)
