"""Queues of one model: who waits, who runs, who holds which page. Asks the policy what is next.

Knows no tensors: pages and codec rows are numbers here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from izwi.cache.pages import PagePool
from izwi.config import EngineConfig
from izwi.errors import InvalidRequest, Overloaded
from izwi.model import Row
from izwi.request import Phase, Reason, Sequence
from izwi.scheduler.playback import frames_to_vocode
from izwi.scheduler.policy import Budgets, View, plan_step


class StateRows(Protocol):
    """The codec state's free list."""

    @property
    def num_free(self) -> int:
        """Rows that nobody holds."""
        ...

    def allocate(self) -> int:
        """Hand out a row."""
        ...

    def release(self, row: int) -> None:
        """Take a row back."""
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """What one step of one model runs.

    Attributes:
        encode: Pieces of audio: a sequence and the piece's index.
        forward: Rows of the one forward pass, which comes after the encoders.
    """

    encode: tuple[tuple[Sequence, int], ...]
    forward: tuple[Row, ...]


class Scheduler:
    """The sequences of one model."""

    def __init__(self, config: EngineConfig, num_pages: int, states: StateRows, speaks: bool):
        self._config, self._states, self._speaks = config, states, speaks
        self.pages = PagePool(num_pages)
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._held: set[str] = set()

    @property
    def capacity(self) -> int:
        """Positions that one sequence can have with all pages to itself."""
        return self.pages.num_pages * self._config.page_size

    @property
    def has_work(self) -> bool:
        """Whether any sequence is alive."""
        return bool(self._waiting or self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences without pages."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences with pages."""
        return len(self._running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence.

        Raises:
            InvalidRequest: Its prompt does not fit in the memory at all.
            Overloaded: The queue is full.
        """
        if sequence.request.prompt.num_positions + 1 > self.capacity:
            raise InvalidRequest(
                f"the prompt takes {sequence.request.prompt.num_positions} positions, "
                f"the model has memory for {self.capacity - 1}",
                param="input",
            )
        if len(self._waiting) >= self._config.max_waiting:
            raise Overloaded(f"{len(self._waiting)} requests are waiting already")
        self._waiting.append(sequence)

    def hold(self, request_id: str, held: bool) -> None:
        """Stop or go on emitting for a request whose reader is behind."""
        (self._held.add if held else self._held.discard)(request_id)

    def schedule(self) -> Work:
        """Plan a step, hand out its pages and move sequences between the queues."""
        by_key = {sequence.arrival: sequence for sequence in (*self._running, *self._waiting)}
        running = [self._view(s) for s in self._running if not s.ended]
        # streams that have ended but still owe sound hold a row that nobody else can have yet
        free_rows = self._states.num_free if self._speaks else self._config.max_running
        budgets = Budgets(
            page_size=self._config.page_size,
            free_pages=self.pages.num_free,
            tokens=self._config.max_step_tokens,
            encodes=self._config.max_step_encodes,
            running=min(self._config.max_running, len(running) + free_rows),
        )
        plan = plan_step(running, [self._view(s) for s in self._waiting], budgets)
        for key in plan.preempt:
            self._preempt(by_key[key])
        for key in plan.admit:
            self._start(by_key[key])
        encode: list[tuple[Sequence, int]] = []
        for key, count in plan.encode:
            sequence = by_key[key]
            missing = [i for i, result in enumerate(sequence.encoded) if result is None]
            encode.extend((sequence, i) for i in missing[:count])
        rows: list[Row] = []
        for forward in plan.forward:
            sequence = by_key[forward.key]
            sequence.pages.extend(self.pages.allocate(forward.new_pages))
            rows.append(Row(sequence, forward.start, forward.stop))
        return Work(tuple(encode), tuple(rows))

    def due_sound(self) -> list[tuple[Sequence, int]]:
        """Streams with a chunk of sound due, and its frames; the earliest arrivals first."""
        due = []
        for sequence in self._running if self._speaks else ():
            frames = frames_to_vocode(
                num_frames=len(sequence.emitted),
                num_vocoded=sequence.num_vocoded,
                num_chunks=sequence.num_chunks,
                ended=sequence.ended,
                ramp=self._config.chunk_ramp,
            )
            if frames:
                due.append((sequence, frames))
        return due[: self._config.max_step_vocodes]

    def finish(self, sequence: Sequence, reason: Reason) -> None:
        """Take a sequence out of its queue and free all it holds."""
        sequence.phase, sequence.reason = Phase.FINISHED, reason
        for queue in (self._waiting, self._running):
            if sequence in queue:
                queue.remove(sequence)
        self._release_pages(sequence)
        if sequence.state_row is not None:
            self._states.release(sequence.state_row)
            sequence.state_row = None
        self._held.discard(sequence.request.request_id)

    def alive(self) -> Iterable[Sequence]:
        """All sequences, running ones first."""
        return (*self._running, *self._waiting)

    def _start(self, sequence: Sequence) -> None:
        self._waiting.remove(sequence)
        self._running.append(sequence)
        sequence.phase = Phase.PREFILL
        if self._speaks and sequence.state_row is None and not sequence.request.encode_only:
            sequence.state_row = self._states.allocate()

    def _preempt(self, sequence: Sequence) -> None:
        """Take the pages back. The log stays, and so does the codec's state, which is small."""
        self._running.remove(sequence)
        self._release_pages(sequence)
        sequence.phase = Phase.PAUSED
        self._waiting.insert(0, sequence)
        self._waiting.sort(key=lambda waiting: waiting.arrival)

    def _release_pages(self, sequence: Sequence) -> None:
        self.pages.release(sequence.pages)
        sequence.pages = []
        sequence.num_computed = 0

    def _view(self, sequence: Sequence) -> View:
        return View(
            key=sequence.arrival,
            num_positions=sequence.num_positions,
            num_computed=sequence.num_computed,
            num_pages=len(sequence.pages),
            num_encodes=sum(result is None for result in sequence.encoded),
            encode_only=sequence.request.encode_only,
            held=sequence.request.request_id in self._held,
        )
