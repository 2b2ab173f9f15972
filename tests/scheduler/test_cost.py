"""The cost model finds the prices of a step, through noise and outliers, and follows changes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.scheduler.cost import SAMPLE_WINDOW, OnlineCost, StepCost, StepWork, fit
from tests.examples import examples

TRUE = StepCost(0.010, 4e-5, 6e-6, 0.008, 0.003, 2e-4, 0.005, 0.004)

prices = st.floats(0.0, 0.05).map(lambda price: round(price, 6))
costs = st.builds(StepCost, *[prices] * len(StepCost.__slots__))
counts = st.builds(
    StepWork,
    decode_rows=st.integers(0, 64),
    prefill_tokens=st.integers(0, 512),
    encodes=st.integers(0, 8),
    vocode_calls=st.integers(0, 4),
    vocode_frames=st.integers(0, 200),
)


def random_work(rng: random.Random) -> StepWork:
    calls = rng.choice([0, 1, 1, 2])
    prefill = rng.choice([0, 0, 0, 20, 300])
    frames = calls * rng.randint(1, 40)
    return StepWork(rng.randint(0, 64), prefill, rng.choice([0, 0, 0, 1, 3]), calls, frames)


def error_of(cost: StepCost, truth: StepCost, rng: random.Random) -> float:
    """Mean error over steps that do something, as a share of the mean step."""
    works = [work for _ in range(200) if any(work := random_work(rng))]
    wrong = sum(abs(cost.seconds(work) - truth.seconds(work)) for work in works)
    return wrong / sum(truth.seconds(work) for work in works)


def test_a_step_is_the_sum_of_its_parts() -> None:
    assert StepCost().seconds(StepWork(5, 5, 5, 5, 5)) == 0.0
    assert TRUE.seconds(StepWork()) == 0.0
    assert TRUE.seconds(StepWork(vocode_calls=1, vocode_frames=10)) == pytest.approx(0.005)
    assert TRUE.seconds(StepWork(decode_rows=10)) == pytest.approx(0.0104)
    assert TRUE.seconds(StepWork(10, 100)) == pytest.approx(0.0104 + 0.005 + 0.0006)
    assert TRUE.seconds(StepWork(prefill_tokens=100)) > TRUE.seconds(StepWork(prefill_tokens=10))
    assert TRUE.seconds(StepWork(encodes=2)) == pytest.approx(0.004 + 0.016)


@examples(25)
@given(cost=costs, seed=st.integers(0, 1000))
def test_exact_steps_give_the_exact_prices(cost: StepCost, seed: int) -> None:
    rng = random.Random(seed)
    works = [random_work(rng) for _ in range(200)]
    found = fit((work, cost.seconds(work)) for work in works)
    for work in works:
        assert found.seconds(work) == pytest.approx(cost.seconds(work), rel=0.02, abs=1e-4)


@examples(60)
@given(samples=st.lists(st.tuples(counts, st.floats(0.0, 10.0)), max_size=20))
def test_no_price_is_negative_whatever_was_measured(
    samples: list[tuple[StepWork, float]],
) -> None:
    online = OnlineCost()
    for work, seconds in samples:
        online.add(work, seconds)
    for cost in (fit(samples), online.cost):
        assert min(getattr(cost, name) for name in StepCost.__slots__) >= 0.0


@pytest.mark.parametrize("seed", range(4))
def test_outliers_do_not_ruin_it(seed: int) -> None:
    rng = random.Random(seed)
    online, samples = OnlineCost(), []
    for step in range(400):
        work = random_work(rng)
        seconds = TRUE.seconds(work) * rng.gauss(1.0, 0.03) * (10 if step % 20 == 7 else 1)
        online.add(work, seconds)
        samples.append((work, seconds))
        if step + 1 in (32, 128, 400):
            assert error_of(online.cost, TRUE, rng) < 0.08
    assert error_of(fit(samples), TRUE, rng) < 0.03


def test_it_follows_a_machine_that_became_slower() -> None:
    rng = random.Random(5)
    slow = StepCost(*(3 * getattr(TRUE, name) for name in StepCost.__slots__))
    online = OnlineCost()
    for truth in (TRUE, slow):
        for _ in range(3 * SAMPLE_WINDOW):
            work = random_work(rng)
            online.add(work, truth.seconds(work) * rng.gauss(1.0, 0.02))
        assert error_of(online.cost, truth, rng) < 0.08


def test_parts_that_do_not_run_keep_their_price() -> None:
    online = OnlineCost(TRUE)
    for rows in range(300):
        work = StepWork(decode_rows=1 + rows % 50)
        online.add(work, 2 * TRUE.seconds(work))
    assert online.cost.encode_s == TRUE.encode_s
    assert online.cost.seconds(StepWork(decode_rows=30)) == pytest.approx(0.0224, rel=0.05)


def test_steps_that_are_all_alike_are_still_predicted() -> None:
    online = OnlineCost()
    for _ in range(100):
        online.add(StepWork(decode_rows=64), 0.0125)
    assert online.cost.seconds(StepWork(decode_rows=64)) == pytest.approx(0.0125, rel=1e-3)


def test_cost_per_prompt_call_is_separated_from_cost_per_position() -> None:
    rng = random.Random(3)
    online = OnlineCost()
    for _ in range(4 * SAMPLE_WINDOW):
        count = rng.choice([0, 0, 0, 1, 1, 2, 3])
        work = StepWork(rng.randint(40, 64), sum(rng.randint(15, 30) for _ in range(count)))
        online.add(work, TRUE.seconds(work) * rng.gauss(1.0, 0.02))
    assert online.cost.prefill_call_s == pytest.approx(TRUE.prefill_call_s, rel=0.15)


def test_prompts_of_one_length_are_priced_by_position() -> None:
    online = OnlineCost()
    for step in range(200):
        work = StepWork(8, 100 * (step % 2))
        online.add(work, TRUE.seconds(work))
    assert online.cost.prefill_call_s < 0.1 * TRUE.prefill_call_s, "nobody waits on a guess"
    assert online.cost.seconds(StepWork(8, 100)) == pytest.approx(0.0159, rel=0.02)


def steps_of(rng: random.Random, count: int) -> list[StepWork]:
    """Steps of an engine: decodes mostly, now and then prompts, seldom audio."""
    works = []
    for _ in range(count):
        prefill, encodes = rng.choice([(0, 0)] * 12 + [(30, 0), (200, 0), (60, 1)])
        works.append(StepWork(rng.choice([1, 4, 16]), prefill, encodes))
    return works


@examples(40)
@given(
    seed=st.integers(0, 10_000),
    outliers=st.dictionaries(st.integers(150, 299), st.floats(3.0, 1e4), max_size=6),
)
def test_single_outliers_cost_nothing_after_them(seed: int, outliers: dict[int, float]) -> None:
    """No step is predicted longer by more than two normal steps, from the very next one on.

    Not by one: which part of a long prompt's price is that of a call is told by few samples, and
    leaving out one of them moves it. The wait that follows ends with the device, whatever is
    predicted (tests/engine).
    """
    rng = random.Random(seed)
    disturbed, calm = OnlineCost(), OnlineCost()
    works = steps_of(rng, 400)
    latest: dict[tuple[bool, bool], list[bool]] = {}  # whether the latest of a kind were outliers
    for step, work in enumerate(works):
        seconds = TRUE.seconds(work) * rng.uniform(0.97, 1.03)
        before = latest.setdefault((work.prefill_tokens > 0, work.encodes > 0), [])
        # two are no run of three, be it of steps of one kind alone, which are seldom
        factor = outliers.get(step, 1.0) if not all(before[-2:]) or len(before) < 2 else 1.0
        before.append(factor != 1.0)
        disturbed.add(work, seconds * factor)
        calm.add(work, seconds)
        if step >= 200:
            for next_work in {*works[step + 1 : step + 9]}:
                before_s = calm.cost.seconds(next_work)
                assert disturbed.cost.seconds(next_work) <= before_s + 2 * TRUE.seconds(next_work)


@examples(25)
@given(burst=st.integers(1, 60), factor=st.floats(3.0, 1e3), encodes=st.integers(1, 4))
def test_a_burst_of_slow_steps_is_forgotten_after_four_normal_ones(
    burst: int, factor: float, encodes: int
) -> None:
    """As encoders whose kernels are compiled for each new length."""
    rng = random.Random(burst)
    online = OnlineCost()
    audio = StepWork(0, 60, encodes)
    for step in range(4 * burst):
        work = audio if step % 4 == 0 else StepWork(1)
        online.add(work, TRUE.seconds(work) * (factor if work is audio else 1.0))
    for _ in range(4):  # the first may come before any price is learnt
        online.add(audio, TRUE.seconds(audio) * rng.uniform(0.97, 1.03))
        for _ in range(5):
            online.add(StepWork(1), TRUE.seconds(StepWork(1)))
    assert online.cost.seconds(audio) < 1.5 * TRUE.seconds(audio)
    assert online.cost.seconds(StepWork(1)) < 1.5 * TRUE.seconds(StepWork(1))


def test_two_slow_steps_are_no_change_and_three_are() -> None:
    online = OnlineCost()
    for _ in range(100):
        online.add(StepWork(8), 0.01)
    for count in (1, 2, 3):
        online.add(StepWork(8), 0.05)
        assert (online.cost.seconds(StepWork(8)) > 0.04) == (count == 3)
