"""Two plans compared: nothing differs between equals, and each difference is counted once."""

from __future__ import annotations

import pytest

from benchmarks.simulation.shadow import Difference, add, compare
from izwi.scheduler.policy import Forward, Plan

BASE = Plan(
    preempt=(1,),
    admit=(7,),
    encode=((7, 2),),
    forward=(Forward(2, 8, 9), Forward(3, 4, 5), Forward(7, 0, 20)),
    vocode=((2, 4), (7, 1)),
)


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({}, Difference()),
        ({"preempt": (4, 5)}, Difference(preempt=3)),
        ({"admit": ()}, Difference(admit=1)),
        ({"encode": ((7, 1), (8, 1))}, Difference(encode=2)),
        ({"forward": BASE.forward[:2]}, Difference(forward=1)),
        ({"forward": BASE.forward[::-1]}, Difference(order=2)),
        ({"forward": (*BASE.forward[:2], Forward(7, 0, 10))}, Difference(stretch=1)),
        ({"forward": (Forward(9, 0, 1), *BASE.forward[1:])}, Difference(forward=2)),
        ({"vocode": ((2, 2),)}, Difference(vocode=2)),
        ({"vocode": BASE.vocode[::-1]}, Difference()),
    ],
)
def test_each_difference_is_counted(changed: dict[str, object], difference: Difference) -> None:
    other = BASE._replace(**changed)
    assert compare(BASE, other) == compare(other, BASE) == difference
    assert bool(difference) == any(difference)


def test_differences_of_steps_add_up() -> None:
    total = add(compare(BASE, Plan()), Difference(admit=2, order=1))
    assert total == Difference(preempt=1, admit=3, encode=1, forward=3, vocode=2, order=1)
