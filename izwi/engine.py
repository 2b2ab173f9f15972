"""The engine: one loop for every task. Knows no model by name and no HTTP.

schedule   who runs, and with which pages          scheduler/
execute    encoders, one forward pass, the codec   runner/
process    logs grow, chunks leave, memory is freed
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq

from izwi.config import EngineConfig
from izwi.errors import InvalidRequest, ModelNotFound
from izwi.lane import Lane
from izwi.log import Log
from izwi.model import Model
from izwi.ops.torch_ops import TorchOps
from izwi.request import Chunk, PauseReason, Reason, Request, Sequence
from izwi.runner.budget import divide, full_device_told, share_of_newcomer


class Engine:
    """Steps every live request of every model. Not thread-safe: one thread owns it."""

    def step(self) -> list[Chunk]:
        """Run one step of every model that has work: schedule, execute, process.

        What a device runs by itself is processed one step later, while it runs the next one.
        """
        lanes = self._busy_lanes()
        for lane in lanes:
            work = lane.schedule(self.clock())
            lane.launch(work)
        chunks: list[Chunk] = []
        for lane in lanes:
            for results in lane.results():
                chunks += lane.process(results, self.clock())
        self._forget_ended(chunks)
        return chunks

    def __init__(
        self,
        models: dict[str, Model],
        ops: TorchOps,
        config: EngineConfig,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Set up the models and divide the memory among them.

        Args:
            models: By the name under which each is served.
            ops: Of the device that all of them are on.
            config: Budgets.
            clock: Seconds; playback is timed and steps are measured with it.
        """
        self.config, self.clock, self.own_stream = config, clock, ops.own_stream
        self._ops, self._num_shares = ops, max(len(models), config.max_models)
        self.budget = divide(config, ops.device, self._num_shares)
        self._lanes = {
            name: Lane.of(model, ops, config, self.budget, clock) for name, model in models.items()
        }
        self._leaving: set[str] = set()
        self._live: dict[str, tuple[Lane, Sequence]] = {}
        self._arrivals = 0

    def add(self, name: str, model: Model) -> None:
        """Serve one more model, with a share of the memory that nobody has.

        Nothing else runs meanwhile: setting up pages takes milliseconds, recording a model's steps
        on CUDA takes seconds.

        Raises:
            InvalidRequest: The name is taken, every share of the memory is, or the device is full.
        """
        if name in self._lanes:
            raise InvalidRequest(f"model {name!r} is still there", param="model")
        if len(self._lanes) >= self._num_shares:
            raise InvalidRequest(
                f"{self._num_shares} models share the memory already: unload one first",
                param="model",
            )
        share = share_of_newcomer(self.config, self._ops.device, self.budget)
        with full_device_told():
            lane = Lane.of(model, self._ops, self.config, share, self.clock)
        self._lanes = {**self._lanes, name: lane}  # a new one: other threads read the old one

    def remove(self, name: str) -> None:
        """Take no new requests of a model; when those that run have ended, its memory is free.

        Raises:
            ModelNotFound: No such model is served.
        """
        if name not in self._lanes or name in self._leaving:
            raise ModelNotFound(f"no model {name!r} is served", param="model")
        self._leaving.add(name)
        self._let_go()

    @property
    def leaving(self) -> frozenset[str]:
        """Names of the models that are removed as soon as their requests have ended."""
        return frozenset(self._leaving)

    def submit(self, request: Request, log: Log | None = None) -> None:
        """Queue a request, or one that another engine has begun, to go on where its log ends.

        Raises:
            ModelNotFound: No such model is served.
            InvalidRequest: The prompt can never fit in memory, or the id is taken.
            Overloaded: The model's queue is full.
        """
        if request.model not in self._lanes or request.model in self._leaving:
            raise ModelNotFound(f"no model {request.model!r} is served", param="model")
        if request.request_id in self._live:
            raise InvalidRequest(f"request {request.request_id!r} is running already")
        lane = self._lanes[request.model]
        sequence = Sequence(request, self._arrivals, self.clock())
        if log is not None:
            lane.restore(sequence, log)
        lane.scheduler.add(sequence)
        self._arrivals += 1
        self._live[request.request_id] = lane, sequence

    def abort(self, request_id: str) -> list[Chunk]:
        """End a request now and free what it holds; nothing if it has ended already."""
        if request_id not in self._live:
            return []
        lane, sequence = self._live.pop(request_id)
        chunk = lane.finish(sequence, Reason.ABORTED)
        self._let_go()
        return [chunk]

    def pause(self, request_id: str) -> None:
        """Stop a request where it is until `resume`; nothing if it has ended.

        It goes on with the very next sample or token. Its pages and its codec state stay while
        memory lasts, and are rebuilt from its log otherwise.
        """
        if request_id in self._live:
            lane, sequence = self._live[request_id]
            lane.scheduler.pause(sequence, self.clock())

    def resume(self, request_id: str) -> None:
        """Let a paused request go on; nothing if it is not paused."""
        if request_id in self._live:
            lane, sequence = self._live[request_id]
            lane.scheduler.resume(sequence, self.clock())

    def write(self, request_id: str, text_ids: Seq[int], closed: bool) -> None:
        """Write text to a request with open input; nothing if it has ended or was closed.

        Args:
            request_id: Which.
            text_ids: What follows what was written before, in the model's text ids.
            closed: Nothing more will be written.
        """
        if request_id in self._live:
            _, sequence = self._live[request_id]
            if sequence.input_open:
                sequence.written.extend(text_ids)
                sequence.input_open = not closed
                if closed and sequence.paused is PauseReason.INPUT:
                    sequence.paused = None

    def hold(self, request_id: str, held: bool) -> None:
        """Stop or go on emitting for a request whose reader is behind."""
        if request_id in self._live:
            self._live[request_id][1].held = held

    @property
    def has_work(self) -> bool:
        """Whether anything runs or wants to."""
        return any(lane.has_work for lane in self._lanes.values())

    @property
    def rests(self) -> bool:
        """Whether the last step ran nothing, because all that is left waits for others."""
        return all(lane.rests for lane in self._busy_lanes())

    @property
    def spare_s(self) -> float:
        """Seconds for which a step may wait for newcomers: a device is busy. Not above 0: none."""
        return min((lane.spare_s for lane in self._busy_lanes()), default=0.0)

    @property
    def load(self) -> dict[str, dict[str, float]]:
        """What is counted of each model; see `izwi.metrics.FIGURES`."""
        return {name: lane.load for name, lane in self._lanes.items()}

    def _busy_lanes(self) -> list[Lane]:
        return [lane for lane in self._lanes.values() if lane.has_work]

    def _forget_ended(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            if chunk.reason is not None:
                self._live.pop(chunk.request_id, None)
        self._let_go()

    def _let_go(self) -> None:
        """Drop the lanes of models that are being removed and have nothing left to do."""
        if not self._leaving:
            return
        busy = {sequence.request.model for _, sequence in self._live.values()}
        busy |= {name for name in self._leaving if self._lanes[name].is_under_way}
        for name in self._leaving - busy:
            self._leaving.discard(name)
            self._lanes[name].close()
            self._lanes = {other: lane for other, lane in self._lanes.items() if other != name}
