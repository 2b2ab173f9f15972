"""`izwi bench`: measure the speed of models on this machine in a minute."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from izwi.errors import ModelNotFound
from izwi_api.cli.options import ApiKey, Device, Dtype, Offline, ServerUrl
from izwi_api.console import messages, report_failures
from izwi_api.settings import DEFAULT_MODELS

if TYPE_CHECKING:
    from izwi_api.client import AsyncClient, Audio, RuntimeOptions

# An untrained checkpoint never ends a sentence: about 12 s, at 12.5 frames a second.
_MAX_FRAMES = 150
_TEXTS = (
    "The weather is nice today and we are going out.",
    "Please call me when you get home this evening.",
    "She put the book on the table near the window.",
    "We have been waiting for the train for an hour.",
)


@dataclass(frozen=True, slots=True)
class SpeechFigures:
    """The speed of a speech model.

    Attributes:
        first_audio_ms: From the request to its first audio, one stream; median.
        rtf: Time to make a second of audio, one stream; median.
        streams: Concurrent requests of the next figure.
        throughput: Seconds of audio made per second, by all of these; median.
    """

    model: str
    first_audio_ms: float
    rtf: float
    streams: int
    throughput: float
    task: str = "speech"


@dataclass(frozen=True, slots=True)
class TranscriptionFigures:
    """The speed of a transcription model.

    Attributes:
        audio_s: Seconds of audio in the clip.
        rtf: Time to transcribe a second of audio, one clip; median.
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
    audio: Audio


def bench(
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Folder, hub id or embedded name; repeatable. Default: embedded, or all that the "
            "server has."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to take the medians of.")] = 3,
    streams: Annotated[int, typer.Option(min=1, help="Number of concurrent requests.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    server: ServerUrl = None,
    api_key: ApiKey = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
) -> None:
    """Measure first audio, speech and transcription, after a warm-up round."""
    from izwi.model.capability import Capability
    from izwi_api.cli.running_server import running_server
    from izwi_api.client import AsyncClient, RuntimeOptions

    with report_failures():
        runtime = RuntimeOptions(device, dtype, offline)
        local_only = runtime != RuntimeOptions() or model is not None
        serves = {Capability.SPEAK: None}  # its speech is what is transcribed
        server = running_server(server, api_key, local_only=local_only, serves=serves)
        wanted = list(dict.fromkeys(model or DEFAULT_MODELS[:2]))
        # without a named speech model, the embedded voice makes the audio to transcribe
        models = list(dict.fromkeys([*wanted, DEFAULT_MODELS[0]]))
        client = AsyncClient(server, api_key=api_key, models=models, runtime=runtime)
        asked = _Asked(None if server else len(wanted), model if server else None)
        figures = asyncio.run(_bench(client, asked, rounds, streams))
    if as_json:
        rows = [asdict(row) for row in figures]
        on = {"server": server} if server else _machine(runtime)
        typer.echo(json.dumps(on | {"rounds": rounds, "models": rows}))
    else:
        _show(figures)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Which models to measure.

    Attributes:
        num_first: The first so many served models, or None for all that speak or transcribe.
        names: Only these, or None.
    """

    num_first: int | None
    names: list[str] | None


async def _bench(client: AsyncClient, asked: _Asked, rounds: int, streams: int) -> list[Figures]:
    """Measure each model, one after the other; a server may have other work meanwhile."""
    figures: list[Figures] = []
    async with client:
        tasks = {str(entry["id"]): str(entry["task"]) for entry in await client.models()}
        names, voice = _chosen(tasks, asked), _voice(tasks, asked)
        with messages().status("measuring") as status:
            for name in names:
                status.update(f"measuring {name}")
                if tasks[name] == "speech":
                    figures.append(await _time_speech(client, name, rounds, streams))
                elif tasks[name] == "transcription":
                    figures.append(await _time_transcription(client, name, voice, rounds))
                else:
                    messages().print(f"{name} is skipped: bench does not measure {tasks[name]}")
    return figures


def _chosen(tasks: Mapping[str, str], asked: _Asked) -> list[str]:
    """Return the names of the models to measure. Raises ModelNotFound."""
    for name in asked.names or ():
        if name not in tasks:
            raise ModelNotFound(f"the server serves no model {name!r}", param="model")
    if asked.names:
        return asked.names
    if asked.num_first is not None:
        return list(tasks)[: asked.num_first]
    return [name for name, task in tasks.items() if task in ("speech", "transcription")]


def _voice(tasks: Mapping[str, str], asked: _Asked) -> str:
    """Return the speech model that makes the audio to transcribe. Raises ModelNotFound."""
    if asked.num_first is not None:
        return DEFAULT_MODELS[0]
    for name, task in tasks.items():
        if task == "speech":
            return name
    raise ModelNotFound("the server serves no model for speech", param="model")


async def _time_speech(client: AsyncClient, name: str, rounds: int, streams: int) -> SpeechFigures:
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
        if turn == 0:  # the warm-up
            continue
        first_s += [spoken.first_s for spoken in alone]
        rtf += [spoken.total_s / spoken.audio.duration_s for spoken in alone]
        throughput.append(sum(spoken.audio.duration_s for spoken in together) / together_s)
    return SpeechFigures(
        name,
        first_audio_ms=round(median(first_s) * 1e3, 1),
        rtf=round(median(rtf), 4),
        streams=streams,
        throughput=round(median(throughput), 2),
    )


async def _time_transcription(
    client: AsyncClient, name: str, voice: str, rounds: int
) -> TranscriptionFigures:
    import numpy as np

    from izwi_api.client import Audio

    spoken = [(await _speak(client, voice, text, 0)).audio for text in _TEXTS]
    rate = spoken[0].sample_rate
    samples = np.concatenate([one.samples for one in spoken])
    audio_s = len(samples) / rate
    times_s = []
    for turn in range(rounds + 1):
        # Equal audio is encoded only once, so each round gets a slightly quieter copy.
        quieter = Audio(samples * np.float32(1 - turn / 1000), rate)
        began = time.perf_counter()
        await client.transcribe(quieter, model=name)
        times_s.append(time.perf_counter() - began)
    return TranscriptionFigures(
        name, round(audio_s, 2), rtf=round(median(times_s[1:]) / audio_s, 4)
    )


async def _speak(client: AsyncClient, name: str, text: str, seed: int) -> _Spoken:
    import numpy as np

    from izwi.errors import IzwiError
    from izwi_api.client import Audio

    began = time.perf_counter()
    first_s = 0.0
    pieces: list[Audio] = []
    stream = client.stream_speech(text, model=name, seed=seed, max_new_tokens=_MAX_FRAMES)
    async with stream:
        async for audio in stream:
            if audio.samples.size:
                first_s = first_s or time.perf_counter() - began
                pieces.append(audio)
    if not pieces:
        raise IzwiError(f"model {name!r} produced no audio")
    samples = np.concatenate([piece.samples for piece in pieces])
    total_s = time.perf_counter() - began
    return _Spoken(first_s, total_s, Audio(samples, pieces[0].sample_rate))


def _machine(runtime: RuntimeOptions) -> dict[str, object]:
    """Return a description of the machine or server that was measured."""
    import os
    import platform

    from izwi.backends.choice import open_backend
    from izwi.backends.torch.devices import product_name

    backend = open_backend(runtime.device, runtime.dtype)
    device = backend.device_name
    return {
        "device": product_name(device),
        "dtype": backend.dtype_name,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "library": backend.library,
    }


def _show(figures: Sequence[Figures]) -> None:
    for row in figures:
        if isinstance(row, SpeechFigures):
            typer.echo(
                f"{row.model}: first audio {row.first_audio_ms:.0f} ms, real-time factor"
                f" {row.rtf:.2f}, {row.throughput:.1f} s of audio a second, {row.streams} at a time"
            )
        else:
            typer.echo(
                f"{row.model}: transcription at a real-time factor of {row.rtf:.3f},"
                f" {row.audio_s:.1f} s of audio"
            )
