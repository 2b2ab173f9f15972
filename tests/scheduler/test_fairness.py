"""Long texts leave room for short requests: simulated, and as a bound for any mix."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulation.arrivals import Arrival, percentile_ms, poisson
from benchmarks.simulation.device import Device, Script, SimulatedModel, SimulatedPrompt
from benchmarks.simulation.long_texts import Scene, Waited
from benchmarks.simulation.machine import Machine
from izwi.config import EngineConfig
from izwi.request.request import Request
from izwi.scheduler.cost import StepCost
from izwi.scheduler.ordered import AGED_STEPS
from izwi.scheduler.plan import Budgets, View
from izwi.scheduler.policy import POLICIES
from tests.examples import examples
from tests.scheduler.toy import COST, PAGE
from tests.scheduler.views import changed, view_of

FRAME_S = 0.08
# about what the embedded voice takes on two cores
CPU = Machine(StepCost(0.008, 4e-4, 5e-5, 0.0, 0.005, 0.002), StepCost(2e-4, 5e-5))
# where prompts are dear and rows are not, so that new requests wait to form a larger batch
GPU = Machine(
    StepCost(0.0025, 3e-5, 1e-5, 0.0, 6e-4, 1e-5, prefill_call_s=0.003), StepCost(2e-4, 1e-5)
)
AHEAD = 8  # pieces of a text that the engine has at a time
SPEND = Budgets(PAGE, 200, 64, 2, 4, 4, step_s=0.02, cost=COST)


def request(number: int, prompt: int = 24, **more: object) -> Request:
    return Request(
        *(f"{number}", "paper", SimulatedPrompt(prompt, num_shared=8, seed=number)),
        max_entries=1000,
        stop_ids=(1,),
        **more,  # type: ignore[arg-type]
    )


def long_text(first: int, pieces: int, **more: object) -> list[Request]:
    return [
        request(number, listener=f"text-{first}", continues=number > first, **more)
        for number in range(first, first + pieces)
    ]


def device(
    frames: dict[str, int], pages: int = 4096, machine: Machine = CPU, **config: object
) -> Device:
    scripts: dict[str, Script] = {name: [(0,)] * count for name, count in frames.items()}
    model = SimulatedModel(FRAME_S, 1, pages)
    return Device(model, machine, EngineConfig(**config), scripts, 0)  # type: ignore[arg-type]


def beside(
    num_long: int, pieces: int = 70, rate: float = 1.0, machine: Machine = CPU
) -> tuple[list[Waited], float]:
    """Short requests beside this many long texts; and the audio of those, in seconds."""
    rng = random.Random(num_long)
    texts = [long_text(10_000 * (number + 1), pieces) for number in range(num_long)]
    frames = {piece.request_id: rng.randint(45, 60) for text in texts for piece in text}
    times = islice(poisson(rate, seed=3), 100)
    arrivals = [Arrival(5.0 + at_s, request(number)) for number, at_s in enumerate(times)]
    frames |= {one.request.request_id: rng.randint(40, 56) for one in arrivals}
    scene = Scene(device(frames, machine=machine), FRAME_S, texts, AHEAD)
    return scene.run(arrivals, most_steps=20_000), scene.audio_s


@pytest.mark.slow
def test_eight_long_texts_cost_a_short_request_no_more_than_half_its_time() -> None:
    first_s = {}
    for num_long in (0, 8):
        waited, audio_s = beside(num_long)
        first_s[num_long] = percentile_ms([one.played.first_audio_s for one in waited], 95)
        assert sum(one.played.gaps_s > 0 for one in waited) == 0
    assert first_s[0] is not None
    assert first_s[8] is not None
    assert first_s[8] <= 1.5 * first_s[0]
    assert audio_s > 0.75 * 8 * 70 * 52 * FRAME_S, "and the machine did not stand still"


def test_far_ahead_pieces_do_not_delay_short_requests() -> None:
    waited, audio_s = beside(4, pieces=400, rate=20.0, machine=GPU)
    assert audio_s > 1000
    steps = [one.steps for one in waited if one.steps is not None]
    assert len(steps) == len(waited)
    assert sum(steps) / len(steps) < 1.5


@pytest.mark.parametrize("policy", POLICIES)
@examples(25)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    frames=st.integers(2, 70),
    slots=st.integers(1, 12),
    arrives_s=st.floats(0.0, 20.0),
    priority=st.integers(-1, 1),
    pages=st.sampled_from([12, 40, 4096]),
)
def test_a_short_request_waits_for_no_more_than_what_is_ahead_of_its_texts(
    policy: str,
    lengths: list[int],
    frames: int,
    slots: int,
    arrives_s: float,
    priority: int,
    pages: int,
) -> None:
    texts = [
        long_text(1000 * (number + 1), length, priority=priority)
        for number, length in enumerate(lengths)
    ]
    said = {piece.request_id: frames for text in texts for piece in text} | {"0": 5}
    paper = device(said, pages, policy=policy, max_running=slots, max_wait_s=1e6)
    waited = Scene(paper, FRAME_S, texts, AHEAD).run([Arrival(arrives_s, request(0))], 50_000)
    # whatever the lengths of the texts: only their first pieces can be before it
    before = sum(min(length, AHEAD) for length in lengths)
    at_once = min(slots, max(1, pages // 8))  # a piece has at most 6 pages, and needs one more
    most = 60 + (before // at_once + 2) * 2 * (frames + 5)
    (short,) = waited
    assert short.steps is not None
    assert short.steps <= most + (AGED_STEPS if priority > 0 else 0)


def stream(key: int, slack_s: float, **more: object) -> View:
    """A stream that decodes, and holds its pages."""
    return view_of(
        *(key, 9, 8),
        num_pages=3,
        slack_s=slack_s,
        started=True,
        frames=2,
        chunk=12,
        **more,  # type: ignore[arg-type]
    )


def plan(running: list[View], waiting: list[View], budgets: Budgets = SPEND):  # type: ignore[no-untyped-def]
    return POLICIES["deadline"].plan(running, waiting, budgets)


def test_the_stream_that_is_furthest_ahead_makes_way_and_only_where_it_must() -> None:
    new = view_of(9, 9, slack_s=0.1, chunk=1)
    running = [stream(1, 30.0), stream(2, 60.0), stream(3, 4.9), stream(4, 0.1)]
    made = plan(running, [new])
    assert (made.preempt, made.admit) == ((2,), (9,))
    assert plan(running, [new], SPEND._replace(running=5)).preempt == ()
    near = [changed(view, slack_s=4.9) for view in running]
    assert plan(near, [new]).admit == ()
    background = [*running[:3], stream(4, float("inf")), stream(5, float("inf"))]
    assert plan(background, [new], SPEND._replace(running=5)).preempt == (5,)
    # one that can wait takes nobody's place
    assert plan(running, [changed(new, slack_s=3.0, started=True)]).admit == ()


def test_streams_that_are_far_ahead_make_steps_no_longer_than_background_work() -> None:
    cost = replace(COST, decode_row_s=5e-4)
    budgets = SPEND._replace(running=200, tokens=200, step_s=0.011, cost=cost)
    far = [stream(key, 20.0 + key) for key in range(60)]
    background = [stream(key, float("inf")) for key in range(60)]
    rows = len(plan(far, [], budgets).forward)
    assert rows == len(plan(background, [], budgets).forward)
    assert 11 <= rows <= 13  # 10 ms and half a millisecond a row, of 16.5 ms
    near = [stream(100 + key, 3.0) for key in range(20)]
    both = {row.key for row in plan([*far, *near], [], budgets).forward}
    assert both == {view.key for view in near}, "beside others they wait"
    nearer = [changed(view, slack_s=4.0) for view in far]
    assert len(plan([*near, *nearer], [], budgets).forward) > 60
