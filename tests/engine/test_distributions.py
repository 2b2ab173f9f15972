"""Distributions among an engine's figures: buckets, sums, and what they say of a run."""

from __future__ import annotations

import itertools

import pytest

from izwi.metrics import DISTRIBUTIONS, LOAD_KEYS, Observed
from tests.engine.toy import toy_request
from tests.engine.world import World


@pytest.mark.parametrize(
    ("value", "bucket"), [(0, "1"), (1, "1"), (1.5, "2"), (256, "256"), (257, "+Inf")]
)
def test_a_value_is_in_the_bucket_whose_bound_it_does_not_exceed(value, bucket) -> None:
    batches = Observed("batch")
    batches.add(value)
    buckets, total = DISTRIBUTIONS["batch"].cumulative("batch", batches.figures)
    assert total == value
    counts = dict(buckets)
    assert next(bound for bound, count in buckets if count) == f"{float(bucket)}".replace(
        "inf", "+Inf"
    )
    assert counts["+Inf"] == 1


def test_bounds_rise_and_no_two_figures_share_a_name() -> None:
    assert len(set(LOAD_KEYS)) == len(LOAD_KEYS)
    for distribution in DISTRIBUTIONS.values():
        assert all(a < b for a, b in itertools.pairwise(distribution.bounds))
        assert len(distribution.bounds) <= 15, "each is a series of each model"


def test_a_run_counts_each_step_with_its_rows_and_the_time_of_each_phase() -> None:
    world = World()
    for number in range(3):
        world.submit(toy_request(str(number), 5, seed=number, frames=12))
    world.run()
    load = world.engine.load["toy"]
    assert load["batch_sum"] == load["rows"] > 12
    batches = DISTRIBUTIONS["batch"].cumulative("batch", load)[0]
    assert dict(batches)["+Inf"] <= load["steps"]
    assert dict(batches)["+Inf"] > dict(batches)["2.0"], "three ran together"
    for phase in ("schedule", "launch", "wait", "process"):
        buckets, total = DISTRIBUTIONS[phase].cumulative(phase, load)
        assert total == load[f"{phase}_seconds"]
        assert dict(buckets)["+Inf"] > 0
    slack = dict(DISTRIBUTIONS["slack"].cumulative("slack", load)[0])
    assert slack["+Inf"] == 3 * 3, "of chunks of 1, 2, 4 and 5 frames all but the first"
