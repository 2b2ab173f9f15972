"""Two policies with a fixed order: first come first served, and by priority. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from izwi.scheduler.plan import Budgets, Plan, Rank, View
from izwi.scheduler.step_builder import StepBuilder, is_decode, is_stuck

# Idle steps after which a sequence gets the highest priority.
AGED_STEPS = 200


def rank_fcfs(view: View) -> tuple[float, ...]:
    """Order by arrival, or by the turns of several callers."""
    return (view.urgency.turn, view.key)


def rank_priority(view: View) -> tuple[float, ...]:
    """Order by priority, then arrival; sequences idle for `AGED_STEPS` come first."""
    aged = view.urgency.idle_steps >= AGED_STEPS
    return (not aged, 0 if aged else -view.urgency.priority, view.urgency.turn, view.key)


def plan_fcfs(running: Sequence[View], waiting: Sequence[View], budgets: Budgets) -> Plan:
    """Fill one step: decodes first, then prompts in flight, then new ones in arrival order.

    A playing voice must not starve: a missed step is audible, a late first token is not. When pages
    run out, the latest arrivals give theirs back and are rebuilt from their logs later. The
    earliest one always advances, so the loop never stalls.
    """
    builder = StepBuilder(running, budgets, worth=rank_fcfs)
    _fill(builder, running, waiting, level=lambda _: (), victims=lambda _: _stuck(running))
    return builder.build_plan(vocode_order=rank_fcfs)


def plan_priority(running: Sequence[View], waiting: Sequence[View], budgets: Budgets) -> Plan:
    """Fill one step by priority; within one priority like `plan_fcfs`.

    A new request takes the pages and places of running sequences of lower priority, the lowest and
    latest first. Age moves a sequence forward, but lets it take no pages: otherwise two that do not
    fit together would take them in turns, and neither would end.
    """

    def worth(view: View) -> tuple[float, ...]:
        return (-view.urgency.priority, view.key)

    def level(view: View) -> tuple[float, ...]:
        return rank_priority(view)[:-2]

    def victims(new_request: View) -> Iterator[View]:
        yield from _stuck(running)
        lower = [view for view in running if view.urgency.priority < new_request.urgency.priority]
        yield from sorted(lower, key=worth, reverse=True)

    builder = StepBuilder(running, budgets, worth)
    _fill(builder, running, waiting, level, victims)
    return builder.build_plan(vocode_order=rank_priority)


def _fill(
    builder: StepBuilder,
    running: Sequence[View],
    waiting: Sequence[View],
    level: Rank,
    victims: Callable[[View], Iterable[View]],
) -> None:
    """Admit by level; within one decodes, then prompts, then new requests by arrival."""
    for view in running:
        builder.set_aside(view)
    line = [(False, level(v), 0 if is_decode(v) else 1, 0, v.key, v) for v in running]
    # new requests that may not emit come after all others
    line += [(v.progress.backpressured, level(v), 2, v.urgency.turn, v.key, v) for v in waiting]
    blocked = False
    for backpressured, _, kind, _, _, view in sorted(line):
        if kind < 2:
            builder.take_share(view)
        elif not blocked:  # none overtakes one that has no room yet
            admitted = builder.admit(view, () if backpressured else victims(view))
            blocked = not admitted and not backpressured


def _stuck(running: Sequence[View]) -> Iterator[View]:
    """Return running sequences that can run nothing, the latest first."""
    yield from sorted(filter(is_stuck, running), key=lambda view: -view.key)
