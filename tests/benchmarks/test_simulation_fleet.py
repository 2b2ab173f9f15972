"""Simulated fleets: the router's placement is used, logs move, and a region's loss is counted."""

from __future__ import annotations

import pytest

from benchmarks.simulation.arrivals import Arrival, Playback, percentile_ms
from benchmarks.simulation.batching_delay import STREAMS
from benchmarks.simulation.device import Script, SimulatedModel, SimulatedPrompt
from benchmarks.simulation.fleet import Failure, Fleet, FleetShape
from benchmarks.simulation.machine import Machine
from benchmarks.simulation.scale import Demand, Prices, bill, tiny_machine, workload
from izwi.config import EngineConfig
from izwi.request.request import Request
from izwi.router.options import RouterOptions
from izwi.scheduler.cost import StepCost

FRAME_S, FRAMES = 0.08, 20
MACHINE = Machine(StepCost(0.008, 4e-4, 5e-5, 0.0, 0.005, 0.002))
MODEL = SimulatedModel(FRAME_S, num_codebooks=1, num_pages=4096)
LEAST_LOAD = RouterOptions("least_load")


def crowd(count: int, num_shared: int = 4) -> tuple[list[Arrival], dict[str, Script]]:
    requests = [
        Request(
            f"{number}",
            "paper",
            SimulatedPrompt(100, num_shared, seed=number),
            max_entries=10 * FRAMES,
            stop_ids=(1,),
        )
        for number in range(count)
    ]
    arrivals = [Arrival(0.001 * at, request) for at, request in enumerate(requests)]
    return arrivals, {request.request_id: [(0,)] * FRAMES for request in requests}


def play(
    shape: FleetShape, count: int, failures: tuple[Failure, ...] = (), num_shared: int = 4
) -> tuple[Fleet, list[Playback]]:
    arrivals, scripts = crowd(count, num_shared)
    fleet = Fleet(shape, MODEL, MACHINE, EngineConfig(), scripts)
    return fleet, fleet.run(arrivals, failures)


def served(fleet: Fleet, region: int) -> list[int]:
    return [one.num_sent for one in fleet.regions[region]]


def test_streams_of_a_dead_engine_go_on_where_their_logs_end() -> None:
    shape = FleetShape((2,), LEAST_LOAD, notice_s=0.3)
    _, calm = play(shape, 6)
    fleet, played = play(shape, 6, (Failure(0.1, 0, 1),))
    assert fleet.num_moved == 3
    # no frame twice, none lost
    assert [one.audio_s for one in played] == pytest.approx([FRAMES * FRAME_S] * 6)
    assert all(one.ended_s is not None for one in played)
    late = [one for one in played if any(at_s > 0.1 for at_s, _ in one.chunks)]
    nexts = [min(at_s for at_s, _ in one.chunks if at_s > 0.1) for one in late]
    assert sum(at_s > 0.4 for at_s in nexts) == 3
    assert [one.chunks[0] for one in played[::2]] == [one.chunks[0] for one in calm[::2]]


def test_no_step_of_a_dead_engine_is_heard() -> None:
    shape = FleetShape((1,), LEAST_LOAD)
    _, (played,) = play(shape, 1, (Failure(0.001, 0, 0),))
    assert played.chunks == []
    assert played.refused


def test_the_router_policy_chooses_the_engine() -> None:
    spread, _ = play(FleetShape((2,), LEAST_LOAD), 4)
    first, _ = play(FleetShape((2,), RouterOptions("fcfs")), 4)
    together, _ = play(FleetShape((2,), RouterOptions("prefix")), 2, num_shared=100)
    assert served(spread, 0) == [2, 2]
    assert served(first, 0) == [4, 0]
    assert sorted(served(together, 0)) == [0, 2]


def test_limits_of_the_router_refuse() -> None:
    _, played = play(FleetShape((2,), RouterOptions("least_load", max_in_flight_each=1)), 5)
    assert [one.refused for one in played] == [False, False, True, True, True]


@pytest.mark.slow
def test_an_overload_of_four_times_keeps_first_audio_near_that_of_idle_engines() -> None:
    """Two engines with the embedded model's prices serve 4.8 streams a second; 19 come."""
    arrivals, scripts = workload(19.0, 400)

    def p95_ms(router: RouterOptions, arrivals: list[Arrival]) -> tuple[float, float]:
        """Return the p95 of the first 40 that were accepted, and of the second half."""
        fleet = Fleet(FleetShape((2,), router), STREAMS, tiny_machine(), EngineConfig(), scripts)
        played = fleet.run(arrivals)
        accepted = [one for one in played if not one.refused]
        assert len(accepted) >= 60
        assert all(one.audio_s == pytest.approx(52 * FRAME_S) for one in accepted)
        firsts_s = [one.first_audio_s for one in accepted[:40]]
        times_s = [one.first_audio_s for one in played[len(played) // 2 :] if one.chunks]
        return percentile_ms(firsts_s, 95) or 0.0, percentile_ms(times_s, 95) or 0.0

    _, idle = p95_ms(LEAST_LOAD, [Arrival(200 * one.at_s, one.request) for one in arrivals[:60]])
    assert p95_ms(LEAST_LOAD, arrivals)[1] > 5 * idle
    limited = RouterOptions("least_load", max_wait_s=1.3 * idle / 1e3)
    while_it_learns, later = p95_ms(limited, arrivals)
    assert while_it_learns <= 1.6 * idle
    assert later <= 1.5 * idle


def test_arrivals_of_a_lost_region_take_the_longer_way() -> None:
    shape = FleetShape((1, 1, 1), LEAST_LOAD, round_trip_s=0.2)
    fleet, played = play(shape, 12, (Failure(0.0045, 0),))
    _, calm = play(shape, 12)
    assert fleet.num_cut_off == 2
    assert [one.ended_s is None for one in played] == [n in (0, 3) for n in range(12)]
    # homes are 0, 1, 2, 0, ...: 6 and 9 go elsewhere, one to each region that is left
    assert all(played[at].first_audio_s > 0.2 for at in (6, 9))
    assert all(calm[at].first_audio_s < 0.2 for at in (6, 9))
    assert served(fleet, 1) == served(fleet, 2) == [5]


def test_a_bill_counts_what_the_other_regions_must_carry() -> None:
    prices = Prices(
        streams_per_gpu=250.0,
        request_cpu_ms=2.0,
        api_server_load=0.5,
        bytes_per_s={"pcm": 48_000.0, "opus": 8_000.0},
    )
    row = bill(Demand(10_000, audio_s=4.0, num_regions=3), prices)
    assert row["requests_per_s"] == 2500.0
    assert row["gpus_none_lost"] == 40
    assert row["gpus"] == 60  # 20 in each region: two carry 10,000
    assert row["api_servers"] == 15  # 10 at half load in two regions, so 5 in each of three
    assert row["pcm_gbit_per_s"] == 3.84
    assert row["opus_gbit_per_s_a_region"] == 0.32
    assert row["lost_with_a_region"] == 3334
