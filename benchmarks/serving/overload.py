"""Are new requests served in time at twice the load that the machine can carry?

Long texts without playback are submitted at twice the engine's throughput, with short streams in
between. Each setting runs in a separate engine: first the streams alone (idle), then long texts
alone with a full queue (throughput), then both. The embedded checkpoint was trained on single
sentences, so long texts are forced to last at least 10 s.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

import numpy as np
from msgspec.structs import replace

from benchmarks.measure import TEXTS, arguments, write_result
from benchmarks.pictures import Curve, Panel, draw, shares
from benchmarks.simulation.arrivals import Arrival, Playback, percentile_ms, poisson
from benchmarks.simulation.live import play
from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi.inputs.speech import SpeechInput
from izwi.model.frontend import SpeechFrontend
from izwi.request.request import Chunk, Request

LEAST_S = 10.0  # minimum duration of a long request's speech
OVERLOAD = 2.0
# A listener without audio leaves after this time, which counts as its waiting time.
PATIENCE_S = 20.0


@dataclass(slots=True)
class Background:
    """Long requests without playback, and the audio generated for them so far."""

    model: SpeechFrontend
    name: str
    engine: AsyncEngine
    frame_s: float
    audio_s: float = 0.0
    refused: int = 0

    def requests(self) -> Iterator[Request]:
        """Yield long requests endlessly, no two of equal length."""
        least = round(LEAST_S / self.frame_s)
        for number in count():
            text = " ".join(TEXTS[(number + place) % len(TEXTS)] for place in range(4))
            ask = SpeechInput(text=text, seed=number)
            request = self.model.prepare_speech(f"long-{number}", self.name, ask)
            yield replace(
                request, streams=False, min_entries=least, max_entries=least + 7 * number % 32
            )

    async def read(self, request: Request) -> None:
        """Run one request to its end."""
        async for chunk in self.engine.submit(request):
            self._count(chunk)

    def _count(self, chunk: Chunk) -> None:
        self.refused += chunk.error is not None
        if chunk.pcm is not None:
            self.audio_s += len(chunk.pcm) / self.model.sample_rate


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings of one engine."""

    policy: str
    max_step_s: float
    chunk_ramp: tuple[int, ...]

    @property
    def config(self) -> EngineConfig:
        """Return the engine's configuration; all else has defaults."""
        return EngineConfig(
            policy=self.policy, max_step_s=self.max_step_s, chunk_ramp=self.chunk_ramp
        )

    @property
    def label(self) -> str:
        """Name of the setting in tables."""
        if self.policy != "deadline":
            return self.policy
        step_ms, longest = self.max_step_s * 1e3, self.chunk_ramp[-1]
        return f"{self.policy}, steps of {step_ms:g} ms, chunks to {longest}"


def read_setting(text: str) -> Setting:
    """Read POLICY, POLICY:SECONDS or POLICY:SECONDS:FRAMES, FRAMES of the longest chunk."""
    policy, step_s, longest = (*text.split(":"), "", "")[:3]
    config = EngineConfig()
    ramp = config.chunk_ramp
    if longest:
        ramp = (*(frames for frames in ramp if frames < int(longest)), int(longest))
    return Setting(policy, float(step_s or config.max_step_s), ramp)


async def run_setting(
    registry: Registry, engine: AsyncEngine, name: str, options: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Measure one setting; return its figures, and all times to first audio in seconds."""
    model = registry.speech(name)
    (frames,) = registry.models[name].tracks
    assert frames.codec is not None
    frame_s = frames.codec.frame_samples / frames.codec.sample_rate
    background = Background(model, name, engine, frame_s)
    await play(engine, foreground(model, name, options, "warm-up")[:3], model.sample_rate)
    idle = await play(engine, foreground(model, name, options, "idle"), model.sample_rate)

    long = background.requests()
    tasks = {asyncio.create_task(background.read(next(long))) for _ in range(options.queue)}
    await asyncio.sleep(options.settle_s)
    audio_s, began_s = background.audio_s, time.perf_counter()
    while time.perf_counter() - began_s < options.capacity_s:  # each request that ends is replaced
        await asyncio.sleep(0.02)
        done = {task for task in tasks if task.done()}
        tasks = tasks - done | {asyncio.create_task(background.read(next(long))) for _ in done}
    capacity = (background.audio_s - audio_s) / (time.perf_counter() - began_s)

    gap_s = (LEAST_S + 1.2) / (OVERLOAD * capacity)
    offer = asyncio.create_task(_offer(background, long, gap_s, tasks))
    audio_s, began_s = background.audio_s, time.perf_counter()
    arrivals = foreground(model, name, options, "loaded")
    loaded = await play(engine, arrivals, model.sample_rate, PATIENCE_S)
    throughput = (background.audio_s - audio_s) / (time.perf_counter() - began_s)
    offer.cancel()
    await engine.stop()
    await asyncio.gather(offer, *tasks, return_exceptions=True)
    ttfa_s = {"idle": waited_s(idle), "overload": waited_s(loaded)}
    p95_s = {phase: float(np.percentile(seconds, 95)) for phase, seconds in ttfa_s.items()}
    row = {
        **figures(idle, "idle"),
        **figures(loaded, "overload"),
        "ttfa_p95_ratio": round(p95_s["overload"] / p95_s["idle"], 2),
        "gave_up": sum(not one.chunks for one in loaded),
        "background_alone_audio_s_per_s": round(capacity, 2),
        "background_offered_audio_s_per_s": round(OVERLOAD * capacity, 2),
        "background_audio_s_per_s": round(throughput, 2),
    }
    return row, ttfa_s


async def _offer(
    background: Background,
    long: Iterator[Request],
    gap_s: float,
    tasks: set[asyncio.Task[None]],
) -> None:
    """Submit long requests at fixed intervals until cancelled."""
    start_s = time.perf_counter()
    for number in count():
        await asyncio.sleep(start_s + number * gap_s - time.perf_counter())
        tasks.add(asyncio.create_task(background.read(next(long))))


def foreground(
    model: SpeechFrontend, name: str, options: argparse.Namespace, phase: str
) -> list[Arrival]:
    """Draw short streams with Poisson arrivals; the same in each phase and for each setting."""
    times = poisson(options.rate, seed=1)
    return [
        Arrival(
            at_s,
            model.prepare_speech(
                f"{phase}-{number}", name, SpeechInput(TEXTS[number % len(TEXTS)], seed=number)
            ),
        )
        for number, at_s in zip(range(options.streams), times, strict=False)
    ]


def waited_s(played: list[Playback]) -> list[float]:
    """Return times to first audio; streams without audio count as `PATIENCE_S`."""
    return [min(one.first_audio_s, PATIENCE_S) for one in played]


def figures(played: list[Playback], phase: str) -> dict[str, Any]:
    """Return percentiles of one phase."""
    first_s = waited_s(played)
    return {
        f"{phase}_ttfa_p50_ms": percentile_ms(first_s, 50),
        f"{phase}_ttfa_p95_ms": percentile_ms(first_s, 95),
        f"{phase}_underruns": sum(one.gaps_s > 0 for one in played),
    }


async def main(options: argparse.Namespace) -> None:
    """Run each setting in turn, then plot the times to first audio."""
    backend = torch_backend(options.device, options.dtype)
    registry = Registry(backend)
    name = registry.load(options.model)
    rows = []
    curves: dict[str, Curve] = {}
    for place, setting in enumerate(options.settings):
        engine = AsyncEngine(Engine(registry.models, backend, setting.config))
        engine.start()
        row, ttfa_s = await run_setting(registry, engine, name, options)
        rows.append({**asdict(setting), **row})
        print(rows[-1], flush=True)
        for phase, style in (("idle", "--"), ("overload", "-")):
            curves[f"{setting.label}: {phase}"] = shares(ttfa_s[phase], place, style)
    write_result("overload", rows, model=name, foreground_per_s=options.rate, overload=OVERLOAD)
    panel = Panel("time to first audio, ms", "share of streams", curves, log_x=True)
    draw(
        "overload", "New short streams beside twice as much long work as there is time for", [panel]
    )


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument(
        "--settings",
        type=read_setting,
        nargs="+",
        default=[read_setting("deadline::4"), read_setting("deadline"), read_setting("fcfs")],
        metavar="POLICY[:MAX_STEP_S[:LONGEST_CHUNK]]",
    )
    parser.add_argument("--streams", type=int, default=64, help="short streams in each phase")
    parser.add_argument("--rate", type=float, default=1.0, help="short streams a second")
    parser.add_argument("--queue", type=int, default=64, help="long requests under saturation")
    parser.add_argument("--settle-s", type=float, default=3.0)
    parser.add_argument("--capacity-s", type=float, default=10.0)
    asyncio.run(main(parser.parse_args()))
