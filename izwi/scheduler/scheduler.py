"""The scheduler of one model: keeps its queues, asks the policy for a plan, and executes it.

Knows no tensors: pages and codec rows are numbers here.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from math import inf
from typing import Protocol

from izwi.cache.memory import PagedMemory
from izwi.cache.pages import pages_for
from izwi.cache.radix import page_chain
from izwi.config import EngineConfig
from izwi.errors import DeadlineExceeded, InvalidRequest, IzwiError, Overloaded
from izwi.fairness.queue import FairClock, may_queue
from izwi.fairness.wait import QueueWait
from izwi.request.deadlines import Deadlines
from izwi.request.request import Reason, Request
from izwi.request.sequence import PauseReason, Phase, Sequence
from izwi.request.timing import TimedEvent
from izwi.scheduler.callers import DeviceShares, ModelShares, take_turns
from izwi.scheduler.codec_rows import CodecRows, CodecRowStore
from izwi.scheduler.cost import OnlineCost
from izwi.scheduler.deadline import text_slack_s
from izwi.scheduler.plan import NO_FRAMES, FramesDue, Order, Progress, Urgency
from izwi.scheduler.playback import (
    DRY_S,
    FAR_S,
    PlaybackClocks,
    chunk_frames,
    full_chunks,
    short_chunk_frames,
)
from izwi.scheduler.policy import POLICIES, Budgets, Plan, View
from izwi.scheduler.speculation import Speculation
from izwi.scheduler.work import PlannedRow, Work

# Waiting sequences that are considered even without room: a policy may make room.
_PUSHERS = 4
# Steps over which starts are averaged.
_STARTS_STEPS = 32
# An answer counts as much as this many positions of a prompt.
_ANSWER_POSITIONS = 64
# Sequences that are shown because they have been idle longest, if the order is by priority.
_OLDEST = 4


class ModelProperties(Protocol):
    """Properties of a model that the queues need."""

    @property
    def frame_s(self) -> float | None:
        """Seconds of audio in one frame, None for a model that writes text."""
        ...

    @property
    def codec_overlaps(self) -> bool:
        """Whether audio is decoded while the next step runs."""
        ...

    def content_keys(self, sequence: Sequence, start: int, stop: int) -> list[int]:
        """Content keys of positions [start, stop) of prompt and log."""
        ...

    def positions_ready(self, sequence: Sequence) -> int:
        """Return how many positions have known inputs, for a sequence with open input."""
        ...

    def prompt_ids(self, request: Request) -> Seq[int] | None:
        """Return ids of the prompt's positions; None if entries must not be drafted."""
        ...


@dataclass(slots=True)
class SchedulerCounts:
    """Counters since the start, for metrics; keys of `izwi.metrics.FIGURES`."""

    steps: int = 0
    rows: int = 0
    positions: int = 0
    drafted: int = 0
    accepted: int = 0
    preempted: int = 0
    paused: int = 0
    resumed: int = 0
    refused: int = 0


class Scheduler:
    """The sequences of one model.

    Attributes:
        policy: Plans its steps.
        capacity: Positions that one sequence can have with all pages to itself.
    """

    def __init__(
        self,
        config: EngineConfig,
        memory: PagedMemory,
        states: CodecRowStore,
        facts: ModelProperties,
        device: DeviceShares | None = None,
    ):
        self._config, self._facts = config, facts
        self._rows = CodecRows(states)
        self._content = ContentKeys(facts, config.page_size)
        drafts = config.speculate != "off"
        self._speculation = Speculation(config.speculate, facts) if drafts else None
        self._speaks = facts.frame_s is not None
        self._page_size, self._ramp = config.page_size, config.chunk_ramp
        self.policy = POLICIES[config.policy]
        self.clocks = PlaybackClocks(facts.frame_s, config.ttfa_target_s)
        self._waiting = WaitingQueue(self.policy.order)
        self._running: dict[int, Sequence] = {}
        self._paused: dict[int, tuple[Sequence, float]] = {}  # each with the time of its pause
        self._idle_work: set[int] = set()  # by arrival
        self._in_flight, self._starts = PromptsInFlight(), Starts()
        self._shares = ModelShares(device or DeviceShares(), limits=not self._speaks)
        self.memory, self.capacity = memory, memory.num_pages * config.page_size
        self.cost = OnlineCost()
        self.counts = SchedulerCounts()
        prefill_s, decode_s = config.max_prefill_s or inf, config.max_decode_s or inf
        self._limits = Deadlines(config.max_wait_s, prefill_s, decode_s)
        self._with_deadlines: dict[int, Sequence] = {}  # of their own, by arrival
        self._due_s = 0.0  # no deadline passes before
        self._queue_wait = QueueWait()

    # -- state -------------------------------------------------------------------------------
    @property
    def has_work(self) -> bool:
        """Whether any sequence runs or waits, or a step is in flight."""
        return bool(self._waiting or self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait to run."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Running sequences."""
        return len(self._running)

    @property
    def num_paused(self) -> int:
        """Sequences paused by a caller."""
        return len(self._paused)

    def runs(self, sequence: Sequence) -> bool:
        """Whether a sequence takes part in steps."""
        return sequence.arrival in self._running

    # -- requests ----------------------------------------------------------------------------
    def add(self, sequence: Sequence) -> None:
        """Queue a sequence.

        Raises:
            InvalidRequest: Its prompt can never fit in memory.
            Overloaded: The queue is full.
        """
        if sequence.request.prompt.num_positions + 1 > self.capacity:
            raise InvalidRequest(
                f"the prompt takes {sequence.request.prompt.num_positions} positions, "
                f"the model has memory for {self.capacity - 1}",
                param="input",
            )
        # the next piece of a stream that is playing is accepted even if the queue is full
        if len(self._waiting) >= self._config.max_waiting and not self._is_being_played(sequence):
            ready = Counter(s.request.caller for s in self._waiting if self._can_run(s))
            if not may_queue(ready, sequence.request.caller, self._config.max_waiting):
                raise Overloaded(
                    f"the queue is full ({ready.total()} requests); retry later",
                    retry_after_s=self._queue_wait.retry_after_s(
                        ready.total(), sequence.submitted_s
                    ),
                )
        sequence.status.last_step = self.counts.steps
        self.clocks.add(
            sequence.arrival,
            _listener_of(sequence),
            sequence.submitted_s,
            streams=sequence.request.streams,
        )
        if not self._waiting:
            self._queue_wait.note_first(sequence.submitted_s)
        self._waiting.add(sequence)
        if sequence.request.deadlines is not None:
            self._with_deadlines[sequence.arrival] = sequence
        self._enter(sequence)

    def _enter(self, sequence: Sequence) -> None:
        if sequence.request.is_idle_work:
            self._idle_work.add(sequence.arrival)
        else:
            self._shares.enter(sequence.arrival, sequence.request.caller)

    def pause(self, sequence: Sequence, now_s: float) -> None:
        """Stop scheduling a sequence until `resume`. Its pages can be found while memory lasts."""
        if sequence.arrival in self._paused or sequence.status.phase is Phase.FINISHED:
            return
        self._take_out(sequence)
        self._shares.leave(sequence.arrival)
        self._paused[sequence.arrival] = (sequence, now_s)
        self.clocks.pause(sequence.arrival)
        sequence.status.phase, sequence.status.paused = Phase.PAUSED, PauseReason.TURN
        sequence.note(TimedEvent.PAUSED, now_s)
        self.counts.paused += 1

    def resume(self, sequence: Sequence, now_s: float) -> None:
        """Resume a paused sequence. The pause does not count as lateness."""
        if sequence.arrival not in self._paused:
            return
        _, since_s = self._paused.pop(sequence.arrival)
        self.clocks.shift(sequence.arrival, now_s - since_s)
        sequence.status.paused_s += now_s - since_s
        self._due_s = now_s  # its deadline was not known while it was paused
        self._enter(sequence)
        sequence.status.paused, sequence.status.last_step = None, self.counts.steps
        if sequence.status.ended:  # only its audio is left, and it kept its codec row
            self._running[sequence.arrival] = sequence
        else:
            self._waiting.add(sequence)
        sequence.note(TimedEvent.RESUMED, now_s)
        self.counts.resumed += 1

    def finish_request(self, sequence: Sequence, reason: Reason) -> None:
        """Remove a sequence and free all its memory."""
        self._paused.pop(sequence.arrival, None)
        sequence.status.ended = True  # so that nothing is kept for resuming it
        self._take_out(sequence)
        self._shares.leave(sequence.arrival)
        self._idle_work.discard(sequence.arrival)
        self._with_deadlines.pop(sequence.arrival, None)
        self.clocks.remove(sequence.arrival)
        self._rows.release(sequence.audio)
        status = sequence.status
        status.phase, status.reason, status.paused = Phase.FINISHED, reason, None

    def overdue(self, now_s: float) -> list[tuple[Sequence, IzwiError]]:
        """Return requests that are over the deadline of their phase, each with its error.

        A stream that is playing is not refused because it waits. Call it in every step: it looks
        at requests only when a deadline may have passed, or if they have deadlines of their own.
        """
        looked: list[Sequence] = []
        if now_s >= self._due_s:
            limits = self._limits
            self._due_s = now_s + min(limits.queue_s, limits.prefill_s, limits.decode_s)
            looked = [*self._waiting, *self._running.values()]
        elif self._with_deadlines:
            paused = self._paused
            looked = [one for at, one in self._with_deadlines.items() if at not in paused]
        found: list[tuple[Sequence, IzwiError]] = []
        for sequence in looked:
            due_s, late = self._deadline(sequence, now_s)
            if due_s < now_s:
                found.append((sequence, late))
            else:
                self._due_s = min(self._due_s, due_s)
        return found

    def _deadline(self, sequence: Sequence, now_s: float) -> tuple[float, IzwiError]:
        """Return when a request must have left its phase, and the error if it has not."""
        since_s, timing = sequence.submitted_s + sequence.status.paused_s, sequence.timing
        if sequence.request.is_idle_work:  # it waits for others for any time
            return inf, DeadlineExceeded("")
        limits = self._limits.tighter(sequence.request.deadlines)
        wait_s, prefill_s, decode_s = limits.queue_s, limits.prefill_s, limits.decode_s
        if timing.admitted_s is None:
            due_s = inf if self._is_being_played(sequence) else since_s + wait_s
            return due_s, Overloaded(
                f"could not be scheduled within {wait_s:g} s (queue full); retry later",
                retry_after_s=self._queue_wait.retry_after_s(len(self._waiting), now_s),
            )
        if timing.first_entry_s is None:
            due_s, late = timing.admitted_s + prefill_s, f"not begun within {prefill_s:g} s"
        else:
            due_s, late = timing.first_entry_s + decode_s, f"not complete within {decode_s:g} s"
        if sequence.status.ended:  # only its last audio is left
            due_s = inf
        return since_s + due_s, DeadlineExceeded(f"the answer was {late}; it was ended")

    # -- steps -------------------------------------------------------------------------------
    def schedule(self, now_s: float) -> Work:
        """Plan a step, allocate its pages and move sequences between the queues."""
        self.counts.steps += 1
        if self._idle_work and self._shares.is_busy:
            self._stop_idle_work(now_s)
        room = min(self._config.max_running, len(self._running) + self._num_rows_free)
        budgets = Budgets(
            page_size=self._page_size,
            free_pages=self.memory.num_available,
            tokens=self._config.max_step_tokens,
            encodes=self._config.max_step_encodes,
            running=room,
            vocodes=self._config.max_step_vocodes,
            step_s=self._config.max_step_s,
            cost=self.cost.cost,
            new_requests=self._starts.per_step,
            since_start=self._starts.steps_since,
            codec_overlaps=self._facts.codec_overlaps,
            far_new_requests=self._starts.far_per_step,
        )
        # shared pages matter only for preemption
        tight = budgets.free_pages < 2 * len(self._running) + _PUSHERS
        running = [self._view(s, now_s, tight) for s in self._running.values()]
        waiting = self._candidates(room - len(running), now_s)
        running, waiting, budgets = self._shares.mark(running, waiting, budgets)
        plan = self.policy.plan(running, waiting, budgets)
        admitted = set(plan.admit)
        num_far = sum([view.urgency.slack_s >= FAR_S for view in waiting if view.key in admitted])
        self._starts.step(len(admitted), num_far)
        if admitted:
            self._queue_wait.note_left(len(admitted), now_s)
        self._shares.settle(plan, budgets.cost)
        work = self._apply(plan, budgets, now_s)
        self.memory.flush()
        return work

    def computed(self, sequence: Sequence, num_positions: int) -> None:
        """Record that a row has run, and publish the whole pages of its prompt."""
        kv = sequence.kv
        if num_positions > kv.num_computed:
            kv.num_computed = num_positions
        if kv.num_published >= sequence.num_prompt // self._page_size:
            return  # all are published
        if not sequence.request.cacheable:
            return
        prompt_pages = min(num_positions, sequence.num_prompt) // self._page_size
        if prompt_pages > kv.num_published:
            self.memory.publish(kv.keys, kv.pages[:prompt_pages])
            kv.num_published = prompt_pages
            self._in_flight.reached(sequence, prompt_pages)

    def verified(self, row: PlannedRow, num_accepted: int) -> int:
        """Record how many guesses of a row were right, and free the pages of those that were not.

        Returns:
            One past the last position whose keys and values are those of its log.
        """
        sequence, num_drafted = row.sequence, len(row.draft)
        kv, num_computed = sequence.kv, row.stop - num_drafted + num_accepted
        kv.num_computed = num_computed
        used = pages_for(num_computed, self._page_size)
        if surplus := kv.pages[used:]:
            kv.pages = kv.pages[:used]  # a new list: a batch may still refer to the other one
            self.memory.release(surplus)
        self.counts.drafted += num_drafted
        self.counts.accepted += num_accepted
        num_entries = len(sequence.emitted) + num_accepted + 1
        sequence.drawing.drafting.record(num_drafted, num_accepted, num_entries)
        return num_computed

    def end(self, sequence: Sequence, reason: Reason) -> None:
        """Record that a sequence emits no more: free its pages, keep its codec row."""
        sequence.status.ended, sequence.status.reason = True, reason
        sequence.tracks.end()
        self._give_back(sequence)

    def redraw(self, sequence: Sequence) -> None:
        """Discard what steps in flight draw for a sequence, and run its last position again.

        They were launched for a track other than the one that follows.
        """
        sequence.pending.drop()
        sequence.kv.num_computed = min(sequence.kv.num_computed, sequence.next_drawn)

    def delivered(self, sequence: Sequence, frames: float, now_s: float) -> None:
        """Record audio or text that was delivered to the listener."""
        if gap_s := self.clocks.delivered(sequence.arrival, frames, now_s):
            sequence.note(TimedEvent.UNDERRUN, now_s, gap_s)

    def _is_being_played(self, sequence: Sequence) -> bool:
        """Whether its listener has received part of the answer."""
        return sequence.request.continues or self.clocks.knows(_listener_of(sequence))

    def _is_new(self, sequence: Sequence) -> bool:
        if sequence.status.phase is not Phase.WAITING:
            return False
        return not self.clocks.knows(_listener_of(sequence))

    # -- views -------------------------------------------------------------------------------
    @property
    def _num_rows_free(self) -> int:
        return self._rows.num_available if self._speaks else self._config.max_running

    def _view(self, sequence: Sequence, now_s: float, tight: bool = False) -> View:
        request = sequence.request
        pending = sequence.pending  # as if the steps in flight had ended
        num_emitted = len(sequence.emitted) + pending.entries
        # `Sequence.num_positions` inlined: this runs for every sequence in every step
        num_positions = sequence.num_prompt + (0 if sequence.output_positions else num_emitted)
        starved = sequence.input.is_open and self._lacks_text(sequence, num_positions)
        num_frames = sequence.tracks.num_frames(num_emitted, pending.tracks)
        slack_s, started = self.clocks.urgency(sequence.arrival, now_s)
        encoded, kv, status = sequence.encoded, sequence.kv, sequence.status
        return View(
            key=sequence.arrival,
            progress=Progress(
                num_positions=num_positions,
                num_computed=kv.num_computed,
                num_encodes=len(sequence.missing_encodes(kv.num_computed)) if encoded else 0,
                encode_only=request.encode_only,
                backpressured=starved or sequence.emits_nothing,
                ended=status.ended or pending.ends,
            ),
            num_pages=len(kv.pages),
            num_shared=self.memory.num_shared(kv.pages) if tight else 0,
            # `_urgency` inlined, for the same reason
            urgency=Urgency(
                slack_s=slack_s,
                started=started,
                idle_steps=self.counts.steps - status.last_step,
                priority=request.priority,
            ),
            audio=frames_due(sequence, num_frames, self._ramp, dry=starved and slack_s < DRY_S)
            if self._speaks
            else NO_FRAMES,
        )

    def _urgency(self, sequence: Sequence, slack_s: float, started: bool) -> Urgency:
        idle, priority = self.counts.steps - sequence.status.last_step, sequence.request.priority
        return Urgency(slack_s=slack_s, started=started, idle_steps=idle, priority=priority)

    def _lacks_text(self, sequence: Sequence, num_positions: int) -> bool:
        """Whether the next entry needs text that has not been written yet."""
        starved = self._facts.positions_ready(sequence) < num_positions
        sequence.status.paused = PauseReason.INPUT if starved else None
        return starved

    def _can_run(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence could emit if it had a place."""
        if sequence.status.backpressured:
            return False
        if sequence.request.is_idle_work and self._shares.is_busy:
            return False
        return not (sequence.input.is_open and self._lacks_text(sequence, sequence.num_positions))

    def _candidates(self, room: int, now_s: float) -> list[View]:
        """Views of sequences that may start: as many as fit, and a few that may preempt others."""
        if not self._waiting:
            return []
        views, pending = [], set[int]()

        def slack_s(sequence: Sequence) -> float:
            reader_s, started = self.clocks.urgency(sequence.arrival, now_s)
            urgency = self._urgency(sequence, reader_s, started)
            return reader_s if self._speaks else text_slack_s(urgency)

        heads = self._waiting.heads(max(0, room) + _PUSHERS, self._can_run, slack_s)
        plain = [(self._view(sequence, now_s), sequence) for sequence in heads]
        if self._waiting.callers.is_shared:
            plain = take_turns(plain, self._is_new, self.policy.rank, self._waiting.turns)
        plain.sort(key=lambda pair: self.policy.rank(pair[0]))
        for view, sequence in plain:
            if view.progress.encode_only:
                views.append(view)
                continue
            # the position that is drawn from must run, even if it was computed before
            needed = sequence.next_drawn
            found = self.memory.find(self._content.keys(sequence, needed))
            num_computed = min(found.num_positions, needed)
            rest = self._content.page_chain(sequence)[num_computed // self._page_size :]
            if rest and (rest[0] in self._in_flight or rest[0] in pending):
                continue  # a prompt in flight computes its prefix, so it waits for a later step
            pending.update(rest)
            num_encodes = len(sequence.missing_encodes(num_computed)) if sequence.encoded else 0
            num_shared = self.memory.num_shared_by_others(found)
            views.append(view.with_prefix(num_computed, num_shared, num_encodes))
        return views

    def _stop_idle_work(self, now_s: float) -> None:
        """Make idle work wait, except where only its last audio is left to be made."""
        for arrival in self._idle_work & self._running.keys():
            if not self._running[arrival].status.ended:
                self._preempt(arrival, now_s)

    def _preempt(self, arrival: int, now_s: float) -> None:
        sequence = self._running[arrival]
        self._take_out(sequence)
        sequence.status.phase, sequence.status.paused = Phase.PAUSED, PauseReason.MEMORY
        self._waiting.add(sequence)
        sequence.note(TimedEvent.PREEMPTED, now_s)
        self.counts.preempted += 1

    # -- executing the plan ------------------------------------------------------------------
    def _apply(self, plan: Plan, budgets: Budgets, now_s: float) -> Work:
        for key in plan.preempt:
            self._preempt(key, now_s)
        # all new requests claim their prefixes before any page is evicted
        rebuild = [s for key in plan.admit if (s := self._start(key, now_s)) is not None]
        encode: list[tuple[Sequence, int]] = []
        for key, count in plan.encode:
            sequence = self._running[key]
            missing = sequence.missing_encodes(sequence.kv.num_computed)
            encode += [(sequence, i) for i in missing[:count]]
            sequence.status.last_step = self.counts.steps
        rows: list[PlannedRow] = []
        running, size, step = self._running, self._page_size, self.counts.steps
        for key, start, stop in plan.forward:
            sequence = running[key]
            kv = sequence.kv
            computed = kv.num_computed
            if computed < start:  # a lower tier has dropped part of the match
                stop += computed - start
                if sequence.missing_encodes(computed):
                    continue  # an image of that part was not planned; it runs in a later step
            if stop > size * len(kv.pages):
                missing_pages = pages_for(stop, size) - len(kv.pages)
                if missing_pages > self.memory.num_available:
                    continue  # its planned prefix went to other sequences; it runs in a later step
                kv.pages += self.memory.allocate(missing_pages)
            sequence.status.last_step = step
            rows.append(PlannedRow(sequence, computed, stop))
        if self._speculation is not None:
            rows = self._speculation.extend(rows, budgets, self.memory)
        vocode: list[tuple[Sequence, int]] = []
        for key, frames in plan.vocode:
            running[key].status.last_step = step
            vocode.append((running[key], planned_chunk(running[key], frames, self._ramp)))
        return Work(tuple(encode), tuple(rebuild), tuple(rows), tuple(vocode))

    def _start(self, key: int, now_s: float) -> Sequence | None:
        """Let a sequence run; return it if its codec state must be rebuilt."""
        sequence = self._waiting[key]
        self._waiting.start(sequence)
        self._running[key] = sequence
        sequence.status.phase, sequence.status.paused = Phase.PREFILL, None
        is_first = sequence.timing.admitted_s is None
        if is_first:
            sequence.timing.admitted_s = now_s - sequence.submitted_s
        if not sequence.request.encode_only:
            keys = self._content.keys(sequence, sequence.next_drawn)
            kv = sequence.kv
            kv.pages, kv.num_computed = self.memory.claim(keys)
            kv.num_reused, kv.num_published = kv.num_computed, kv.num_computed // self._page_size
            if is_first:
                sequence.timing.num_cached = kv.num_reused
            self._content.page_chain(sequence)
            if sequence.request.cacheable:
                self._in_flight.start(sequence, kv.num_published)
        if not self._speaks or sequence.request.encode_only:
            return None
        return sequence if self._rows.assign_row(sequence.audio) else None

    def _take_out(self, sequence: Sequence) -> None:
        """Remove a sequence from the queues; its computed pages can still be found."""
        self._waiting.remove(sequence)
        if self._running.pop(sequence.arrival, None) is None:
            return
        self._give_back(sequence)
        if not sequence.status.ended:  # one with only audio left keeps its row
            self._rows.make_idle(sequence.audio)

    def _give_back(self, sequence: Sequence) -> None:
        """Release the pages. The log stays; the pages can be found again while memory lasts.

        What steps in flight compute for it is dropped, and drawn again if it resumes.
        """
        self._in_flight.stop(sequence)
        sequence.pending.drop()
        kv = sequence.kv
        if kv.pages:
            known = sequence.num_prompt + len(sequence.emitted)
            whole = min(kv.num_computed, known) // self._page_size
            if whole > kv.num_published and worth_keeping(sequence, self._speaks):
                self.memory.publish(
                    self._content.keys(sequence, whole * self._page_size), kv.pages[:whole]
                )
            self.memory.release(kv.pages)
        kv.pages, kv.num_computed, kv.num_published = [], 0, 0


class WaitingQueue:
    """Sequences that wait to run: interactive and background ones in separate queues.

    A policy sees only the head of each queue. Sequences that cannot run are not part of the head:
    those that lack text would otherwise hide all later ones.

    Args:
        order: Of the queues.

    Attributes:
        callers: The virtual times of the callers whose sequences wait, in positions of prompts.
    """

    def __init__(self, order: Order) -> None:
        self._order, self.callers = order, FairClock()
        self._lines: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._sequences: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    def __getitem__(self, arrival: int) -> Sequence:
        return self._sequences[arrival]

    def add(self, sequence: Sequence) -> None:
        """Add a sequence at the place given by the order and its arrival."""
        self._sequences[sequence.arrival] = sequence
        self.callers.add_work(sequence.request.caller)
        insort(self._lines[sequence.request.streams], self._place(sequence))

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence; do nothing if it does not wait."""
        if self._sequences.pop(sequence.arrival, None) is not None:
            self.callers.remove_work(sequence.request.caller)
            line = self._lines[sequence.request.streams]
            del line[bisect_left(line, self._place(sequence))]

    def start(self, sequence: Sequence) -> None:
        """Remove a sequence because it runs, which takes a turn of its caller."""
        if self.callers.is_shared:
            self.callers.charge(sequence.request.caller, _work_of(sequence))
        self.remove(sequence)

    def turns(self, sequences: Iterable[Sequence]) -> list[int]:
        """Return the order in which waiting sequences have their turns, as indices."""
        return self.callers.order([(s.request.caller, _work_of(s)) for s in sequences])

    def heads(
        self,
        count: int,
        can_run: Callable[[Sequence], bool],
        slack_s: Callable[[Sequence], float],
    ) -> list[Sequence]:
        """Return the first sequences of each queue that can run, in any order.

        With several callers, those whose turn is next among the sequences that never ran are part
        of them.

        Args:
            count: Maximum for each queue.
            can_run: Whether a sequence could run if it had a place.
            slack_s: Slack of a stream, for the order by slack.
        """
        found: list[Sequence] = []
        for streams, line in self._lines.items():
            ready = filter(can_run, [self._sequences[arrival] for _, arrival in line])
            if len(line) <= count:
                found += ready
            elif self.callers.is_shared:
                found += self._fair_heads(list(ready), count, slack_s)
            elif streams and self._order is Order.SLACK:
                found += nsmallest(count, ready, key=slack_s)
            else:
                first = list(islice(ready, count))
                found += first
                if self._order is Order.PRIORITY:
                    found += nsmallest(_OLDEST, ready, key=lambda s: s.status.last_step)
        return found

    def _fair_heads(
        self, ready: list[Sequence], count: int, slack_s: Callable[[Sequence], float]
    ) -> list[Sequence]:
        if self._order is Order.SLACK:
            ready.sort(key=slack_s)
        new = [sequence for sequence in ready if sequence.status.phase is Phase.WAITING]
        heads = {id(sequence): sequence for sequence in ready[:count]}
        heads |= {id(new[place]): new[place] for place in self.turns(new)[:count]}
        if self._order is Order.PRIORITY:
            oldest = nsmallest(_OLDEST, ready, key=lambda s: s.status.last_step)
            heads |= {id(sequence): sequence for sequence in oldest}
        return list(heads.values())

    def _place(self, sequence: Sequence) -> tuple[int, int]:
        priority = sequence.request.priority if self._order is Order.PRIORITY else 0
        return -priority, sequence.arrival

    def never_started(self) -> Iterable[Sequence]:
        """Return the sequences that have not run yet, in any order."""
        return (s for s in self._sequences.values() if s.status.phase is Phase.WAITING)


def _work_of(sequence: Sequence) -> float:
    return sequence.num_prompt + _ANSWER_POSITIONS


class Starts:
    """How often sequences start."""

    def __init__(self) -> None:
        self.per_step = 0.0
        self.far_per_step = 0.0
        self.steps_since = 0

    def step(self, count: int, num_far: int = 0) -> None:
        """Count the sequences that started in a step, and those that could have waited."""
        self.per_step += (count - self.per_step) / _STARTS_STEPS
        self.far_per_step += (num_far - self.far_per_step) / _STARTS_STEPS
        self.steps_since = 0 if count else self.steps_since + 1


class PromptsInFlight:
    """Pages of prompts that are being computed.

    A new request that begins with such a page is deferred until the page can be shared.
    """

    def __init__(self) -> None:
        self._pages: Counter[int] = Counter()
        self._of: dict[int, list[int]] = {}  # arrival -> digests not computed yet

    def start(self, sequence: Sequence, first_page: int) -> None:
        """Record that a sequence computes its prompt from a page on."""
        assert sequence.kv.page_chain is not None
        missing = list(sequence.kv.page_chain[first_page:])
        if missing:
            self._of[sequence.arrival] = missing
            self._pages.update(missing)

    def reached(self, sequence: Sequence, num_pages: int) -> None:
        """Record how many of its prompt's pages are computed."""
        missing = self._of.get(sequence.arrival)
        if missing is None:
            return
        assert sequence.kv.page_chain is not None
        done = len(missing) - (len(sequence.kv.page_chain) - num_pages)
        self._forget(missing[: max(0, done)])
        del missing[: max(0, done)]
        if not missing:
            del self._of[sequence.arrival]

    def stop(self, sequence: Sequence) -> None:
        """Record that a sequence no longer runs."""
        self._forget(self._of.pop(sequence.arrival, []))

    def __contains__(self, digest: int) -> bool:
        return digest in self._pages

    def _forget(self, digests: Iterable[int]) -> None:
        for digest in digests:
            self._pages[digest] -= 1
            if self._pages[digest] == 0:
                del self._pages[digest]


class ContentKeys:
    """Content keys of positions, computed once."""

    def __init__(self, facts: ModelProperties, page_size: int):
        self._facts, self._page_size = facts, page_size

    def keys(self, sequence: Sequence, count: int) -> list[int]:
        """Return content keys of the first positions; computes those that are missing."""
        keys = sequence.kv.keys
        if len(keys) < count:
            keys += self._facts.content_keys(sequence, len(keys), count)
        return keys[:count] if len(keys) > count else keys

    def page_chain(self, sequence: Sequence) -> tuple[int, ...]:
        """Return a running digest of each whole page of the prompt's keys."""
        if sequence.kv.page_chain is None:
            keys = self.keys(sequence, sequence.request.prompt.num_positions)
            sequence.kv.page_chain = tuple(page_chain(keys, self._page_size))
        return sequence.kv.page_chain


def worth_keeping(sequence: Sequence, speaks: bool) -> bool:
    """Whether positions of a log may be requested again.

    Those of a sequence that resumes are. After the end, only entries that became text may be
    part of another prompt; frames of speech never are.
    """
    frames_alone = speaks and sequence.tracks.of_entries is None
    return not sequence.status.ended or (sequence.request.cacheable and not frames_alone)


def next_chunk(sequence: Sequence, ramp: tuple[int, ...]) -> int:
    """Return the frames of a stream's next chunk, as if the steps in flight had ended."""
    audio, pending = sequence.audio, sequence.pending
    num_counted, count = audio.num_full
    if num_counted != len(audio.chunks):  # seldom, and this is asked for every stream of a step
        count = full_chunks(audio.chunks, ramp)
        audio.num_full = len(audio.chunks), count
    if not pending.chunks:
        return ramp[count]
    frames = pending.frames  # of two chunks in flight, one may be taken for full
    for _ in range(pending.chunks):
        if frames >= chunk_frames(count, ramp):
            frames -= chunk_frames(count, ramp)
            count += 1
    return chunk_frames(count, ramp)


def planned_chunk(sequence: Sequence, frames: int, ramp: tuple[int, ...]) -> int:
    """Return the size of a chunk for which `frames` frames were planned.

    The last chunk before an end is shorter. The end may be a prediction, and if it was wrong, its
    frames must wait for a whole chunk.
    """
    ends = sequence.status.ended or sequence.pending.ends
    return next_chunk(sequence, ramp) if ends else frames


def frames_due(
    sequence: Sequence, num_frames: int, ramp: tuple[int, ...], *, dry: bool = False
) -> FramesDue:
    """Return the frames that are not audio yet, as if the steps in flight had ended.

    Args:
        sequence: A stream.
        num_frames: Frames that it has then.
        ramp: Frames of a stream's first, second, ... chunk of audio.
        dry: No frame follows soon and playback is about to underrun, so that the next chunk is as
            long as its frames allow.
    """
    frames = num_frames - sequence.audio.num_vocoded - sequence.pending.frames
    chunk = next_chunk(sequence, ramp)
    if dry and 0 < frames < chunk:
        chunk = short_chunk_frames(frames, ramp)
    return FramesDue(frames=frames, chunk=chunk, next_frames=sequence.next_frames)


def _listener_of(sequence: Sequence) -> str:
    return sequence.request.listener or sequence.request.request_id
