"""How many seconds of audio are transcribed per second, by concurrency?

On a GPU it uses a published size with random weights, elsewhere the embedded transcriber. Each clip
gets as many tokens as speech of its length usually has. Features are computed on the host, and
everything from the samples to the last token counts. With --http, clients also upload the clips
as WAV to a server in its own process.

With --profile it reports the loop's time by kind of step: with encoders, with prompts, and only
decoding. It synchronises with the device after the encoders to separate their time; throughput is
then slightly lower and not written to a file.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.asr.random_audio import random_audio
from benchmarks.measure import write_result
from benchmarks.random_checkpoint import EMBEDDED_LISTENER, LISTENING, load_listening
from benchmarks.serving.http_server import served
from benchmarks.serving.listeners import milliseconds
from benchmarks.serving.uploads import transcribe_all, upload_of
from izwi.arrays import Float32
from izwi.audio.mel import WHISPER_RATE
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi.engine.model_worker import ModelWorker
from izwi.host.threads import compute, use_few_threads
from izwi.inputs.speech import TranscriptionInput
from izwi.model.frontend import TranscriptionFrontend

_PARTS = ("schedule", "encode", "launch", "results", "process")


@dataclass(slots=True)
class _Steps:
    """Steps of one kind: their number, their rows and their total time."""

    count: int = 0
    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


class Profile:
    """Time of one model worker's steps by kind.

    On a GPU, the time of a step includes planning the next one, because its results are read after
    that.
    """

    def __init__(self, worker: ModelWorker, device: torch.device):
        self._device = device
        self._steps: dict[str, _Steps] = {}
        self._now: defaultdict[str, float] = defaultdict(float)
        owners = (worker, worker.runner, worker.runner, worker, worker)
        for owner, part in zip(owners, _PARTS, strict=True):
            name = "_results" if part == "results" else part
            setattr(owner, name, self._timed(part, getattr(owner, name)))

    def _timed(self, part: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            result = run(*arguments)
            if part == "encode" and self._device.type == "cuda":
                torch.cuda.current_stream(self._device).synchronize()
            self._now[f"{part}_ms"] += (time.perf_counter() - began) * 1e3
            if part == "schedule":
                self._count(result)
            if part == "process":
                self._end_step()
            return result

        return timed

    def _count(self, work: Any) -> None:
        prompts = [row for row in work.forward if not row.decodes]
        self._now["windows"] = len(work.encode)
        self._now["rows"] = len(work.forward) - len(prompts)
        self._now["prompts"] = len(prompts)
        self._now["positions"] = sum(row.stop - row.start for row in prompts)

    def _end_step(self) -> None:
        now = self._now
        kind = "encode" if now["windows"] else "prompts" if now["prompts"] else "decode"
        steps = self._steps.setdefault(kind, _Steps())
        steps.count += 1
        for name, value in now.items():
            steps.sums[name] += value
        now.clear()

    def show(self, wall_s: float) -> None:
        """Print a line of averages for each kind of step, and reset them."""
        spent_s = 0.0
        for kind, steps in self._steps.items():
            means = {name: round(total / steps.count, 2) for name, total in steps.sums.items()}
            took_ms = sum(steps.sums[f"{part}_ms"] for part in _PARTS)
            spent_s += took_ms / 1e3
            print(f"  {kind:8} {steps.count:5} steps, {took_ms / 1e3:6.3f} s: {means}")
        print(f"  in steps {spent_s:.3f} s of {wall_s:.3f} s")
        self._steps.clear()


async def transcribe(
    engine: AsyncEngine, model: TranscriptionFrontend, name: str, samples: Float32, number: int
) -> float:
    """Transcribe one clip; return the seconds that it took."""
    ask = TranscriptionInput(samples)
    began = time.perf_counter()
    request = await compute(model.prepare_transcription, f"c{number}", name, ask)
    async for chunk in engine.submit(request):
        if chunk.error is not None:
            raise chunk.error
    return time.perf_counter() - began


def figures(
    loop: str, streams: int, taken_s: list[float], wall_s: float, seconds: float
) -> dict[str, Any]:
    """Return one row: the clip length, the time of each clip, and the total time."""
    return {
        "loop": loop,
        "streams": streams,
        "clips": len(taken_s),
        "wall_s": round(wall_s, 3),
        "x_real_time": round(len(taken_s) * seconds / wall_s, 1),
        "clip_ms_p50": milliseconds(taken_s, 50),
        "clip_ms_p95": milliseconds(taken_s, 95),
    }


async def run_level(
    engine: AsyncEngine,
    model: TranscriptionFrontend,
    name: str,
    streams: int,
    seeds: range,
    seconds: float,
) -> dict[str, Any]:
    """Keep a number of clips in flight until the clips of all seeds are transcribed."""
    taken_s: list[float] = []
    clips = {seed: random_audio(seconds, WHISPER_RATE, seed) for seed in seeds}

    async def slot(place: int) -> None:
        for seed in seeds[place::streams]:
            one = await transcribe(engine, model, name, clips.pop(seed), seed)
            taken_s.append(one)

    began = time.perf_counter()
    await asyncio.gather(*(slot(place) for place in range(streams)))
    wall_s = time.perf_counter() - began
    return figures("closed", streams, taken_s, wall_s, seconds)


def levels(options: argparse.Namespace) -> Iterator[tuple[int, str, range]]:
    """Yield the number of clips in flight, the row's name, and the seeds of the clips.

    No clip repeats, because its encoder output would be cached.
    """
    seed = 0
    for streams in options.streams:
        for what, clips in (("first rounds", 0), ("measured", options.clips)):
            seeds = range(seed, seed + streams * max(2, clips // streams))
            seed = seeds.stop
            yield streams, what, seeds


async def measure_engine(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure the engine alone at each level."""
    registry, backend = load_listening(options.size, options.device, options.dtype)
    config = EngineConfig(max_running=max(options.streams))
    loop = Engine(registry.models, backend, config)
    (worker,) = loop._workers.values()
    profile = Profile(worker, backend.ops.device) if options.profile else None
    engine = AsyncEngine(loop)
    use_few_threads()
    engine.start()
    model, rows = registry.transcription(options.size), []
    for streams, what, seeds in levels(options):
        row = await run_level(engine, model, options.size, streams, seeds, options.seconds)
        if profile is not None:
            print(f"{streams} clips at a time, {what}: {row['x_real_time']} times real time")
            profile.show(row["wall_s"])
        if what == "measured":
            rows.append(row)
    await engine.stop()
    return rows


async def measure_server(url: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure a whole server at each level."""
    rows = []
    for streams, what, seeds in levels(options):
        clips = [random_audio(options.seconds, WHISPER_RATE, seed) for seed in seeds]
        uploads = [upload_of(options.size, audio) for audio in clips]
        taken_s, wall_s = await transcribe_all(url, uploads, streams)
        if what == "measured":
            rows.append(figures("closed over http", streams, taken_s, wall_s, options.seconds))
    return rows


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--size", choices=LISTENING, default="asr-1.7b" if on_gpu else EMBEDDED_LISTENER
    )
    streams = [1, 32] if on_gpu else [1, 4]
    parser.add_argument("--streams", type=int, nargs="+", default=streams)
    clips = 256 if on_gpu else 32
    parser.add_argument(
        "--clips", type=int, default=clips, help="least number of clips for each level"
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each clip")
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--profile", action="store_true", help="report the time by kind of step")
    parser.add_argument("--http", action="store_true", help="measure over HTTP, too")
    parser.add_argument("--port", type=int, default=8100)
    api_servers = 4 if on_gpu else 1
    parser.add_argument(
        "--api-servers",
        type=int,
        default=api_servers,
        help="API-server processes; 0: one process in all",
    )
    options = parser.parse_args()
    rows = []
    if options.http:  # first, because an engine takes all free memory
        most = max(options.streams)
        with served(
            options.size, 0, most, options.port, options.device, options.api_servers
        ) as url:
            rows = asyncio.run(measure_server(url, options))
    rows = [*asyncio.run(measure_engine(options)), *rows]
    if options.profile:  # profiling changes the times
        return
    name = "asr_throughput" if options.size == "asr-1.7b" else f"asr_throughput_{options.size}"
    write_result(
        name, rows, size=options.size, seconds=options.seconds, api_servers=options.api_servers
    )


if __name__ == "__main__":
    main()
