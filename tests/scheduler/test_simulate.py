"""Simulated streams are scheduled by the engine's own code and take the time of real steps."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from msgspec import structs

from benchmarks.simulation.arrivals import Arrival, Playback, poisson, summary
from benchmarks.simulation.cluster import Cluster
from benchmarks.simulation.device import Script, SimulatedModel, SimulatedPrompt
from benchmarks.simulation.machine import KINDS, Machine
from benchmarks.simulation.policies import Scene, simulate
from benchmarks.simulation.step_log import Step
from izwi.config import EngineConfig
from izwi.request.request import Request
from izwi.scheduler.cost import StepCost, StepWork
from izwi.scheduler.policy import POLICIES

FRAME_S = 0.08
COMPUTE = StepCost(0.008, 4e-4, 5e-5, 0.0, 0.005, 0.002)
HOST = StepCost(base_s=2e-4, decode_row_s=5e-5)
MACHINE = Machine(COMPUTE, HOST, wake_s=1e-4, reach_s=3e-4)
MODEL = SimulatedModel(FRAME_S, num_codebooks=1, num_pages=4096)


def crowd(
    count: int, frames: int, prompt: int = 20, first: int = 0, streams: bool = True
) -> tuple[list[Request], dict[str, Script]]:
    requests = [
        Request(
            f"{number}",
            "paper",
            SimulatedPrompt(prompt, num_shared=4, seed=number),
            max_entries=10 * frames,
            stop_ids=(1,),
            streams=streams,
        )
        for number in range(first, first + count)
    ]
    return requests, {request.request_id: [(0,)] * frames for request in requests}


def test_a_stream_alone_has_audio_after_one_step() -> None:
    (request,), scripts = crowd(1, frames=7)
    config = EngineConfig(chunk_ramp=(1, 2, 4))
    (played,) = Cluster(1, MODEL, MACHINE, config, scripts).run([Arrival(5.0, request)])
    compute_s = COMPUTE.seconds(StepWork(prefill_tokens=20, vocode_calls=1, vocode_frames=1))
    host_s = HOST.seconds(StepWork(prefill_tokens=20))
    expected_s = MACHINE.wake_s + compute_s + host_s + MACHINE.reach_s
    assert played.first_audio_s == pytest.approx(expected_s)
    assert [audio_s / FRAME_S for _, audio_s in played.chunks] == pytest.approx([1, 2, 4])
    assert played.ended_s is not None
    assert played.gaps_s == 0.0


def test_a_request_waits_for_the_step_in_flight() -> None:
    requests, scripts = crowd(2, frames=1, prompt=1000)
    first_s = COMPUTE.seconds(StepWork(prefill_tokens=1000, vocode_calls=1, vocode_frames=1))
    arrivals = [Arrival(0.0, requests[0]), Arrival(0.01, requests[1])]
    one, two = Cluster(1, MODEL, MACHINE, EngineConfig(), scripts).run(arrivals)
    assert one.first_audio_s == pytest.approx(
        MACHINE.wake_s + first_s + HOST.base_s + MACHINE.reach_s
    )
    assert two.first_audio_s > one.first_audio_s - 0.01 + first_s / 2


def test_requests_go_where_the_fewest_are_alive() -> None:
    requests, scripts = crowd(2, frames=20)
    arrivals = [Arrival(0.0, request) for request in requests]
    apart = Cluster(2, MODEL, MACHINE, EngineConfig(), scripts).run(arrivals)
    assert apart[0].first_audio_s == apart[1].first_audio_s
    alone = Cluster(1, MODEL, MACHINE, EngineConfig(), scripts).run(arrivals[:1])
    assert apart[1].chunks == alone[0].chunks


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_gets_all_its_output_and_returns_its_pages(policy: str) -> None:
    streams, scripts = crowd(30, frames=40)
    long, more = crowd(10, frames=150, first=30, streams=False)
    requests = random.Random(0).sample([*streams, *long], 40)
    arrivals = [Arrival(at_s, one) for one, at_s in zip(requests, poisson(8.0, 1), strict=False)]
    # room for a few at a time, so that some are preempted and rebuilt from their log
    tight = replace(MODEL, num_pages=40)
    cluster = Cluster(1, tight, MACHINE, EngineConfig(policy=policy), {**scripts, **more})
    played = cluster.run(arrivals)
    assert [one.request for one in played] == requests
    for one in played:
        frames = 40 if one.request.streams else 150
        assert one.audio_s == pytest.approx(frames * FRAME_S)
        assert one.ended_s is not None
    (device,) = cluster.devices
    assert device.worker.scheduler.memory.num_available == 40
    assert device.worker.scheduler.counts.preempted > 0


def test_a_full_queue_refuses() -> None:
    requests, scripts = crowd(6, frames=5)
    config = EngineConfig(max_waiting=4)
    played = Cluster(1, MODEL, MACHINE, config, scripts).run(
        [Arrival(0.0, one) for one in requests]
    )
    assert [one.refused for one in played] == [False] * 4 + [True] * 2
    assert [bool(one.chunks) for one in played] == [True] * 4 + [False] * 2


def test_prices_and_variance_come_from_measured_steps() -> None:
    rng = random.Random(0)
    steps = []
    for number in range(400):
        frames = rng.choice([0, 0, 1, 4, 12])
        work = StepWork(rng.randint(1, 9), 20 * rng.randint(0, 2), 0, int(frames > 0), frames)
        slow = 1.5 if number % 10 == 0 else 1.0
        compute_s = slow * COMPUTE.seconds(work)
        steps.append(Step(work, compute_s, compute_s + slow * HOST.seconds(work), float(number)))
    machine = Machine.from_steps(steps)
    assert machine.compute.base_s == pytest.approx(COMPUTE.base_s, rel=0.05)
    assert machine.compute.vocode_frame_s == pytest.approx(COMPUTE.vocode_frame_s, rel=0.05)
    rows = sorted(machine.factors[False, False, False])
    assert rows[len(rows) // 2] == pytest.approx(1.0, abs=0.05)
    assert rows[-1] == pytest.approx(1.5, abs=0.1)


def test_slow_steps_are_drawn_as_they_were_measured() -> None:
    (request,), scripts = crowd(1, frames=200)
    uneven = replace(MACHINE, factors=dict.fromkeys(KINDS, (1.0, 1.0, 1.0, 4.0)))

    def last_s(machine: Machine, seed: int) -> float:
        (played,) = Cluster(1, MODEL, machine, EngineConfig(), scripts, seed).run(
            [Arrival(0.0, request)]
        )
        assert played.ended_s is not None
        return played.ended_s

    assert last_s(uneven, 1) == last_s(uneven, 1)
    assert last_s(uneven, 1) == pytest.approx(1.75 * last_s(MACHINE, 1), rel=0.1)


def test_deadline_is_for_listeners() -> None:
    rows = {
        policy: simulate(Scene(policy, 1.8, 4, 240, MACHINE, MODEL))
        for policy in ("deadline", "fcfs")
    }
    assert rows["deadline"]["streams"] == rows["fcfs"]["streams"] > 150
    assert rows["deadline"]["ttfa_p99_ms"] < rows["fcfs"]["ttfa_p99_ms"]
    assert rows["deadline"]["underrun_share"] <= rows["fcfs"]["underrun_share"]


def test_summary_counts_listeners_alone() -> None:
    (request,), _ = crowd(1, frames=1)
    gap = Playback(request, 1.0, [(1.1, 0.08), (1.3, 0.08)])
    silent = Playback(request, 1.0)
    unheard = Playback(structs.replace(request, streams=False), 1.0, [(9.0, 0.08)])
    figures = summary([gap, unheard])
    assert (figures["streams"], figures["ttfa_p50_ms"], figures["underrun_share"]) == (1, 100.0, 1)
    assert summary([gap, silent])["ttfa_p99_ms"] is None
