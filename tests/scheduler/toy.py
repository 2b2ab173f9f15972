"""A toy engine for policies: it runs plans over a counted pool of pages, with a toy clock.

Every plan is checked as it is run, so that a simulation fails at the step that breaks a promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from math import inf

from izwi.cache.pages import pages_for
from izwi.scheduler.cost import StepCost
from izwi.scheduler.playback import chunk_frames, slack_s
from izwi.scheduler.policy import Budgets, Plan, Policy, View
from izwi.scheduler.scheduler import Starts
from tests.scheduler.views import view_of

PAGE = 4
FRAME_S = 0.08
RAMP = (1, 2, 4, 8, 12)
TTFA_TARGET_S = 0.1
COST = StepCost(0.010, 4e-5, 2e-5, 0.008, 0.002, 2e-4)
# Where prompts and encoders are dear however many there are, so that new requests wait to form a
# larger batch.
DEAR_CALLS = replace(COST, prefill_call_s=0.02, encode_call_s=0.02)


@dataclass(slots=True, eq=False)
class Timeline:
    """One sequence: what it asks for, then what became of it."""

    prompt: int
    entries: int
    streams: bool = True
    speaks: bool = True
    priority: int = 0
    encodes: int = 0
    arrives: int = 0
    backpressured: tuple[int, int] = (0, 0)  # steps [from, to) in which it may not emit
    key: int = -1
    running: bool = False
    submitted_s: float = 0.0
    log: int = 0
    computed: int = 0
    pages: int = 0
    idle: int = 0
    longest_idle_running: int = 0
    longest_idle_waiting: int = 0
    num_preempted: int = 0
    vocoded: int = 0
    num_chunks: int = 0
    chunks: list[tuple[float, float]] = field(default_factory=list)  # (time, seconds of audio)

    @property
    def ended(self) -> bool:
        return self.log == self.entries

    @property
    def done(self) -> bool:
        return self.ended and (not self.speaks or self.vocoded == self.log)

    @property
    def whole_pages(self) -> int:
        return pages_for(self.prompt + self.entries, PAGE)

    def view(self, step: int, now_s: float) -> View:
        first_s = self.chunks[0][0] if self.chunks else None
        audio_s = self.vocoded * FRAME_S
        slack = slack_s(now_s, self.submitted_s, first_s, audio_s, TTFA_TARGET_S)
        return view_of(
            key=self.key,
            num_positions=self.prompt + self.log,
            num_computed=self.computed,
            num_pages=self.pages,
            num_encodes=self.encodes,
            backpressured=self.backpressured[0] <= step < self.backpressured[1],
            priority=self.priority,
            slack_s=slack if self.streams else inf,
            started=bool(self.chunks) or (self.log > 0 and not self.speaks),
            idle_steps=self.idle,
            frames=self.log - self.vocoded if self.speaks else 0,
            chunk=chunk_frames(self.num_chunks, RAMP) if self.speaks else 0,
            ended=self.ended,
        )


@dataclass(slots=True, eq=False)
class Toy:
    policy: Policy
    num_pages: int
    slots: int = 8
    tokens: int = 64
    vocodes: int = 8
    step_s: float = inf
    cost: StepCost = COST
    overlaps: bool = False  # the codec runs concurrently to the steps
    step: int = 0
    now_s: float = 0.0
    alive: list[Timeline] = field(default_factory=list)
    done: list[Timeline] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    starts: Starts = field(default_factory=Starts)

    def submit(self, timeline: Timeline) -> None:
        timeline.key = len(self.alive) + len(self.done)
        timeline.submitted_s = self.now_s
        self.alive.append(timeline)

    def run(self, timelines: Iterable[Timeline], limit: int) -> None:
        """Submit each life in its step and go on until all are done; fails after `limit` steps."""
        pending = sorted(timelines, key=lambda timeline: timeline.arrives)
        while pending or self.alive:
            assert self.step < limit, f"{len(self.alive)} not done after {limit} steps"
            while pending and pending[0].arrives <= self.step:
                self.submit(pending.pop(0))
            self.advance()

    def churn(self, steps: int, next_timeline: Callable[[int], Timeline]) -> None:
        """Run so many steps; each sequence that ends is replaced by another."""
        for _ in range(steps):
            ended = len(self.done)
            self.advance()
            for number in range(ended, len(self.done)):
                self.submit(next_timeline(number))

    def advance(self) -> None:
        """Plan a step, check it, run it."""
        by_key = {timeline.key: timeline for timeline in self.alive}
        running = [timeline for timeline in self.alive if timeline.running]
        free = self.num_pages - sum(timeline.pages for timeline in self.alive)
        assert free >= 0
        budgets = Budgets(
            PAGE,
            free,
            self.tokens,
            2,
            self.slots,
            self.vocodes,
            self.step_s,
            self.cost,
            self.starts.per_step,
            self.starts.steps_since,
            self.overlaps,
        )
        views = {timeline.key: timeline.view(self.step, self.now_s) for timeline in self.alive}
        waiting = [views[timeline.key] for timeline in self.alive if not timeline.running]
        plan = self.policy.plan([views[timeline.key] for timeline in running], waiting, budgets)
        check_plan(plan, [views[timeline.key] for timeline in running], waiting, budgets)
        for key in plan.preempt:
            timeline = by_key[key]
            timeline.running, timeline.pages, timeline.computed = False, 0, 0
            timeline.num_preempted += 1
        for key in plan.admit:
            by_key[key].running = True
        self.starts.step(len(plan.admit))
        self.now_s += self.cost.seconds(plan.work) + 1e-4
        self._execute(plan, by_key)
        parts = {key for key, *_ in (*plan.encode, *plan.forward, *plan.vocode)}
        for timeline in self.alive:
            timeline.idle = 0 if timeline.key in parts else timeline.idle + 1
            if timeline.running:
                timeline.longest_idle_running = max(timeline.longest_idle_running, timeline.idle)
            else:
                timeline.longest_idle_waiting = max(timeline.longest_idle_waiting, timeline.idle)
        self.done += [timeline for timeline in self.alive if timeline.done]
        self.alive = [timeline for timeline in self.alive if not timeline.done]
        self.plans.append(plan)
        self.step += 1

    def _execute(self, plan: Plan, by_key: dict[int, Timeline]) -> None:
        for key, count in plan.encode:
            by_key[key].encodes -= count
        for key, _, stop in plan.forward:
            timeline = by_key[key]
            timeline.pages = max(timeline.pages, pages_for(stop, PAGE))
            timeline.computed = stop
            if stop == timeline.prompt + timeline.log:
                timeline.log += 1
        for key, frames in plan.vocode:
            timeline = by_key[key]
            timeline.vocoded += frames
            timeline.num_chunks += 1
            timeline.chunks.append((self.now_s, frames * FRAME_S))
            assert timeline.vocoded <= timeline.log
        for timeline in by_key.values():
            if timeline.ended:
                timeline.pages = 0


def check_plan(plan: Plan, running: list[View], waiting: list[View], budgets: Budgets) -> None:
    """Fail if a plan breaks what all policies promise."""
    by_key = {view.key: view for view in (*running, *waiting)}
    runs, waits = {view.key for view in running}, {view.key for view in waiting}
    encodes, vocodes = dict(plan.encode), dict(plan.vocode)
    rows = {row.key: row for row in plan.forward}
    for part in (plan.preempt, plan.admit, plan.encode, plan.forward, plan.vocode):
        assert len({entry if isinstance(entry, int) else entry[0] for entry in part}) == len(part)
    assert set(plan.preempt) <= runs
    assert set(plan.admit) <= waits
    parts = encodes.keys() | rows.keys() | vocodes.keys()
    assert parts <= (runs - set(plan.preempt)) | set(plan.admit), "a part without pages or place"
    assert set(plan.admit) <= encodes.keys() | rows.keys(), "admitted to do nothing"

    assert sum(row.stop - row.start for row in plan.forward) <= max(0, budgets.tokens)
    assert sum(encodes.values()) <= budgets.encodes
    assert len(vocodes) <= budgets.vocodes
    new = [
        max(0, pages_for(row.stop, budgets.page_size) - by_key[row.key].num_pages)
        for row in plan.forward
    ]
    freed = sum(by_key[key].num_pages - by_key[key].num_shared for key in plan.preempt)
    assert sum(new) <= budgets.free_pages + freed
    room = max(budgets.running, len(running))
    assert len(running) - len(plan.preempt) + len(plan.admit) <= room

    for key in plan.preempt:
        ended = by_key[key].progress.ended
        assert not ended, "nothing is won by preempting it, and its audio is still to be made"
    for key, count in plan.encode:
        assert 0 < count <= by_key[key].progress.num_encodes
    for row in plan.forward:
        progress = by_key[row.key].progress
        assert row.start == progress.num_computed < row.stop <= progress.num_positions
        assert encodes.get(row.key, 0) == progress.num_encodes, "ran before its audio was encoded"
        assert not progress.encode_only
        assert not progress.ended
        emits = row.stop == progress.num_positions
        assert not (progress.backpressured and emits), "a held sequence would emit"
    for key, frames in plan.vocode:
        progress, audio = by_key[key].progress, by_key[key].audio
        emits = key in rows and rows[key].stop == progress.num_positions
        there = audio.frames + emits
        wanted = min(there, audio.chunk) if progress.ended else audio.chunk
        assert 0 < frames == wanted <= there, "chunks are a function of the log"
