"""A simulated device: the engine's own model worker over a runner that computes nothing.

Views, slack, chunks, pages, prefix tree, logs and the measurement of costs are the engine's code.
The runner only advances the device's clock and reads entries from a script.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.simulation.machine import Machine
from benchmarks.simulation.step_log import Kind
from izwi.arrays import Float32, Int64
from izwi.cache.memory import PagedMemory
from izwi.config import EngineConfig
from izwi.engine.model_worker import ModelWorker
from izwi.request.log import Log
from izwi.request.request import Chunk, EncodeInput, Request
from izwi.request.sequence import Sequence
from izwi.request.track_log import Entry, TrackProgress
from izwi.runner.batch import span_of
from izwi.runner.runner import Drawn
from izwi.scheduler.callers import DeviceShares
from izwi.scheduler.cost import StepCost, StepWork
from izwi.scheduler.scheduler import Scheduler, Work
from izwi.scheduler.work import PlannedRow

# Output of a request: its entries, after which it ends if the model can end it.
Script = Seq[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """Properties of a model that a simulated device needs.

    Attributes:
        frame_s: Seconds of audio in a frame; None for a model that outputs text.
        num_codebooks: Ids in an entry.
        num_pages: Pages for keys and values.
        content_keys: Function of a real model, for real prompts; None uses `SimulatedPrompt`'s.
    """

    frame_s: float | None
    num_codebooks: int
    num_pages: int
    content_keys: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedPrompt:
    """A prompt of a given length: shared positions, then its own."""

    num_positions: int
    num_shared: int
    seed: int
    encode_inputs: tuple[Any, ...] = ()

    def keys(self, start: int, stop: int) -> list[int]:
        """Return content keys of positions [start, stop), which may be beyond the prompt."""
        own = (self.seed + 1) << 20
        return [at if at < self.num_shared else own + at for at in range(start, stop)]

    @property
    def content_keys(self) -> Int64:
        """Keys of its positions, (positions,) int64, which routers compare."""
        return np.array(self.keys(0, self.num_positions), np.int64)


class SimulatedRunner:
    """A stand-in for `izwi.runner.runner.Runner`; every call takes time on the device's clock."""

    num_codebooks: int
    frame_samples = 1  # chunks only have a length
    lookahead_samples = 0
    codec_overlaps = False
    num_compiled = 0

    def __init__(
        self, model: SimulatedModel, machine: Machine, scripts: Mapping[str, Script], seed: int
    ):
        self._model, self._machine, self._scripts = model, machine, scripts
        self.num_codebooks = model.num_codebooks
        self.frame_s: float | None = model.frame_s
        self.now_s = 0.0
        self.factor = 1.0
        self._random = random.Random(seed)

    def clock(self) -> float:
        """Simulated time in seconds."""
        return self.now_s

    def begin_step(self, kind: Kind) -> None:
        """Draw how much slower than predicted the next step is."""
        if self._machine.factors:
            self.factor = self._random.choice(self._machine.factors[kind])

    def end_step(self, work: StepWork) -> None:
        """Add the cost of everything but computing."""
        self.now_s += self.factor * self._machine.host.seconds(work)

    def _compute(self, work: StepWork) -> None:
        self.now_s += self.factor * self._machine.compute.seconds(work)

    # -- called by the model worker as on a runner -------------------------------------------------
    @property
    def codec(self) -> SimulatedRunner:
        """Itself, which knows the sizes of frames."""
        return self

    def set_up_tracks(self, sequence: Sequence) -> None:
        """Do nothing: there is one track."""

    def num_ids(self, track: int) -> int:
        """Return the ids of an entry."""
        del track
        return self.num_codebooks

    def rebuild(self, sequences: Seq[Sequence]) -> dict[int, BaseException]:
        """Rebuild codec states: each frame with audio runs through the codec again."""
        for sequence in sequences:
            audio = sequence.audio
            self._compute(StepWork(0, 0, 0, len(audio.chunks), audio.num_vocoded))
        return {}

    def encode(self, pieces: Seq[EncodeInput]) -> list[tuple[()]]:
        """Encode pieces of audio."""
        self._compute(StepWork(encodes=len(pieces)))
        return [()] * len(pieces)

    def launch(self, rows: Seq[PlannedRow]) -> None:
        """Do nothing: rows run when their results are read."""
        del rows

    def forward(self, rows: Seq[PlannedRow]) -> list[Drawn]:
        """Run rows; each row that emits returns the next entry of its script."""
        lengths = [row.stop - row.start for row in rows]
        decode_rows = lengths.count(1)
        self._compute(StepWork(decode_rows, sum(lengths) - decode_rows))
        return [Drawn((self._next_entry(row.sequence),) if row.emits else ()) for row in rows]

    def vocode(self, pieces: Seq[tuple[Sequence, int]]) -> list[Callable[[], Float32]]:
        """Make chunks of audio with one sample per frame."""
        if not pieces:
            return []
        sizes = [frames for _, frames in pieces]
        self._compute(StepWork(vocode_calls=len(set(sizes)), vocode_frames=sum(sizes)))
        return [partial(np.zeros, frames, dtype=np.float32) for frames in sizes]

    def _next_entry(self, sequence: Sequence) -> tuple[int, ...]:
        script, said = self._scripts[sequence.request.request_id], len(sequence.emitted)
        return script[said] if said < len(script) else (sequence.request.stop_ids[0],)

    def learn(self, cost: StepCost) -> None:
        """Do nothing: the cost of steps matters only for lower tiers, which are not simulated."""

    def following(
        self, request: Request, progress: TrackProgress, drawn: Entry | None
    ) -> TrackProgress:
        """Return the progress after an entry: there is one track."""
        del request, drawn
        return progress

    def max_entries(self, sequence: Sequence) -> int:
        """Return the number of entries after which a request ends."""
        return sequence.request.max_entries

    # -- called by the queues as on a model --------------------------------------------------
    def content_keys(self, sequence: Sequence, start: int, stop: int) -> list[int]:
        """Content keys of positions [start, stop)."""
        if self._model.content_keys is not None:
            keys: list[int] = self._model.content_keys(span_of(sequence, start, stop))
            return keys
        prompt = sequence.request.prompt
        assert isinstance(prompt, SimulatedPrompt)
        return prompt.keys(start, stop)

    def positions_ready(self, sequence: Sequence) -> int:
        """Return all positions: no text is written while it is spoken."""
        return sequence.num_positions


class SimulatedRows:
    """Rows of a codec arena without content, and without a lower tier."""

    def __init__(self, count: int):
        self._free = list(range(count))

    @property
    def num_free(self) -> int:
        """Number of free rows."""
        return len(self._free)

    def allocate(self) -> int:
        """Hand out a row."""
        return self._free.pop()

    def release(self, row: int) -> None:
        """Free a row."""
        self._free.append(row)

    def save(self, row: int) -> None:
        """Do nothing."""

    def restore(self, row: int, handle: int) -> bool:
        """Return False: nothing is stored."""
        del row, handle
        return False

    def forget(self, handle: int) -> None:
        """Do nothing."""


class SimulatedPages:
    """Pages without content; pages that leave the device are dropped."""

    def copy(self, source: int, target: int, num_slots: int) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def demote(self, page: int) -> None:
        """Do nothing."""

    def promote(self, handle: int, page: int) -> bool:
        """Return False: nothing is stored."""
        del handle, page
        return False

    def drop(self, handle: int) -> None:
        """Do nothing."""

    def take_dropped(self) -> list[int]:
        """Return no handles."""
        return []


class Device:
    """One simulated engine of one model."""

    def __init__(
        self,
        model: SimulatedModel,
        machine: Machine,
        config: EngineConfig,
        scripts: Mapping[str, Script],
        seed: int,
        shares: DeviceShares | None = None,
    ):
        """Start idle at time 0.

        Args:
            model: Properties of the served model.
            machine: Costs of its steps.
            config: Policy and budgets, as for a real engine.
            scripts: Output of each request, by request id.
            seed: Seed of the steps' variance.
            shares: The callers of several models on one device.
        """
        self.runner: Any = SimulatedRunner(model, machine, scripts, seed)
        memory = PagedMemory(model.num_pages, config.page_size, SimulatedPages())
        rows: Any = SimulatedRows(config.max_running)
        scheduler = Scheduler(config, memory, rows, self.runner, shares)
        self.worker = ModelWorker(scheduler, self.runner, config, self.runner.clock)
        self.num_live = 0
        self.steps: list[tuple[StepWork, float]] = []
        self._arrivals = 0

    @property
    def has_work(self) -> bool:
        """Whether any sequence runs or waits, or a step is in flight."""
        return self.worker.scheduler.has_work

    def submit(self, request: Request, log: Log | None = None) -> None:
        """Queue a request, like `Engine.submit`; with a log it goes on where the log ends.

        Raises:
            Overloaded: The queue is full.
        """
        sequence = Sequence(request, self._arrivals, self.runner.now_s)
        self.worker.set_up_sequence(sequence, log)
        self.worker.scheduler.add(sequence)
        if log is not None:
            self.worker.restore_playback(sequence, log)
        self._arrivals += 1

    def step(self, now_s: float, cold: bool = False) -> list[Chunk]:
        """Run the step that begins now, like `Engine.step`; the runner's `now_s` is its end."""
        runner = self.runner
        runner.now_s = now_s
        work = self.worker.schedule(now_s)
        forward = _forward_work(work)
        runner.begin_step((cold, forward.prefill_tokens > 0, bool(work.vocode)))
        self.worker.launch(work)
        chunks: list[Chunk] = []
        for results in self.worker.results():
            chunks += self.worker.process(results, runner.now_s)
        runner.end_step(forward)
        return chunks


def _forward_work(work: Work) -> StepWork:
    lengths = [row.stop - row.start for row in work.forward]
    decode_rows = lengths.count(1)
    return StepWork(decode_rows, sum(lengths) - decode_rows, len(work.encode), 0, 0)
