"""Equal shares of the device for callers. Pure: no clock, no tensor.

* Waiting requests start in the order of start-time fair queueing over their callers: a request
  waits for at most one more of each other caller, however many those have (`take_turns`).
* Idle work (`Request.is_idle_work`) has no share: it runs while there is no other request, in
  any model, and gives way when one arrives (`DeviceShares.is_busy`).
* Of each caller, the request that arrived first is never limited, nor are those of live sessions,
  which have a priority. The others are *excess*, and so is everything in a model that one caller
  alone uses while another has fewer requests elsewhere. While several callers have work, excess
  work of models that write text takes at most half as much time as all other work
  (`DeviceShares`). Speech has playback clocks instead: a stream that is ahead of its listener gives
  way.

With one caller nothing here runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq
from operator import attrgetter

from msgspec.structs import replace

from izwi.request.sequence import Sequence
from izwi.scheduler.cost import StepCost, StepWork
from izwi.scheduler.plan import EXCESS_SHARE, Budgets, Plan, Rank, View

# What others leave unused is saved for excess work up to this many seconds.
_MAX_CREDIT_S = 0.02
# Steps that a model skips for others that run nothing.
_MAX_SKIPPED = 4
# Steps after callers contended in which prompts stay short, because the other one may come back.
_REMEMBERED_STEPS = 64
# Predicted time of such steps; they always have one prompt, or one piece of audio.
_SHORT_PROMPTS_S = 0.025

_key = attrgetter("key")


class DeviceShares:
    """The callers of all models of one engine, and how much excess work may run.

    Attributes:
        credit_s: Seconds of excess work that may run beyond the time of other work; negative if
            more has run, because a piece of audio is not divided.
    """

    def __init__(self) -> None:
        self.credit_s = 0.0
        self._live = Counter[str]()
        self._busy: dict[int, Collection[str]] = {}
        self._num_skipped = 0
        self._steps_since = _REMEMBERED_STEPS  # of one model, since callers contended

    @property
    def is_busy(self) -> bool:
        """Whether there are requests other than idle work, running or not."""
        return bool(self._live)

    @property
    def is_shared(self) -> bool:
        """Whether more than one caller has requests, or had them not long ago."""
        return len(self._live) > 1 or self.is_recent

    @property
    def is_recent(self) -> bool:
        """Whether callers contend, or did not long ago."""
        return self._steps_since < _REMEMBERED_STEPS

    def add_request(self, caller: str) -> None:
        """Count one more request that may run."""
        self._live[caller] += 1

    def remove_request(self, caller: str) -> None:
        """Count one request less."""
        self._live[caller] -= 1
        if not self._live[caller]:
            del self._live[caller]

    def contends(self, model: int, callers: Collection[str]) -> bool:
        """Whether several callers have work that can run now.

        Args:
            model: Identifies the model that is planned.
            callers: Those with work that can run in this model.
        """
        self._busy[model] = callers
        busy = {caller for some in self._busy.values() for caller in some}
        contends = len(busy & self._live.keys()) > 1
        self._steps_since = 0 if contends else self._steps_since + 1
        return contends

    def is_lightest(self, caller: str) -> bool:
        """Whether no caller with work that can run has fewer requests."""
        busy = {other for some in self._busy.values() for other in some} & self._live.keys()
        return self._live[caller] <= min(self._live[other] for other in busy)

    def ran(self, others_s: float, excess_s: float) -> None:
        """Count the predicted time of a step: of excess work, and of all other work."""
        self.credit_s = min(self.credit_s + EXCESS_SHARE * others_s - excess_s, _MAX_CREDIT_S)
        if others_s:
            self._num_skipped = 0

    def skips(self) -> bool:
        """Whether a model that has excess work alone runs no step, because of a debt.

        A debt is forgotten if the others do not use the device, although they could.
        """
        if self.credit_s <= 0.0 and self._num_skipped >= _MAX_SKIPPED:
            self.credit_s = _MAX_CREDIT_S
        self._num_skipped = self._num_skipped + 1 if self.credit_s <= 0.0 else 0
        return self.credit_s <= 0.0

    def ran_alone(self, seconds: float) -> None:
        """Count a step in which callers did not contend: one that arrives now waits for it."""
        self.credit_s = -seconds


def take_turns(
    heads: Seq[tuple[View, Sequence]],
    is_new: Callable[[Sequence], bool],
    rank: Rank,
    order: Callable[[list[Sequence]], list[int]],
) -> list[tuple[View, Sequence]]:
    """Let new requests start in the order of their callers' turns.

    They exchange their slack: together they are as urgent as before.

    Args:
        heads: Waiting requests.
        is_new: Whether nothing of a request has run, and its listener waits for nothing else.
        rank: Order of the requests without turns.
        order: The order of turns, as indices; see `WaitingQueue.turns`.
    """
    new = sorted([pair for pair in heads if is_new(pair[1])], key=lambda pair: rank(pair[0]))
    slacks_s = sorted([view.urgency.slack_s for view, _ in new])
    turns = [new[place] for place in order([sequence for _, sequence in new])]
    taken = [
        (replace(view, urgency=replace(view.urgency, slack_s=slack_s, turn=turn)), sequence)
        for turn, (slack_s, (view, sequence)) in enumerate(zip(slacks_s, turns, strict=True), 1)
    ]
    return [*(pair for pair in heads if not is_new(pair[1])), *taken]


class ModelShares:
    """The callers of one model.

    Args:
        device: Those of all models.
        limits: Whether excess work of the model is limited: it writes text.
    """

    def __init__(self, device: DeviceShares, limits: bool):
        self._device, self._limits = device, limits
        self._counted: dict[int, str] = {}  # by key
        self._excess: set[int] | None = None  # keys, in the step that is planned

    @property
    def is_busy(self) -> bool:
        """Whether any model has requests other than idle work."""
        return self._device.is_busy

    def enter(self, key: int, caller: str) -> None:
        """Count a request that may run, by the key of its views. Idle work is not counted."""
        if key not in self._counted:
            self._counted[key] = caller
            self._device.add_request(caller)

    def leave(self, key: int) -> None:
        """Stop counting a request that has ended, or is paused by its caller."""
        caller = self._counted.pop(key, None)
        if caller is not None:
            self._device.remove_request(caller)

    def mark(
        self, running: list[View], waiting: list[View], budgets: Budgets
    ) -> tuple[list[View], list[View], Budgets]:
        """Mark excess work, and limit it, if several callers have work.

        Args:
            running: Running sequences.
            waiting: Waiting sequences, the next to start first.
            budgets: The budgets of the step.
        """
        self._excess = None
        if not self._device.is_busy:  # what arrives now waits for the step of idle work
            return running, waiting, budgets._replace(prompts_s=_SHORT_PROMPTS_S)
        if not self._device.is_shared:
            return running, waiting, budgets
        of = self._counted
        # (idle work whose last audio is made is not counted)
        counted = [view for view in (*running, *waiting) if view.key in of]
        can_run = [view for view in counted if not view.progress.backpressured]
        contends = self._device.contends(id(self), {of[view.key] for view in can_run})
        first = {v.key for v in (*running, *waiting) if v.urgency.priority > 0}
        if self._limits and self._device.is_recent and not first:
            budgets = budgets._replace(prompts_s=_SHORT_PROMPTS_S)
        if not contends:
            return running, waiting, budgets
        if not self._limits:
            self._excess = set()
            return running, waiting, budgets
        callers = {of[view.key] for view in can_run}
        if len(callers) == 1 and not first and not self._device.is_lightest(*callers):
            # all of it delays the models of other callers, so it has steps only while it has credit
            self._excess = set(of)
            return ([], [], budgets) if self._device.skips() else (running, waiting, budgets)
        earliest: dict[str, int] = {}
        for view in (*sorted(running, key=_key), *waiting):
            if view.key in of:
                earliest.setdefault(of[view.key], view.key)
        first.update(earliest.values())
        self._excess = {v.key for v in (*running, *waiting) if v.key not in first}
        running, waiting = self._marked(running), self._marked(waiting)
        return running, waiting, budgets._replace(excess_s=self._device.credit_s)

    def settle(self, plan: Plan, cost: StepCost) -> None:
        """Count the predicted time of the planned step."""
        if self._excess is not None:
            self._device.ran(*seconds_of(plan, self._excess, cost))
        elif self._device.is_recent:
            self._device.ran_alone(cost.seconds(plan.work))

    def _marked(self, views: list[View]) -> list[View]:
        excess = self._excess or ()
        return [
            replace(view, urgency=replace(view.urgency, excess=True))
            if view.key in excess
            else view
            for view in views
        ]


def seconds_of(plan: Plan, excess: Collection[int], cost: StepCost) -> tuple[float, float]:
    """Return the predicted time of a step's other work and of its excess work, in seconds.

    Args:
        plan: The step.
        excess: Keys of the requests that are excess.
        cost: Prices.
    """
    rows = [stop - start for key, start, stop in plan.forward if key in excess]
    encodes = sum([count for key, count in plan.encode if key in excess])
    work = StepWork.from_rows(rows, encodes, ())
    shared_s = cost.base_s if rows and len(rows) < len(plan.forward) else 0.0  # others pay it
    excess_s = cost.seconds(work) - shared_s
    return cost.seconds(plan.work) - excess_s, excess_s
