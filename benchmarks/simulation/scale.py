"""What do 10,000 and 1,000,000 streams cost, with one region lost? On paper; see docs/scale.md.

First simulated fleets are compared with measured replicas. Then a fleet of three regions loses an
engine, and a region. The bill multiplies measured figures: results of other benchmarks, read from
`benchmarks/results/`. The router's time is measured here, because it grows with the engines.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from benchmarks.measure import RESULTS, write_result
from benchmarks.simulation.arrivals import Arrival, Playback, percentile_ms
from benchmarks.simulation.batching_delay import MACHINE as GPU
from benchmarks.simulation.batching_delay import STREAMS
from benchmarks.simulation.device import Script, SimulatedPrompt
from benchmarks.simulation.fleet import Failure, Fleet, FleetShape
from benchmarks.simulation.machine import Machine
from izwi.audio.compressed import CODECS
from izwi.config import EngineConfig
from izwi.request.request import Request
from izwi.router.options import RouterOptions
from izwi.router.placement import Placement, ReplicaLoad
from izwi.scheduler.cost import StepCost

FRAMES, FRAME_S = 52, 0.08
PCM_BYTES_PER_S = 24_000 * 2.0  # 16 bits at 24 kHz
NUM_REGIONS = 3
# Assumed: from one coast to the other and back; from a death until streams are sent elsewhere; the
# share of its time for which an API server may work.
ROUND_TRIP_S, NOTICE_S, API_SERVER_LOAD = 0.07, 0.01, 0.5
_ROUTER_ROUNDS, _ROUTER_REQUESTS = 5, 100


@dataclass(frozen=True, slots=True)
class Demand:
    """Streams that play at the same time, their length in seconds, and the regions."""

    streams: int
    audio_s: float
    num_regions: int


@dataclass(frozen=True, slots=True)
class Prices:
    """What one stream takes.

    Attributes:
        streams_per_gpu: Streams playing in real time that one GPU serves.
        request_cpu_ms: Processor time of an API server for a request.
        api_server_load: Share of its time for which an API server may work.
        bytes_per_s: Of one stream, by format.
    """

    streams_per_gpu: float
    request_cpu_ms: float
    api_server_load: float
    bytes_per_s: Mapping[str, float]


def bill(demand: Demand, prices: Prices) -> dict[str, Any]:
    """Return what a demand takes if all regions but one can carry it."""
    left, per_s = demand.num_regions - 1, demand.streams / demand.audio_s
    gpus = demand.streams / prices.streams_per_gpu
    servers = per_s * prices.request_cpu_ms / 1e3 / prices.api_server_load
    row: dict[str, Any] = {
        "streams": demand.streams,
        "requests_per_s": round(per_s, 1),
        "gpus_none_lost": ceil(gpus),
        "gpus": demand.num_regions * ceil(gpus / left),
        "api_servers": demand.num_regions * ceil(servers / left),
        "lost_with_a_region": ceil(demand.streams / demand.num_regions),
    }
    for name, each in prices.bytes_per_s.items():
        gbit = demand.streams * each * 8 / 1e9
        row[f"{name}_gbit_per_s"] = round(gbit, 3)
        row[f"{name}_gbit_per_s_a_region"] = round(gbit / left, 3)
    return row


# -- simulated ----------------------------------------------------------------------------------
def workload(per_s: float, count: int) -> tuple[list[Arrival], dict[str, Script]]:
    """Draw Poisson arrivals of equal streams at the times of `benchmarks.serving.replicas`."""
    times, prompts, at_s = random.Random(1), random.Random(2), 0.0
    arrivals, scripts = [], dict[str, Script]()
    for number in range(count):
        at_s += times.expovariate(per_s)
        prompt = SimulatedPrompt(prompts.randint(15, 30), num_shared=9, seed=number)
        request = Request(
            f"{number}", "paper", prompt, max_entries=FRAMES, stop_ids=(1,), streams=True
        )
        scripts[request.request_id] = [(0,)] * FRAMES
        arrivals.append(Arrival(at_s, request))
    return arrivals, scripts


def simulate(
    shape: FleetShape,
    machine: Machine,
    per_s: float,
    count: int,
    failures: Sequence[Failure] = (),
) -> tuple[Fleet, list[Playback]]:
    """Play a number of streams on a fleet."""
    arrivals, scripts = workload(per_s, count)
    fleet = Fleet(shape, STREAMS, machine, EngineConfig(), scripts)
    return fleet, fleet.run(arrivals, failures)


def check(name: str, machine: Machine) -> list[dict[str, Any]]:
    """Compare with the open loops of a measured file; deviations are predicted over measured."""
    rows = []
    for measured in _read(name)["rows"]:
        if measured["measured"] != "open":
            continue
        num_replicas = measured["replicas"]
        shape = FleetShape((num_replicas,), notice_s=NOTICE_S)
        count = measured["accepted"] + measured["refused"]
        _, played = simulate(shape, machine, measured["per_s"], count)
        first_s = [one.first_audio_s for one in played if one.chunks]
        row = {
            "check": name,
            "replicas": num_replicas,
            "per_s": measured["per_s"],
            "refused_measured": measured["refused"],
            "refused_predicted": sum(one.refused for one in played),
        }
        for percent in (50, 95):
            real, paper = measured[f"ttfa_ms_p{percent}"], percentile_ms(first_s, percent)
            row |= {f"p{percent}_ms_measured": real, f"p{percent}_ms_predicted": paper}
            row[f"p{percent}_deviation"] = round(paper / real - 1, 3) if paper else None
        rows.append(row)
    return rows


def losses(per_gpu_s: float, num_each: int, seconds: float) -> list[dict[str, Any]]:
    """Lose nothing, an engine, and a region, halfway; return what listeners have from then on.

    Before a region is lost, each engine gets two thirds of `per_gpu_s`; after it, all of it.
    """
    per_s = per_gpu_s * num_each * (NUM_REGIONS - 1)
    shape = FleetShape((num_each,) * NUM_REGIONS, round_trip_s=ROUND_TRIP_S, notice_s=NOTICE_S)
    half_s, rows = seconds / 2, []
    for lost, failures in {
        "nothing": [],
        "an engine": [Failure(half_s, 0, 0)],
        "a region": [Failure(half_s, 0)],
    }.items():
        fleet, played = simulate(shape, GPU, per_s, round(per_s * seconds), failures)
        after = [one for one in played if one.submitted_s >= half_s]
        first_s = [one.first_audio_s for one in after if one.chunks]
        rows.append(
            {
                "lost": lost,
                "regions": NUM_REGIONS,
                "gpus_a_region": num_each,
                "per_s": per_s,
                "p50_ms": percentile_ms(first_s, 50),
                "p95_ms": percentile_ms(first_s, 95),
                "moved": fleet.num_moved,
                "cut_off": fleet.num_cut_off,
                "refused": sum(one.refused for one in played),
                "with_gap": sum(one.gaps_s > 0 for one in played if one.ended_s is not None),
            }
        )
    return rows


# -- measured -----------------------------------------------------------------------------------
def router_ms(num_replicas: int) -> float:
    """Return the processor time in which a request of 64 positions is placed and ends, in ms."""
    loads = [ReplicaLoad(place, accepts=True) for place in range(num_replicas)]
    placement, times_ms = Placement(RouterOptions(), loads), []
    for turn in range(_ROUTER_ROUNDS):
        requests = [
            Request(f"{turn}-{at}", "paper", SimulatedPrompt(64, num_shared=32, seed=at))
            for at in range(_ROUTER_REQUESTS)
        ]
        began_s = time.process_time()
        for request in requests:
            place = placement.choose([request])
            placement.end(place, placement.place_request(place, request))
        times_ms.append((time.process_time() - began_s) / _ROUTER_REQUESTS * 1e3)
    return statistics.median(times_ms)


def request_cpu_ms() -> dict[str, float]:
    """Return the parts of an API server's time for a request of 9 chunks, as measured, in ms."""
    (server,) = (
        row["all_ms"]
        for row in _read("api_server_cost")["rows"]
        if row["keyed"] and row["chunks"] == 9
    )
    alone = (row for row in _read("tracing_cost")["rows"] if "chunks" in row)
    traces = {row["traces"]: row for row in alone}
    (router,) = (
        row["router_cpu_ms"]
        for row in _read("replicas_tts-1.7b")["rows"]
        if row["measured"] == "router" and row["replicas"] == 8 and row["prompt_positions"] == 64
    )
    return {"server": server, "traces": traces["1 in 10"]["more_ms"], "router_of_8": router}


def _read(name: str) -> dict[str, Any]:
    known: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return known


def tiny_machine() -> Machine:
    """Return the machine of `simulate.json`: two CPU cores with the embedded model."""
    prices = _read("simulate")["machine"]
    compute, host = (
        StepCost(**{name: ms / 1e3 for name, ms in prices[part].items()})
        for part in ("compute_ms", "host_ms")
    )
    wake_s, reach_s = prices["wake_ms"] / 1e3, prices["reach_ms"] / 1e3
    return Machine(compute, host, wake_s=wake_s, reach_s=reach_s)


def main() -> None:
    """Compare, simulate, and write the bills."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-gpu", type=float, default=60.0, help="requests a second and GPU")
    parser.add_argument("--gpus", type=int, default=2, help="of each simulated region")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each loss; 0: none")
    parser.add_argument("--tiny", action="store_true", help="compare the embedded model, too")
    parser.add_argument("--routers", type=int, nargs="*", default=[], help="engines of each")
    options = parser.parse_args()
    parts = request_cpu_ms()
    audio_s = FRAMES * FRAME_S
    prices = Prices(
        streams_per_gpu=options.per_gpu * audio_s,
        request_cpu_ms=sum(parts.values()),
        api_server_load=API_SERVER_LOAD,
        bytes_per_s={"pcm": PCM_BYTES_PER_S, "opus": CODECS["opus"].bit_rate / 8},
    )
    rows: list[dict[str, Any]] = [
        *check("replicas_tts-1.7b", GPU),
        *(check("replicas_izwi-tiny-tts", tiny_machine()) if options.tiny else ()),
        *(losses(options.per_gpu, options.gpus, options.seconds) if options.seconds else ()),
        *(bill(Demand(streams, audio_s, NUM_REGIONS), prices) for streams in (10_000, 1_000_000)),
        *({"router_of": count, "cpu_ms": round(router_ms(count), 4)} for count in options.routers),
    ]
    write_result(
        "scale",
        rows,
        request_cpu_ms=parts,
        streams_per_gpu=prices.streams_per_gpu,
        assumed={
            "round_trip_s": ROUND_TRIP_S,
            "notice_s": NOTICE_S,
            "api_server_load": API_SERVER_LOAD,
            "regions": NUM_REGIONS,
        },
    )


if __name__ == "__main__":
    main()
