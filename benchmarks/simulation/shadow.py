"""Compare the plans of two policies for the same steps, of which one is executed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from izwi.scheduler.plan import Budgets, Plan, Policy, View

Key = TypeVar("Key", bound=Hashable)


class Difference(NamedTuple):
    """Differences of two plans, as counts. All are zero if both do the same in the same order.

    Attributes:
        preempt: Sequences that only one of them preempts.
        admit: Sequences that only one of them admits.
        encode: Sequences of which they encode different numbers of pieces.
        forward: Sequences that have a row in only one of them.
        stretch: Sequences with a row in both, over different positions.
        vocode: Sequences of which they decode different numbers of frames to audio.
        order: Sequences with a row in both at a different index among these.
    """

    preempt: int = 0
    admit: int = 0
    encode: int = 0
    forward: int = 0
    stretch: int = 0
    vocode: int = 0
    order: int = 0

    def __bool__(self) -> bool:
        return any(self)


_SAME = Difference()


@dataclass(slots=True)
class Shadow:
    """Plans each step by a second policy, too, and counts how its plans differ.

    Attributes:
        policy: The second policy.
        steps: Steps that were planned twice.
        difference: The sum of their differences.
    """

    policy: Policy
    steps: int = 0
    difference: Difference = _SAME

    def beside(self, executed: Policy) -> Policy:
        """Return a policy that plans as `executed`, and counts."""

        def plan(running: Sequence[View], waiting: Sequence[View], budgets: Budgets) -> Plan:
            ours = executed.plan(running, waiting, budgets)
            self.steps += 1
            theirs = self.policy.plan(running, waiting, budgets)
            self.difference = add(self.difference, compare(ours, theirs))
            return ours

        return executed._replace(plan=plan)


def compare(ours: Plan, theirs: Plan) -> Difference:
    """Count the differences between two plans; symmetric."""
    our_rows = {row.key: row for row in ours.forward}
    their_rows = {row.key: row for row in theirs.forward}
    our_order = [key for key in our_rows if key in their_rows]
    their_order = [key for key in their_rows if key in our_rows]
    return Difference(
        preempt=_num_apart(ours.preempt, theirs.preempt),
        admit=_num_apart(ours.admit, theirs.admit),
        encode=_num_unequal(ours.encode, theirs.encode),
        forward=_num_apart(our_rows, their_rows),
        stretch=sum(our_rows[key] != their_rows[key] for key in our_order),
        vocode=_num_unequal(ours.vocode, theirs.vocode),
        order=sum(a != b for a, b in zip(our_order, their_order, strict=True)),
    )


def add(one: Difference, other: Difference) -> Difference:
    """Sum the counts of two steps."""
    return Difference(*[a + b for a, b in zip(one, other, strict=True)])


def _num_apart(ours: Iterable[Key], theirs: Iterable[Key]) -> int:
    return len(set(ours) ^ set(theirs))


def _num_unequal(ours: Iterable[tuple[int, int]], theirs: Iterable[tuple[int, int]]) -> int:
    mine, other = dict(ours), dict(theirs)
    return sum(mine.get(key) != other.get(key) for key in mine.keys() | other.keys())
