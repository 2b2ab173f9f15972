"""Callers share a device: however many requests one has, another one's are delayed by a bound."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulation.device import Device, Script, SimulatedModel, SimulatedPrompt
from benchmarks.simulation.machine import Machine
from izwi.config import EngineConfig
from izwi.errors import Overloaded
from izwi.request.request import Request
from izwi.scheduler.callers import DeviceShares
from izwi.scheduler.cost import OnlineCost, StepCost
from izwi.scheduler.policy import POLICIES
from tests.examples import examples

# about what the embedded transcriber takes on two cores, and a published one on a GPU
CPU = Machine(StepCost(0.008, 4e-4, 1e-4, 0.03), StepCost(2e-4, 5e-5))
GPU = Machine(
    StepCost(0.0025, 3e-5, 1e-5, 0.004, prefill_call_s=0.003, encode_call_s=0.003),
    StepCost(2e-4, 1e-5),
)
# The other caller's answers have this many tokens.
LIGHT_TOKENS = 10


def request(number: int, caller: str, positions: int, encodes: int, **more: object) -> Request:
    prompt = SimulatedPrompt(positions, num_shared=8, seed=number, encode_inputs=(None,) * encodes)
    return Request(
        *(f"{number}", "paper", prompt),
        max_entries=1000,
        stop_ids=(1,),
        caller=caller,
        **more,  # type: ignore[arg-type]
    )


class Models:
    """Models on one device, stepped in turns as by the engine."""

    def __init__(self, num_models: int = 1, machine: Machine = CPU, pages: int = 20_000, **config):
        shares = DeviceShares()
        self.scripts: dict[str, Script] = {}
        self.now_s, self.num_steps, self.ended = 0.0, 0, dict[str, float]()
        parts = (SimulatedModel(None, 1, pages), machine, EngineConfig(**config), self.scripts, 0)
        self.devices = [Device(*parts, shares) for _ in range(num_models)]
        price = replace(machine.compute, base_s=machine.compute.base_s + machine.host.base_s)
        for device in self.devices:  # as after some requests
            device.worker.scheduler.cost = OnlineCost(price)

    def submit(self, number: int, caller: str, model: int = 0, tokens: int = 60, **more) -> None:
        self.scripts[f"{number}"] = [(0,)] * tokens
        positions, encodes = more.pop("positions", 400), more.pop("encodes", 1)
        device = self.devices[model]
        device.runner.now_s = self.now_s
        device.submit(request(number, caller, positions, encodes, **more))

    def step(self) -> None:
        for device in self.devices:
            if device.has_work:
                for chunk in device.step(self.now_s):
                    if chunk.reason is not None:
                        self.ended[chunk.request_id] = device.runner.now_s
                self.now_s = device.runner.now_s
        self.num_steps += 1

    def run(self, number: int | None = None, most_steps: int = 5000) -> None:
        """Step until a request has ended, or all have."""
        for _ in range(most_steps):
            if f"{number}" in self.ended or not any(d.has_work for d in self.devices):
                return
            self.step()
        raise AssertionError("it does not end")


def light_times(models: Models, count: int, **more: object) -> list[float]:
    """Seconds of requests of the light caller, one after the other."""
    taken_s = []
    for number in range(100_000, 100_000 + count):
        until_s = models.now_s + 0.2
        while models.now_s < until_s and any(device.has_work for device in models.devices):
            models.step()
        began_s = models.now_s
        models.submit(number, "light", tokens=LIGHT_TOKENS, **more)
        models.run(number)
        taken_s.append(models.ended[f"{number}"] - began_s)
    return sorted(taken_s)


def beside(machine: Machine, num_heavy: int, **more: object) -> list[float]:
    models = Models(1 + int(more.get("model", 0)), machine)
    for number in range(num_heavy):
        models.submit(number, "heavy")
    return light_times(models, 8, **more)


SHORT = {"positions": 30, "encodes": 1}


@pytest.mark.parametrize("machine", [CPU, GPU], ids=["cpu", "gpu"])
def test_any_number_of_transcriptions_makes_a_short_one_at_most_three_times_slower(machine) -> None:
    alone_s = beside(machine, 0, **SHORT)
    median_s = {number: beside(machine, number, **SHORT)[4] for number in (24, 80, 300)}
    assert all(taken_s <= 3.0 * alone_s[4] for taken_s in median_s.values()), (alone_s, median_s)


@pytest.mark.parametrize("machine", [CPU, GPU], ids=["cpu", "gpu"])
def test_transcriptions_make_a_chat_of_another_model_at_most_three_times_slower(machine) -> None:
    chat = {"positions": 30, "encodes": 0, "model": 1}
    alone_s = beside(machine, 0, **chat)
    for number in (24, 200):
        taken_s = beside(machine, number, **chat)
        assert taken_s[4] <= 3.0 * alone_s[4], number


def test_a_busy_caller_is_slowed_down_by_no_more_than_the_work_of_the_other() -> None:
    whole_s = {}
    for callers in ("heavy", "light"):
        models = Models()
        for number in range(100):
            models.submit(number, "heavy")
        for number in range(100_000, 100_020):
            models.submit(number, callers, tokens=LIGHT_TOKENS, **SHORT)
        models.run()
        whole_s[callers] = models.now_s
    # prompts do not wait for each other's batch, so rows run in smaller batches
    assert whole_s["light"] <= 1.25 * whole_s["heavy"]


@examples(15)
@given(
    policy=st.sampled_from(list(POLICIES)),
    num_heavy=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    slots=st.integers(2, 16),
    pages=st.sampled_from([64, 200, 20_000]),
    arrives=st.integers(0, 40),
)
def test_a_request_waits_for_a_bound_that_does_not_depend_on_how_much_others_have_queued(
    policy, num_heavy, slots, pages, arrives
) -> None:
    models = Models(1, CPU, pages, policy=policy, max_running=slots, max_wait_s=1e6)
    for caller, count in enumerate(num_heavy):
        for number in range(count):
            models.submit(1000 * caller + number, f"heavy {caller}", tokens=20)
    for _ in range(arrives):
        models.step()
    before = models.num_steps
    models.submit(100_000, "light", tokens=LIGHT_TOKENS, **SHORT)
    models.run(100_000)
    # What runs may end first (one after the other if pages are short), and then one more request
    # of each other caller; each takes its tokens and some steps for its prompt.
    most = (slots + len(num_heavy) + 1) * (20 + 12)
    assert models.num_steps - before <= most
    models.run()
    assert len(models.ended) == sum(num_heavy) + 1


def test_without_a_second_caller_every_step_is_as_before() -> None:
    def steps(callers: tuple[str, str]) -> list[tuple[str, float]]:
        models = Models()
        for number in range(40):
            models.submit(number, callers[number % 2], tokens=20)
        models.run()
        return list(models.ended.items())

    assert steps(("", "")) == steps(("one", "one"))
    assert steps(("", "")) != steps(("one", "two"))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_full_queue_refuses_the_caller_who_fills_it_alone(policy) -> None:
    models = Models(policy=policy, max_waiting=8)
    for number in range(8):
        models.submit(number, "heavy")
    with pytest.raises(Overloaded, match="8 requests"):
        models.submit(8, "heavy")
    for number in range(4):
        models.submit(100 + number, "light")
    with pytest.raises(Overloaded):
        models.submit(110, "light")


def test_a_caller_who_cannot_run_stops_no_other_one() -> None:
    """Its reader is behind, so that there is nothing to share the device with."""
    whole_s = {}
    for backpressured in (False, True):
        models = Models()
        models.submit(0, "stalled", tokens=5, **SHORT)
        models.step()
        scheduler = models.devices[0].worker.scheduler
        (stalled,) = scheduler._running.values()
        if not backpressured:
            models.run()
        stalled.status.backpressured = backpressured
        began_s = models.now_s
        for number in range(1, 60):
            models.submit(number, "heavy")
        models.run(59)
        whole_s[backpressured] = models.now_s - began_s
    assert whole_s[True] <= 1.1 * whole_s[False]


def test_a_new_caller_takes_the_place_of_excess_work_which_goes_on_later() -> None:
    models = Models(max_running=8)
    for number in range(20):
        models.submit(number, "heavy", tokens=300)
    for _ in range(20):
        models.step()
    before = models.num_steps
    models.submit(100_000, "light", tokens=LIGHT_TOKENS, **SHORT)
    models.run(100_000)
    assert models.num_steps - before <= LIGHT_TOKENS + 10, "no answer of 300 tokens had to end"
    scheduler = models.devices[0].worker.scheduler
    assert scheduler.counts.preempted == 1
    assert 0 in scheduler._running, "the earliest request of a caller keeps its place"
    models.run()
    assert len(models.ended) == 21


def test_new_caller_waits_for_one_long_step_of_another_at_most() -> None:
    models = Models()
    for number in range(200):
        models.submit(number, "heavy")
    shares = models.devices[0].worker.scheduler._shares._device
    models.step()
    assert shares.credit_s == 0.0, "nothing is counted before a second caller comes"
    models.submit(100_000, "light", tokens=2, **SHORT)
    models.run(100_000)
    began_s = models.now_s
    models.step()
    assert shares.credit_s == pytest.approx(-(models.now_s - began_s), rel=0.3)


def test_a_debt_is_forgotten_if_the_others_run_nothing() -> None:
    shares = DeviceShares()
    shares.ran(0.0, 1.0)
    assert [shares.skips() for _ in range(5)] == [True] * 4 + [False]
    shares.ran(0.0, 1.0)
    for _ in range(9):  # they do use the device
        assert shares.skips()
        shares.ran(0.01, 0.0)


def test_live_sessions_are_never_excess() -> None:
    """Requests with a priority run as if there were one caller, however many theirs has."""
    num_steps = {}
    for caller in ("live", "other"):
        models = Models(2)
        for number in range(20):
            models.submit(number, "live", positions=30, encodes=0, priority=1, tokens=10)
        models.submit(100, caller, model=1, positions=30, encodes=0, tokens=200)
        models.submit(101, caller, positions=30, encodes=0, tokens=200)
        models.run(19)
        assert len(models.ended) == 20
        num_steps[caller] = models.num_steps
    assert num_steps["other"] == num_steps["live"]


def test_callers_are_counted_until_their_requests_end_or_pause() -> None:
    models = Models()
    shares = models.devices[0].worker.scheduler._shares._device
    for number in range(3):
        models.submit(number, "one")
    models.submit(3, "two", tokens=3)
    models.step()
    assert dict(shares._live) == {"one": 3, "two": 1}
    scheduler = models.devices[0].worker.scheduler
    first = next(iter(scheduler._running.values()))
    scheduler.pause(first, models.now_s)
    scheduler.pause(first, models.now_s)
    assert dict(shares._live) == {"one": 2, "two": 1}
    scheduler.resume(first, models.now_s)
    assert dict(shares._live) == {"one": 3, "two": 1}
    scheduler.pause(first, models.now_s)
    models.devices[0].worker.finish_request(first, "aborted")  # type: ignore[arg-type]
    models.run()
    assert dict(shares._live) == {}
    assert scheduler._waiting.callers.num_callers == 0
