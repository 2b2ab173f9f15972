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
from izwi.model import Model
from izwi.ops.torch_ops import TorchOps
from izwi.request import Chunk, PauseReason, Reason, Request, Sequence
from izwi.runner.budget import divide


class Engine:
    """Steps every live request of every model. Not thread-safe: one thread owns it."""

    def step(self) -> list[Chunk]:
        """Run one step of every model that has work: schedule, execute, process."""
        chunks: list[Chunk] = []
        for lane in self._busy_lanes():
            work = lane.schedule(self.clock())
            results = lane.execute(work)
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
        self.budget = divide(config, ops.device, len(models))
        self._lanes = {
            name: Lane.of(model, ops, config, self.budget, clock) for name, model in models.items()
        }
        self._live: dict[str, tuple[Lane, Sequence]] = {}
        self._arrivals = 0

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ModelNotFound: No such model is served.
            InvalidRequest: The prompt can never fit in memory, or the id is taken.
            Overloaded: The model's queue is full.
        """
        if request.model not in self._lanes:
            raise ModelNotFound(f"no model {request.model!r} is served", param="model")
        if request.request_id in self._live:
            raise InvalidRequest(f"request {request.request_id!r} is running already")
        lane = self._lanes[request.model]
        sequence = Sequence(request, self._arrivals, self.clock())
        lane.scheduler.add(sequence)
        self._arrivals += 1
        self._live[request.request_id] = lane, sequence

    def abort(self, request_id: str) -> list[Chunk]:
        """End a request now and free what it holds; nothing if it has ended already."""
        if request_id not in self._live:
            return []
        lane, sequence = self._live.pop(request_id)
        return [lane.finish(sequence, Reason.ABORTED)]

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
        return any(lane.scheduler.has_work for lane in self._lanes.values())

    @property
    def rests(self) -> bool:
        """Whether the last step ran nothing, because all that is left waits for others."""
        return all(lane.rests for lane in self._busy_lanes())

    @property
    def load(self) -> dict[str, dict[str, float]]:
        """What is counted of each model; see `izwi.metrics.FIGURES`."""
        return {name: lane.load for name, lane in self._lanes.items()}

    def _busy_lanes(self) -> list[Lane]:
        return [lane for lane in self._lanes.values() if lane.scheduler.has_work]

    def _forget_ended(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            if chunk.reason is not None:
                self._live.pop(chunk.request_id, None)
