"""Measure the simulator's parameters on this machine: step costs, scripts, delivery delay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from msgspec.structs import replace

from benchmarks.measure import TEXTS
from benchmarks.simulation.arrivals import Playback
from benchmarks.simulation.device import Script, SimulatedModel
from benchmarks.simulation.machine import Machine
from benchmarks.simulation.step_log import RecordedEngine
from izwi.backends.torch.backend import TorchBackend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.inputs.speech import SpeechInput
from izwi.model.frontend import SpeechFrontend
from izwi.request.request import Chunk, Request


@dataclass(slots=True)
class Calibration:
    """The measured parameters.

    Attributes:
        name: Name under which the checkpoint is served.
        requests: Prepared requests, to be repeated under other ids.
        scripts: Output of each of them, in the same order.
        machine: Prices, variance and delivery delay.
        model: Properties of the checkpoint.
        streams_per_s: Streams that a full engine completes per second.
        prepare_s: Median time of validating and tokenizing one text.
    """

    name: str
    requests: list[Request]
    scripts: list[Script]
    machine: Machine
    model: SimulatedModel
    streams_per_s: float
    prepare_s: float


@dataclass(slots=True)
class _Alone:
    """A request that ran alone."""

    played: Playback
    codes: list[tuple[int, ...]] = field(default_factory=list)


def prepare(model: SpeechFrontend, name: str, count: int) -> tuple[list[Request], float]:
    """Prepare short streams, no two alike, and return the time for one."""
    requests, seconds = [], []
    for number in range(count):
        began_s = time.perf_counter()
        ask = SpeechInput(TEXTS[number % len(TEXTS)], seed=number)
        requests.append(model.prepare_speech(f"prepared-{number}", name, ask))
        seconds.append(time.perf_counter() - began_s)
    return requests, median(seconds)


def start(
    registry: Registry, backend: TorchBackend, config: EngineConfig
) -> tuple[RecordedEngine, AsyncEngine]:
    """Start an engine that records its steps, on the listeners' clock."""
    recorded = RecordedEngine(registry.models, backend, config, clock=time.perf_counter)
    engine = AsyncEngine(recorded)
    engine.start()
    return recorded, engine


async def calibrate(
    registry: Registry, backend: TorchBackend, name: str, config: EngineConfig, count: int
) -> Calibration:
    """Run streams alone, then in a batch, and fit the machine to their steps."""
    model = registry.models[name]
    requests, prepare_s = prepare(registry.speech(name), name, count)
    recorded, engine = start(registry, backend, config)
    await _run(engine, replace(requests[0], request_id="warm-up"))
    recorded.steps.clear()
    alone, wakes_s, reaches_s = [], [], []
    for request in requests:
        first_step = len(recorded.steps)
        one = await _run(engine, request)
        alone.append(one)
        await asyncio.sleep(0.02)  # let the engine record its last step and go idle
        step = recorded.steps[first_step]
        wakes_s.append(step.began_s - one.delivered.submitted_s)
        reaches_s.append(one.delivered.chunks[0][0] - step.began_s - step.whole_s)
    streams_per_s = 0.0
    for concurrency in (2, 3, 5, 8):
        streams_per_s = await _together(engine, requests, concurrency)
    await engine.stop()
    (worker,) = recorded._workers.values()
    frame_s = worker.runner.frame_s
    assert frame_s is not None
    return Calibration(
        name,
        requests,
        [one.codes for one in alone],
        Machine.from_steps(recorded.steps, median(wakes_s), max(0.0, median(reaches_s))),
        SimulatedModel(
            frame_s, model.tracks[0].num_codebooks, worker.runner.num_pages, model.content_keys
        ),
        streams_per_s,
        prepare_s,
    )


async def _run(engine: AsyncEngine, request: Request) -> _Alone:
    one = _Alone(Playback(request, time.perf_counter()))
    async for chunk in engine.submit(request):
        _note(one, chunk)
    return one


def _note(one: _Alone, chunk: Chunk) -> None:
    if chunk.error is not None:
        raise RuntimeError(f"{chunk.request_id} failed") from chunk.error
    one.codes += [tuple(entry) for entry in chunk.entries.tolist()]
    if chunk.pcm is not None:
        one.delivered.chunks.append((time.perf_counter(), 0.0))


async def _together(engine: AsyncEngine, requests: Sequence[Request], concurrency: int) -> float:
    """Keep a number of streams alive until all have run; return streams completed per second."""
    waiting = [replace(one, request_id=f"{concurrency}-{one.request_id}") for one in requests]

    async def slot() -> None:
        while waiting:
            await _run(engine, waiting.pop())

    began_s = time.perf_counter()
    await asyncio.gather(*(slot() for _ in range(concurrency)))
    return len(requests) / (time.perf_counter() - began_s)
