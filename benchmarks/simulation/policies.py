"""Simulate time to first audio and gaps of many streams on many devices, by policy.

The engine's own scheduling code runs on simulated devices with step costs of this machine. First
the machine is measured. Then the same arrivals are run on the real engine and in simulation, and
compared. Then each policy gets thousands of streams on many devices at increasing rates. Some
requests are long and have no playback deadline.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from msgspec.structs import replace

from benchmarks.measure import arguments, write_result
from benchmarks.pictures import Curve, Panel, draw
from benchmarks.simulation.arrivals import Arrival, Playback, poisson, summary
from benchmarks.simulation.calibrate import Calibration, calibrate, start
from benchmarks.simulation.cluster import Cluster
from benchmarks.simulation.device import Script, SimulatedModel, SimulatedPrompt
from benchmarks.simulation.live import play
from benchmarks.simulation.machine import Machine
from izwi.backends.torch.backend import TorchBackend, torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.request.request import Request
from izwi.scheduler.policy import POLICIES

# Shares of the rate at which the engine is full; the last is close to it.
CHECKED_LOADS = (0.2, 0.4, 0.6, 0.85)
# Number of predictions per scene, because one measured list is one sample of the variance.
DRAWS = 5
STREAM_SHARE = 0.8
STOP_ID = 1


# -- against the real engine --------------------------------------------------------------------
async def check(
    registry: Registry, backend: TorchBackend, known: Calibration, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Run the same arrivals on the real engine and in simulation, at each load.

    The simulation runs twice: with the machine as measured before, and as measured by the steps of
    this very run. Errors of the second are errors of the model. Errors of the first only are drift
    of the machine, to which a nearly full engine is very sensitive.
    """
    rows = []
    for place, load in enumerate(CHECKED_LOADS):
        rate = load * known.streams_per_s
        arrivals = again(known, rate, options.check_streams, seed=100 + place)
        config = EngineConfig()
        recorded, engine = start(registry, backend, config)
        measured = await play(
            engine, arrivals, registry.speech(known.requests[0].model).sample_rate
        )
        await engine.stop()
        machine = known.machine
        own = Machine.from_steps(recorded.steps, machine.wake_s, machine.reach_s)
        papers = {
            "": predict(known, machine, arrivals, measured, config),
            "_own_steps": predict(known, own, arrivals, measured, config),
        }
        rows.append({"load": load, "streams_per_s": round(rate, 2), **compare(measured, papers)})
        print(rows[-1], flush=True)
    return rows


def again(known: Calibration, rate: float, count: int, seed: int) -> list[Arrival]:
    """Draw from the prepared requests, with Poisson arrivals."""
    rng = random.Random(seed)
    return [
        Arrival(at_s, replace(rng.choice(known.requests), request_id=f"{number}"))
        for number, at_s in enumerate(islice(poisson(rate, seed), count))
    ]


def predict(
    known: Calibration,
    machine: Machine,
    arrivals: list[Arrival],
    measured: list[Playback],
    config: EngineConfig,
) -> list[Playback]:
    """Run arrivals on one simulated device, at their real times."""
    said = {
        id(one.prompt): script for one, script in zip(known.requests, known.scripts, strict=True)
    }
    scripts = {one.request.request_id: said[id(one.request.prompt)] for one in arrivals}
    came = [Arrival(real.submitted_s, real.request) for real in measured]
    return [
        played
        for seed in range(DRAWS)
        for played in Cluster(1, known.model, machine, config, scripts, seed).run(came)
    ]


def compare(measured: list[Playback], papers: dict[str, list[Playback]]) -> dict[str, Any]:
    """Return measured and predicted figures, with the ratio of predicted to measured."""
    real = summary(measured)
    row: dict[str, Any] = {"streams": real["streams"]}
    for name in ("ttfa_p50_ms", "ttfa_p95_ms", "underrun_share", "underrun_p95_ms"):
        row[f"{name}_measured"] = real[name]
        for suffix, played in papers.items():
            predicted = summary(played)[name]
            row[f"{name}_predicted{suffix}"] = predicted
            if name.startswith("ttfa") and real[name] and predicted:
                row[f"{name}_ratio{suffix}"] = round(predicted / real[name], 3)
    return row


# -- many devices -------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Scene:
    """One simulated run of many devices.

    Attributes:
        rate: Mean requests per second for each device.
    """

    policy: str
    rate: float
    num_devices: int
    num_requests: int
    machine: Machine
    model: SimulatedModel
    seed: int = 0


def workload(scene: Scene) -> tuple[list[Arrival], dict[str, Script]]:
    """Draw requests: short streams, and long ones without playback."""
    rng = random.Random(scene.seed)
    arrivals, scripts = [], dict[str, Script]()
    times: Iterator[float] = poisson(scene.rate * scene.num_devices, scene.seed)
    for number, at_s in zip(range(scene.num_requests), times, strict=False):
        streams = rng.random() < STREAM_SHARE
        frames = round(rng.lognormvariate(3.6, 0.4)) if streams else rng.randint(125, 160)
        prompt = SimulatedPrompt(10 + frames // 2, num_shared=9, seed=number)
        request = Request(
            f"{number}",
            "paper",
            prompt,
            max_entries=4 * frames,
            stop_ids=(STOP_ID,),
            streams=streams,
        )
        scripts[request.request_id] = [(0,)] * frames
        arrivals.append(Arrival(at_s, request))
    return arrivals, scripts


def simulate(scene: Scene) -> dict[str, Any]:
    """Run one scene; return its listeners' figures and the run time of the simulation."""
    began_s = time.perf_counter()
    arrivals, scripts = workload(scene)
    config = EngineConfig(policy=scene.policy)
    cluster = Cluster(scene.num_devices, scene.model, scene.machine, config, scripts, scene.seed)
    played = cluster.run(arrivals)
    audio_s = sum(one.audio_s for one in played)
    last_s = max((one.ended_s or 0.0 for one in played), default=0.0)
    return {
        "policy": scene.policy,
        "requests_per_s_per_device": round(scene.rate, 3),
        "devices": scene.num_devices,
        "requests": scene.num_requests,
        **summary(played),
        "refused": sum(one.refused for one in played),
        "audio_s_per_s_per_device": round(audio_s / last_s / scene.num_devices, 2),
        "steps": cluster.num_steps,
        "simulated_s": round(last_s, 1),
        "took_s": round(time.perf_counter() - began_s, 1),
    }


def curves(machine: Machine, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run each policy at each rate, with one process per core."""
    model = SimulatedModel(frame_s=0.08, num_codebooks=1, num_pages=8192)
    scenes = [
        Scene(policy, rate, options.devices, options.requests, machine, model)
        for policy in POLICIES
        for rate in options.rates
    ]
    rows = []
    with ProcessPoolExecutor(options.processes) as pool:
        for row in pool.map(simulate, scenes):
            rows.append(row)
            print(row, flush=True)
    return rows


def picture(rows: list[dict[str, Any]]) -> None:
    """Plot times to first audio and gaps over the rate, a colour for each policy."""
    ttfa, gaps = dict[str, Curve](), dict[str, Curve]()
    for place, policy in enumerate(POLICIES):
        mine = [row for row in rows if row["policy"] == policy]
        rates = [row["requests_per_s_per_device"] for row in mine]
        for percent, style in ((50, ":"), (95, "-"), (99, "--")):
            values = [row[f"ttfa_p{percent}_ms"] or float("nan") for row in mine]
            ttfa[f"{policy}, p{percent}"] = Curve(rates, values, place, style)
        gaps[policy] = Curve(rates, [100 * row["underrun_share"] for row in mine], place)
    x = "requests per second and device"
    panels = [
        Panel(x, "time to first audio, ms", ttfa, log_y=True),
        Panel(x, "streams with a gap, %", gaps),
    ]
    count = f"{rows[0]['requests']:,} requests on {rows[0]['devices']} devices, on paper"
    draw("simulate", count, panels)


async def main(options: argparse.Namespace) -> None:
    """Measure, compare, simulate."""
    backend = torch_backend(options.device, options.dtype)
    registry = Registry(backend)
    name = registry.load(options.model)
    known = await calibrate(registry, backend, name, EngineConfig(), options.calibration_streams)
    print(known.machine.summary, f"full at {known.streams_per_s:.2f} streams/s", flush=True)
    checked = await check(registry, backend, known, options)
    rows = curves(known.machine, options)
    picture(rows)
    write_result(
        "simulate",
        rows,
        model=name,
        machine=known.machine.summary,
        full_at_streams_per_s=round(known.streams_per_s, 2),
        prepare_ms=round(known.prepare_s * 1e3, 3),
        config={key: value for key, value in asdict(EngineConfig()).items() if "step" in key},
        check=checked,
    )


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--calibration-streams", type=int, default=24)
    parser.add_argument("--check-streams", type=int, default=80, help="streams at each load")
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[1.0, 2.0, 3.0, 3.5, 4.0, 4.5], metavar="PER_S"
    )
    asyncio.run(main(parser.parse_args()))
