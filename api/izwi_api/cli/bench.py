"""`izwi bench`: measure the speed of models on this machine in a minute."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from izwi_api.cli.options import ApiKey, Device, Dtype, Offline, ServerUrl
from izwi_api.console import messages, report_failures
from izwi_api.settings import DEFAULT_MODELS

if TYPE_CHECKING:
    from izwi.arrays import Float32
    from izwi_api.cli.bench_clients import BenchClient
    from izwi_api.cli.remote import Server
    from izwi_api.runtime_options import RuntimeOptions

_TEXTS = (
    "The weather is nice today and we are going out.",
    "Please call me when you get home this evening.",
    "She put the book on the table near the window.",
    "We have been waiting for the train for an hour.",
)


@dataclass(frozen=True, slots=True)
class SpeechFigures:
    """How fast a model speaks.

    Attributes:
        first_audio_ms: From the request to its first sound, alone; median.
        rtf: Time to make a second of sound, alone; median.
        streams: Requests at the same time in the next figure.
        throughput: Seconds of sound made a second, all of these together; median.
    """

    model: str
    first_audio_ms: float
    rtf: float
    streams: int
    throughput: float
    task: str = "speech"


@dataclass(frozen=True, slots=True)
class TranscriptionFigures:
    """How fast a model transcribes.

    Attributes:
        audio_s: Length of the sound.
        rtf: Time to transcribe a second of it, alone; median.
    """

    model: str
    audio_s: float
    rtf: float
    task: str = "transcription"


Figures = SpeechFigures | TranscriptionFigures


@dataclass(frozen=True, slots=True, eq=False)
class _Spoken:
    first_s: float
    total_s: float
    pcm: Float32
    rate: int

    @property
    def audio_s(self) -> float:
        return len(self.pcm) / self.rate


def bench(
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Folder, hub id or embedded name; again for more. Default: embedded, or all that "
            "the server serves."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Medians are of so many rounds.")] = 3,
    streams: Annotated[int, typer.Option(min=1, help="Requests at the same time.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    server: ServerUrl = None,
    api_key: ApiKey = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
) -> None:
    """Time first sound, speech and transcription, after a round that warms up."""
    from izwi.request import Task
    from izwi_api.cli.remote import Server
    from izwi_api.cli.running_server import running_server
    from izwi_api.runtime_options import RuntimeOptions

    with report_failures():
        runtime = RuntimeOptions(device, dtype, offline)
        local_only = runtime != RuntimeOptions() or model is not None
        serves = {Task.SPEECH: None}  # what is transcribed is what it says
        server = running_server(server, api_key, local_only=local_only, serves=serves)
        if server:
            figures = asyncio.run(_bench_remotely(Server(server, api_key), model, rounds, streams))
        else:
            sources = model or list(DEFAULT_MODELS[:2])
            figures = asyncio.run(_bench_locally(sources, runtime, rounds, streams))
    if as_json:
        rows = [asdict(row) for row in figures]
        on = {"server": server} if server else _machine(runtime)
        typer.echo(json.dumps(on | {"rounds": rounds, "models": rows}))
    else:
        _show(figures)


async def _bench_locally(
    sources: Sequence[str], runtime: RuntimeOptions, rounds: int, streams: int
) -> list[Figures]:
    """Time each model of this process, one after the other, all of them loaded."""
    from izwi_api.cli.bench_clients import LocalBenchClient
    from izwi_api.serve.local_services import running_services

    voice = DEFAULT_MODELS[0]  # what is transcribed is what the embedded voice says
    async with running_services(list(dict.fromkeys([*sources, voice])), runtime) as services:
        here = LocalBenchClient(services, len(dict.fromkeys(sources)), voice)
        return await _bench(here, rounds, streams)


async def _bench_remotely(
    server: Server, names: Sequence[str] | None, rounds: int, streams: int
) -> list[Figures]:
    """Time each model of a server, with what others ask of it meanwhile."""
    from izwi_api.cli.bench_clients import RemoteBenchClient

    return await _bench(await RemoteBenchClient.asked(server, names), rounds, streams)


async def _bench(client: BenchClient, rounds: int, streams: int) -> list[Figures]:
    from izwi.request import Task

    figures: list[Figures] = []
    with messages().status("measuring") as status:
        for name, task in client.models:
            status.update(f"measuring {name}")
            if task is Task.SPEECH:
                figures.append(await _time_speech(client, name, rounds, streams))
            elif task is Task.TRANSCRIPTION:
                figures.append(await _time_transcription(client, name, rounds))
            else:
                messages().print(f"{name} does {task}, which has no figures here")
    return figures


async def _time_speech(client: BenchClient, name: str, rounds: int, streams: int) -> SpeechFigures:
    first_s: list[float] = []
    rtf: list[float] = []
    throughput: list[float] = []
    for turn in range(rounds + 1):
        alone = [await _speak(client, name, text, turn) for text in _TEXTS[:2]]
        began = time.perf_counter()
        texts = (_TEXTS[index % len(_TEXTS)] for index in range(streams))
        together = await asyncio.gather(
            *(_speak(client, name, text, turn + index) for index, text in enumerate(texts))
        )
        together_s = time.perf_counter() - began
        if turn == 0:  # it warms up
            continue
        first_s += [spoken.first_s for spoken in alone]
        rtf += [spoken.total_s / spoken.audio_s for spoken in alone]
        throughput.append(sum(spoken.audio_s for spoken in together) / together_s)
    return SpeechFigures(
        name,
        first_audio_ms=round(median(first_s) * 1e3, 1),
        rtf=round(median(rtf), 4),
        streams=streams,
        throughput=round(median(throughput), 2),
    )


async def _time_transcription(client: BenchClient, name: str, rounds: int) -> TranscriptionFigures:
    import numpy as np

    from izwi.audio.resample import resample
    from izwi_api.services.transcribe import SAMPLE_RATE

    spoken = [await _speak(client, client.voice, text, 0) for text in _TEXTS]
    pcm = np.concatenate([one.pcm for one in spoken])
    samples = resample(pcm, spoken[0].rate, SAMPLE_RATE)
    audio_s = len(samples) / SAMPLE_RATE
    times_s = []
    for turn in range(rounds + 1):
        # Equal sound is encoded once, so each round hears a sound of its own, a bit quieter.
        quieter = samples * np.float32(1 - turn / 1000)
        began = time.perf_counter()
        await client.write_down(name, quieter)
        times_s.append(time.perf_counter() - began)
    return TranscriptionFigures(
        name, round(audio_s, 2), rtf=round(median(times_s[1:]) / audio_s, 4)
    )


async def _speak(client: BenchClient, name: str, text: str, seed: int) -> _Spoken:
    import numpy as np

    from izwi.errors import IzwiError

    began = time.perf_counter()
    speech = await client.say(name, text, seed)
    first_s = 0.0
    pieces = []
    async for chunk in speech.chunks():
        if chunk.pcm is not None and chunk.pcm.size:
            first_s = first_s or time.perf_counter() - began
            pieces.append(chunk.pcm)
    if not pieces:
        raise IzwiError(f"model {name!r} made no sound")
    total_s = time.perf_counter() - began
    return _Spoken(first_s, total_s, np.concatenate(pieces), speech.sample_rate)


def _machine(runtime: RuntimeOptions) -> dict[str, object]:
    """Return on what the figures were taken."""
    import os
    import platform

    import torch

    from izwi.runner.device import torch_backend

    ops = torch_backend(runtime.device, runtime.dtype).ops
    is_cuda = ops.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(ops.device) if is_cuda else str(ops.device),
        "dtype": str(ops.dtype).removeprefix("torch."),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
    }


def _show(figures: Sequence[Figures]) -> None:
    for row in figures:
        if isinstance(row, SpeechFigures):
            typer.echo(
                f"{row.model}: first audio {row.first_audio_ms:.0f} ms, real-time factor"
                f" {row.rtf:.2f}, {row.throughput:.1f} s of sound a second, {row.streams} at a time"
            )
        else:
            typer.echo(
                f"{row.model}: transcription at a real-time factor of {row.rtf:.3f},"
                f" {row.audio_s:.1f} s of sound"
            )
