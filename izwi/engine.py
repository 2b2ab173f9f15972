"""The engine: one loop for every task. Knows no model by name, no HTTP and no clock.

schedule   who runs, and with which pages          scheduler/
execute    encoders, one forward pass, the codec   runner/
process    logs grow, chunks leave, memory is freed
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from izwi.config import EngineConfig
from izwi.errors import ModelNotFound
from izwi.model import Model
from izwi.ops.torch_ops import TorchOps
from izwi.request import Chunk, Phase, Reason, Request, Sequence
from izwi.runner.runner import Runner
from izwi.scheduler.scheduler import Scheduler, Work


class Engine:
    """Steps every live request of every model. Not thread-safe: one thread owns it."""

    def step(self) -> list[Chunk]:
        """Run one step of every model that has work: schedule, execute, process."""
        chunks: list[Chunk] = []
        for lane in self._busy_lanes():
            work = lane.scheduler.schedule()
            results = lane.execute(work)
            chunks += lane.process(results)
        return chunks

    def __init__(self, models: dict[str, Model], ops: TorchOps, config: EngineConfig):
        self._ops, self.config = ops, config
        self._lanes: dict[str, Lane] = {}
        self._arrivals = 0
        self._lane_of: dict[str, Lane] = {}
        share = config.kv_bytes // max(1, len(models))
        for name, model in models.items():
            self._lanes[name] = Lane.of(model, ops, config, share)

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ModelNotFound: No such model is served.
            InvalidRequest: The prompt can never fit in memory.
            Overloaded: The model's queue is full.
        """
        if request.model not in self._lanes:
            raise ModelNotFound(f"no model {request.model!r} is served", param="model")
        lane = self._lanes[request.model]
        lane.scheduler.add(Sequence(request, self._arrivals))
        self._arrivals += 1
        self._lane_of[request.request_id] = lane

    def abort(self, request_id: str) -> list[Chunk]:
        """End a request now and free what it holds; nothing if it has ended already."""
        lane = self._lane_of.get(request_id)
        return lane.abort(request_id) if lane else []

    def hold(self, request_id: str, held: bool) -> None:
        """Stop or go on emitting for a request whose reader is behind."""
        lane = self._lane_of.get(request_id)
        if lane:
            lane.scheduler.hold(request_id, held)

    def forget(self, request_id: str) -> None:
        """Drop the name of a request that has ended."""
        self._lane_of.pop(request_id, None)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return any(lane.scheduler.has_work for lane in self._lanes.values())

    @property
    def load(self) -> dict[str, dict[str, int]]:
        """Sequences and pages of each model, for metrics and tests."""
        return {name: lane.load for name, lane in self._lanes.items()}

    def _busy_lanes(self) -> list[Lane]:
        return [lane for lane in self._lanes.values() if lane.scheduler.has_work]


@dataclass(slots=True)
class Results:
    """What a step's execution gave, in the order of its work."""

    failed: dict[int, BaseException] = field(default_factory=dict)
    entries: list[tuple[Sequence, tuple[int, ...] | None, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Lane:
    """One model: its queues and its runner."""

    scheduler: Scheduler
    runner: Runner

    @staticmethod
    def of(model: Model, ops: TorchOps, config: EngineConfig, kv_bytes: int) -> Lane:
        """Set up a model with its share of the memory."""
        runner = Runner(model, ops, config, kv_bytes)
        speaks = runner.speech is not None
        return Lane(Scheduler(config, runner.num_pages, runner.states, speaks), runner)

    @property
    def load(self) -> dict[str, int]:
        """Sequences and pages."""
        return {
            "running": self.scheduler.num_running,
            "waiting": self.scheduler.num_waiting,
            "pages": self.scheduler.pages.num_pages,
            "free_pages": self.scheduler.pages.num_free,
        }

    def execute(self, work: Work) -> Results:
        """Run the encoders and the forward pass."""
        results = Results()
        for (sequence, _), error in zip(work.encode, self.runner.encode(work.encode), strict=True):
            if error is not None:
                results.failed[sequence.arrival] = error
        rows = [row for row in work.forward if row.sequence.arrival not in results.failed]
        for row, entry in zip(rows, self.runner.forward(rows), strict=True):
            if isinstance(entry, BaseException):
                results.failed[row.sequence.arrival] = entry
            else:
                results.entries.append((row.sequence, entry, row.stop))
        return results

    def process(self, results: Results) -> list[Chunk]:
        """Grow the logs, make the sound that is due, finish, free, and say what happened."""
        chunks: list[Chunk] = []
        fresh: dict[int, tuple[int, ...]] = {}
        for sequence, entry, stop in results.entries:
            sequence.num_computed = stop
            if entry is not None:
                sequence.phase = Phase.DECODE
                if self._append(sequence, entry):
                    fresh[sequence.arrival] = entry
        sounds = self._sounds(results.failed)
        for sequence in list(self.scheduler.alive()):
            failure = results.failed.get(sequence.arrival)
            if failure is not None:
                chunks.append(self._finish(sequence, Reason.ERROR, error=failure))
                continue
            entry, sound = fresh.get(sequence.arrival), sounds.get(sequence.arrival)
            if self._is_done(sequence):
                assert sequence.reason is not None
                chunks.append(self._finish(sequence, sequence.reason, entry, sound))
            elif entry is not None or sound is not None:
                chunks.append(self._chunk(sequence, entry, sound))
        return chunks

    def abort(self, request_id: str) -> list[Chunk]:
        """End a request now."""
        for sequence in self.scheduler.alive():
            if sequence.request.request_id == request_id:
                return [self._finish(sequence, Reason.ABORTED)]
        return []

    def _append(self, sequence: Sequence, entry: tuple[int, ...]) -> bool:
        """Put an entry into the log; False if it was a stop id, which is not emitted."""
        request = sequence.request
        if entry[0] in request.stop_ids:
            sequence.ended, sequence.reason = True, Reason.STOP
            return False
        sequence.emitted.append(entry)
        limit = min(request.max_entries, self.scheduler.capacity - request.prompt.num_positions)
        if len(sequence.emitted) >= limit:
            sequence.ended, sequence.reason = True, Reason.LENGTH
        return True

    def _sounds(self, failed: dict[int, BaseException]) -> dict[int, npt.NDArray[np.float32]]:
        sounds: dict[int, npt.NDArray[np.float32]] = {}
        due = [piece for piece in self.scheduler.due_sound() if piece[0].arrival not in failed]
        for (sequence, frames), sound in zip(due, self.runner.vocode(due), strict=True):
            if isinstance(sound, BaseException):
                failed[sequence.arrival] = sound
                continue
            sequence.num_vocoded += frames
            sequence.num_chunks += 1
            sounds[sequence.arrival] = sound
        return sounds

    def _is_done(self, sequence: Sequence) -> bool:
        """Whether the last entry, and its sound, are out."""
        if sequence.request.encode_only:
            sequence.reason = Reason.STOP
            return all(result is not None for result in sequence.encoded)
        silent = self.runner.speech is None or sequence.num_vocoded == len(sequence.emitted)
        return sequence.ended and silent

    def _finish(
        self,
        sequence: Sequence,
        reason: Reason,
        entry: tuple[int, ...] | None = None,
        sound: npt.NDArray[np.float32] | None = None,
        error: BaseException | None = None,
    ) -> Chunk:
        encoded: tuple[npt.NDArray[Any], ...] = ()
        if sequence.request.encode_only and reason is Reason.STOP:
            encoded = tuple(self.runner.to_host(result) for result in sequence.encoded)
        self.scheduler.finish(sequence, reason)
        return self._chunk(sequence, entry, sound, reason=reason, error=error, encoded=encoded)

    def _chunk(
        self,
        sequence: Sequence,
        entry: tuple[int, ...] | None,
        sound: npt.NDArray[np.float32] | None,
        **rest: Any,
    ) -> Chunk:
        entries = np.array([entry] if entry is not None else [], dtype=np.int64)
        entries = entries.reshape(-1, self.runner.num_codebooks)
        return Chunk(sequence.request.request_id, entries, sound, **rest)
