"""Clients of a server under test: send speech requests and time the audio.

They read 16-bit PCM over loopback. Audio starts at the first sample above -50 dBFS; a stream
underruns if a sample arrives after its time in a playback that started there.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np
import torch

from benchmarks.http_server import served
from benchmarks.measure import AUDIBLE, TEXTS, write_result
from benchmarks.random_checkpoint import EMBEDDED, SPEAKING

_RATE = 24_000
_VOICES = {EMBEDDED: "amber"}
_TIMEOUT_S = 120.0
# A gap that is shorter is the clock's.
_GAP_S = 0.001


@dataclass(frozen=True, slots=True)
class Listened:
    """One stream as it arrived; seconds after the request was sent.

    Attributes:
        audible_s: The chunk with the first audible sample.
        total_s: The end.
        audio_s: Sound received.
        gap_s: Playback that had to wait, in all.
    """

    audible_s: float
    total_s: float
    audio_s: float
    gap_s: float


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """A parser with what every benchmark of a speaking server takes.

    Without a GPU the embedded voice is the one to measure.
    """
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SPEAKING, default="tts-1.7b" if on_gpu else EMBEDDED)
    parser.add_argument("--frames", type=int, default=52, help="frames of an utterance")
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument(
        "--api-servers", type=int, default=1, help="API-server processes; 0: one in all"
    )
    return parser


def measure_server(
    benchmark: str,
    measure: Callable[[str, argparse.Namespace], Coroutine[Any, Any, list[dict[str, Any]]]],
    options: argparse.Namespace,
    max_running: int,
    **reported: Any,
) -> None:
    """Run a server, measure it, and write the rows down.

    Args:
        benchmark: Names the result, with the size.
        measure: Asks the server at an address.
        options: Of `arguments`.
        max_running: Streams that the server runs at the same time.
        reported: What else the result says.
    """
    with served(
        *(options.size, options.frames, max_running, options.port, options.device),
        api_servers=options.api_servers,
    ) as url:
        rows = asyncio.run(measure(url, options))
    write_result(
        f"{benchmark}_{options.size}",
        rows,
        device_kind=options.device,
        frames=options.frames,
        api_servers=options.api_servers,
        **reported,
    )


def connect(url: str, connections: int) -> aiohttp.ClientSession:
    """A client that keeps so many connections.

    aiohttp, for httpx holds requests back where some 100 connections are busy: of 128 listeners
    ten were heard at a time.
    """
    connector = aiohttp.TCPConnector(limit=connections, keepalive_timeout=_TIMEOUT_S)
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    return aiohttp.ClientSession(url, connector=connector, timeout=timeout)


async def open_connections(client: aiohttp.ClientSession, connections: int) -> None:
    """Open so many connections, as callers have kept theirs from before."""

    async def open_one() -> None:
        async with client.get("/livez") as answer:
            await answer.read()

    await asyncio.gather(*(open_one() for _ in range(connections)))


async def listen(
    client: aiohttp.ClientSession,
    model: str,
    number: int,
    *,
    text: str | None = None,
    frames: int | None = None,
    clip: Mapping[str, str] | None = None,
) -> Listened:
    """Ask for one utterance and read it as it comes.

    Args:
        client: See `connect`.
        model: One of SPEAKING, as the server loaded it.
        number: Is the seed, and chooses the text if there is none.
        text: What is said.
        frames: Length; None leaves it to the server.
        clip: `ref_audio` and `ref_text` of the voice, instead of one that the server has.

    Raises:
        RuntimeError: The server answered with an error.
    """
    body = request_body(model, number, text or TEXTS[number % len(TEXTS)], frames)
    if clip:
        del body["voice"]
        body.update(clip)
    began = time.perf_counter()
    audible, received, rest, late = 0.0, 0, b"", 0.0
    async with client.post("/v1/audio/speech", json=body) as answer:
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {await answer.text()}")
        async for part in answer.content.iter_any():
            now = time.perf_counter() - began
            data = rest + part
            whole = len(data) & ~1
            samples, rest = np.frombuffer(data[:whole], "<i2"), data[whole:]
            if not audible:
                loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > AUDIBLE * 32768)
                if len(loud):
                    audible, start = now, received + int(loud[0])
            elif len(samples):  # what had come before lasts until here
                late = max(late, now - audible - (received - start) / _RATE)
            received += len(samples)
    total = time.perf_counter() - began
    return Listened(audible or total, total, received / _RATE, max(0.0, late))


async def listen_at(
    times_s: Iterable[float], ask: Callable[[], Coroutine[Any, Any, Listened]]
) -> list[Listened]:
    """Let listeners begin at their times, and wait until all have heard the end.

    Args:
        times_s: Seconds from now, ascending.
        ask: Called at each of them.
    """
    tasks, began_s = list[asyncio.Task[Listened]](), time.perf_counter()
    for at_s in times_s:
        await asyncio.sleep(max(0.0, began_s + at_s - time.perf_counter()))
        tasks.append(asyncio.create_task(ask()))
    return await asyncio.gather(*tasks)


def request_body(model: str, seed: int, text: str, frames: int | None) -> dict[str, Any]:
    """What is posted for an utterance of so many frames; None leaves them to the server."""
    return {
        "model": model,
        "input": text,
        "voice": _VOICES.get(model, "vivian"),
        "response_format": "pcm",
        "seed": seed,
        # the last token gives no frame
        **({} if frames is None else {"max_new_tokens": frames + 1}),
    }


def figures(played: Sequence[Listened]) -> dict[str, Any]:
    """First audible sound and underruns of all listeners; the longest gap, in milliseconds."""
    first_s = [one.audible_s for one in played]
    return {
        "requests": len(played),
        **{f"ttfa_ms_p{percent}": milliseconds(first_s, percent) for percent in (50, 95, 99)},
        "underruns": sum(one.gap_s > _GAP_S for one in played),
        "gap_ms_most": milliseconds([one.gap_s for one in played], 100),
    }


def milliseconds(seconds: Sequence[float], percent: float) -> float:
    """A percentile of times."""
    return round(float(np.percentile(seconds, percent)) * 1e3, 2)
