"""Queues of one model: who waits, who runs, who is paused. Asks the policy what is next.

Knows no tensors: pages and codec rows are numbers here.
"""

from __future__ import annotations

import logging
from typing import Protocol

from izwi.cache.memory import PagedMemory
from izwi.cache.pages import pages_for
from izwi.cache.radix import page_chain
from izwi.config import EngineConfig
from izwi.errors import InvalidRequest, Overloaded
from izwi.model import Row
from izwi.request import Coming, PauseReason, Phase, Reason, Sequence
from izwi.scheduler.codec_rows import CodecRows, StateRows
from izwi.scheduler.cost import OnlineCost
from izwi.scheduler.listeners import Listeners
from izwi.scheduler.playback import chunk_frames
from izwi.scheduler.policy import POLICIES, Budgets, Plan, View
from izwi.scheduler.shadow import add, compare
from izwi.scheduler.waiting import PromptsUnderWay, Starts, WaitingRoom
from izwi.scheduler.work import Counts, Work

logger = logging.getLogger(__name__)

# Waiting sequences that are looked at although there is no room: a policy may make some.
_PUSHERS = 4


class ModelFacts(Protocol):
    """What the queues must know of a model."""

    @property
    def frame_s(self) -> float | None:
        """Seconds of sound in one frame, None for a model that writes text."""
        ...

    @property
    def works_beside(self) -> bool:
        """Whether sound is made while the next step runs."""
        ...

    def content_keys(self, sequence: Sequence, start: int, stop: int) -> list[int]:
        """Content keys of positions [start, stop) of prompt and log."""
        ...

    def positions_ready(self, sequence: Sequence) -> int:
        """Positions whose inputs are known, for a sequence whose text is still written."""
        ...


class Scheduler:
    """The sequences of one model.

    Attributes:
        capacity: Positions that one sequence can have with all pages to itself.
    """

    def __init__(
        self, config: EngineConfig, memory: PagedMemory, states: StateRows, facts: ModelFacts
    ):
        self._config, self._facts = config, facts
        self._rows = CodecRows(states)
        self._speaks = facts.frame_s is not None
        self._page_size, self._ramp = config.page_size, config.chunk_ramp
        self._policy = POLICIES[config.policy]
        self._shadow = POLICIES[config.shadow_policy] if config.shadow_policy else None
        self._listeners = Listeners(facts.frame_s, config.first_sound_target_s)
        self._waiting = WaitingRoom()
        self._running: dict[int, Sequence] = {}
        self._paused: dict[int, tuple[Sequence, float]] = {}  # and since when
        self._under_way = PromptsUnderWay()
        self._starts = Starts()
        self.memory, self.capacity = memory, memory.num_pages * config.page_size
        self.cost = OnlineCost()
        self.counts = Counts()

    # -- what there is -----------------------------------------------------------------------
    @property
    def has_work(self) -> bool:
        """Whether anything runs or wants to."""
        return bool(self._waiting or self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait to run."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences that take part in steps."""
        return len(self._running)

    @property
    def num_paused(self) -> int:
        """Sequences that somebody paused."""
        return len(self._paused)

    def runs(self, sequence: Sequence) -> bool:
        """Whether a sequence takes part in steps."""
        return sequence.arrival in self._running

    # -- what callers ask --------------------------------------------------------------------
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
        # the next piece of what somebody listens to already is not a new caller
        new = not self._listeners.knows(sequence)
        if new and len(self._waiting) >= self._config.max_waiting:
            raise Overloaded(f"{len(self._waiting)} requests are waiting already")
        sequence.last_step = self.counts.steps
        self._listeners.add(sequence)
        self._waiting.add(sequence)

    def pause(self, sequence: Sequence, now_s: float) -> None:
        """Take a sequence out until `resume`. Its pages stay findable while memory lasts."""
        if sequence.arrival in self._paused or sequence.phase is Phase.FINISHED:
            return
        self._take_out(sequence)
        self._paused[sequence.arrival] = (sequence, now_s)
        sequence.phase, sequence.paused = Phase.PAUSED, PauseReason.TURN
        self.counts.paused += 1

    def resume(self, sequence: Sequence, now_s: float) -> None:
        """Let a paused sequence go on. The time of the pause counts against nobody."""
        if sequence.arrival not in self._paused:
            return
        _, since_s = self._paused.pop(sequence.arrival)
        self._listeners.shift(sequence, now_s - since_s)
        sequence.paused, sequence.last_step = None, self.counts.steps
        if sequence.ended:  # it owes sound alone, and its codec row was kept
            self._running[sequence.arrival] = sequence
        else:
            self._waiting.add(sequence)
        self.counts.resumed += 1

    def finish(self, sequence: Sequence, reason: Reason) -> None:
        """Take a sequence out for good and free all it holds."""
        self._paused.pop(sequence.arrival, None)
        sequence.ended = True  # so that nothing is kept for its going on
        self._take_out(sequence)
        self._listeners.remove(sequence)
        self._rows.release(sequence)
        sequence.phase, sequence.reason, sequence.paused = Phase.FINISHED, reason, None

    def overdue(self, now_s: float) -> list[Sequence]:
        """Requests that have waited so long without a start that they are refused.

        What somebody listens to already is not cut off in the middle.
        """
        oldest_s = now_s - self._config.max_wait_s
        late = [s for s in self._waiting.never_started() if s.submitted_s < oldest_s]
        return [s for s in late if not self._listeners.knows(s)]

    # -- a step ------------------------------------------------------------------------------
    def schedule(self, now_s: float) -> Work:
        """Plan a step, hand out its pages and move sequences between the queues."""
        self.counts.steps += 1
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
            newcomers=self._starts.per_step,
            since_start=self._starts.steps_since,
            sounds_beside=self._facts.works_beside,
        )
        # who shares pages matters to preemption alone
        tight = budgets.free_pages < 2 * len(self._running) + _PUSHERS
        running = [self._view(s, now_s, tight) for s in self._running.values()]
        waiting = self._candidates(room - len(running), now_s)
        plan = self._policy.plan(running, waiting, budgets)
        self._compare(plan, running, waiting, budgets)
        self._starts.step(len(plan.admit))
        work = self._apply(plan)
        self.memory.flush()
        return work

    def _compare(
        self, plan: Plan, running: list[View], waiting: list[View], budgets: Budgets
    ) -> None:
        """Let the second policy plan the same step, and count what it would have done otherwise."""
        if self._shadow is None:
            return
        difference = compare(plan, self._shadow.plan(running, waiting, budgets))
        self.counts.shadow_steps += 1
        self.counts.shadow = add(self.counts.shadow, difference)
        if difference:
            logger.debug(
                "step %d: %s would differ: %s", self.counts.steps, self._shadow.name, difference
            )

    def computed(self, sequence: Sequence, num_positions: int) -> None:
        """Take note that a row has run, and share the whole pages of its prompt."""
        sequence.num_computed = max(sequence.num_computed, num_positions)
        if sequence.num_published >= sequence.num_prompt // self._page_size:
            return  # all are shared
        if not sequence.request.comes_again:
            return
        prompt_pages = min(num_positions, sequence.num_prompt) // self._page_size
        if prompt_pages > sequence.num_published:
            self.memory.publish(sequence.keys, sequence.pages[:prompt_pages])
            sequence.num_published = prompt_pages
            self._under_way.reached(sequence, prompt_pages)

    def end(self, sequence: Sequence, reason: Reason) -> None:
        """Take note that a sequence emits no more; its pages go, its codec row stays."""
        sequence.ended, sequence.reason = True, reason
        self._give_back(sequence)

    def heard(self, sequence: Sequence, frames: int, now_s: float) -> None:
        """Take note that sound or text left for its listener."""
        self._listeners.heard(sequence, frames, now_s)

    # -- the snapshot ------------------------------------------------------------------------
    @property
    def _num_rows_free(self) -> int:
        return self._rows.num_available if self._speaks else self._config.max_running

    def _view(self, sequence: Sequence, now_s: float, tight: bool = False) -> View:
        request = sequence.request
        coming = sequence.coming  # as if the steps under way had ended
        num_emitted = len(sequence.emitted) + coming.entries
        # as `Sequence.num_positions`, written out: this runs for every sequence in every step
        num_positions = sequence.num_prompt + (0 if sequence.marks else num_emitted)
        held = sequence.held
        if sequence.input_open:
            starved = self._facts.positions_ready(sequence) < num_positions
            sequence.paused = PauseReason.INPUT if starved else None
            held = held or starved
        slack, started = self._listeners.urgency(sequence, now_s)
        encoded = sequence.encoded
        return View(
            sequence.arrival,
            num_positions,
            sequence.num_computed,
            len(sequence.pages),
            sum([result is None for result in encoded]) if encoded else 0,
            request.encode_only,
            held,
            request.priority,
            slack,
            started,
            self.counts.steps - sequence.last_step,
            num_emitted - sequence.num_vocoded - coming.frames if self._speaks else 0,
            chunk_frames(sequence.num_chunks + coming.chunks, self._ramp) if self._speaks else 0,
            sequence.ended or coming.ends,
            False,
            self.memory.num_shared(sequence.pages) if tight else 0,
        )

    def _candidates(self, room: int, now_s: float) -> list[View]:
        """Views of those that may start: as many as there is room for, and a few that may push."""
        if not self._waiting:
            return []
        views, coming = [], set[int]()
        heads = self._waiting.heads(max(0, room) + _PUSHERS)
        plain = [(self._view(sequence, now_s), sequence) for sequence in heads]
        plain.sort(key=lambda pair: self._policy.rank(pair[0]))
        for view, sequence in plain:
            if view.held or view.encode_only:
                if not view.held:
                    views.append(view)
                continue
            # what is drawn from must be computed, whoever has computed it before
            needed = sequence.next_drawn
            found = self.memory.find(self._keys(sequence, needed))
            view = view._replace(
                num_computed=min(found.num_positions, needed),
                num_pages=self.memory.num_held_by_others(found),
            )
            chain = self._chain(sequence)
            rest = chain[view.num_computed // self._page_size :]
            if rest and (rest[0] in self._under_way or rest[0] in coming):
                view = view._replace(deferred=True)
            else:
                coming.update(rest)
            views.append(view)
        return views

    def _keys(self, sequence: Sequence, count: int) -> list[int]:
        """Content keys of the first positions; more than `count` of them may be there."""
        known = len(sequence.keys)
        if known < count:
            sequence.keys += self._facts.content_keys(sequence, known, count)
        return sequence.keys[:count] if len(sequence.keys) > count else sequence.keys

    def _chain(self, sequence: Sequence) -> tuple[int, ...]:
        if sequence.page_chain is None:
            keys = self._keys(sequence, sequence.request.prompt.num_positions)
            sequence.page_chain = tuple(page_chain(keys, self._page_size))
        return sequence.page_chain

    # -- carrying the plan out ---------------------------------------------------------------
    def _apply(self, plan: Plan) -> Work:
        for key in plan.preempt:
            sequence = self._running[key]
            self._take_out(sequence)
            sequence.phase, sequence.paused = Phase.PAUSED, PauseReason.MEMORY
            self._waiting.add(sequence)
            self.counts.preempted += 1
        # all newcomers hold what they found before anybody's page is evicted for another
        rebuild = [s for s in map(self._start, plan.admit) if s is not None]
        encode: list[tuple[Sequence, int]] = []
        for key, count in plan.encode:
            sequence = self._running[key]
            missing = [i for i, result in enumerate(sequence.encoded) if result is None]
            encode += [(sequence, i) for i in missing[:count]]
            sequence.last_step = self.counts.steps
        rows: list[Row] = []
        running, size, step = self._running, self._page_size, self.counts.steps
        for key, start, stop in plan.forward:
            sequence = running[key]
            computed = sequence.num_computed
            if computed < start:  # a lower tier has dropped some of what was found
                stop += computed - start
            if stop > size * len(sequence.pages):
                missing_pages = pages_for(stop, size) - len(sequence.pages)
                if missing_pages > self.memory.num_available:
                    continue  # a prefix that it was planned with went to others; it runs later
                sequence.pages += self.memory.allocate(missing_pages)
            sequence.last_step = step
            rows.append(Row(sequence, computed, stop))
        vocode = tuple(self._running[key] for key, _ in plan.vocode)
        for sequence in vocode:
            sequence.last_step = self.counts.steps
        return Work(tuple(encode), tuple(rebuild), tuple(rows), vocode)

    def _start(self, key: int) -> Sequence | None:
        """Let a sequence run; it is returned if its codec state must be rebuilt."""
        sequence = self._waiting[key]
        self._waiting.remove(sequence)
        self._running[key] = sequence
        sequence.phase, sequence.paused = Phase.PREFILL, None
        if not sequence.request.encode_only:
            keys = self._keys(sequence, sequence.next_drawn)
            sequence.pages, sequence.num_computed = self.memory.claim(keys)
            sequence.num_reused = sequence.num_computed
            sequence.num_published = sequence.num_computed // self._page_size
            self._chain(sequence)
            if sequence.request.comes_again:
                self._under_way.start(sequence, sequence.num_published)
        if not self._speaks or sequence.request.encode_only:
            return None
        return sequence if self._rows.take(sequence) else None

    def _take_out(self, sequence: Sequence) -> None:
        """Take a sequence out of the queues; what it computed stays findable."""
        self._waiting.remove(sequence)
        if self._running.pop(sequence.arrival, None) is None:
            return
        self._give_back(sequence)
        if not sequence.ended:  # one that owes sound alone goes on with the row that it has
            self._rows.rest(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        """Let go of the pages. The log stays; what the pages hold is found again while it lasts.

        What steps under way have of the sequence is dropped, and drawn again if it goes on.
        """
        self._under_way.stop(sequence)
        sequence.epoch += 1
        sequence.coming = Coming()
        if sequence.pages:
            known = sequence.num_prompt + len(sequence.emitted)
            whole = min(sequence.num_computed, known) // self._page_size
            if whole > sequence.num_published and self._worth_keeping(sequence):
                keys = self._keys(sequence, whole * self._page_size)
                self.memory.publish(keys, sequence.pages[:whole])
            self.memory.release(sequence.pages)
        sequence.pages, sequence.num_computed, sequence.num_published = [], 0, 0

    def _worth_keeping(self, sequence: Sequence) -> bool:
        """Whether anybody may ask for a log's positions again.

        A sequence that goes on later does; after the end, only what text was made of may be part
        of another prompt. Frames of speech never are.
        """
        return not sequence.ended or (sequence.request.comes_again and not self._speaks)
