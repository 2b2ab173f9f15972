"""Clients of a server under test: send speech requests and time the audio.

They read 16-bit PCM over loopback. Audio starts at the first 5 ms above -50 dBFS; a stream
underruns if a sample arrives after its time in a playback that started there.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np
import torch

from benchmarks.measure import AUDIBLE_BLOCK, TEXTS, audible_blocks, write_result
from benchmarks.random_checkpoint import EMBEDDED, SPEAKING
from benchmarks.serving.http_server import served
from izwi.audio.pcm import from_s16le

_RATE = 24_000
_VOICES = {EMBEDDED: "amber"}
_TIMEOUT_S = 120.0
# Shorter gaps are within the precision of the clock.
_GAP_S = 0.001


@dataclass(frozen=True, slots=True)
class Listened:
    """One stream as received; times in seconds after the request was sent.

    Attributes:
        audible_s: Arrival of the chunk with the first audible sample.
        total_s: End of the stream.
        audio_s: Seconds of audio received.
        gap_s: Total time that playback had to wait.
        digest: Of all bytes received.
    """

    audible_s: float
    total_s: float
    audio_s: float
    gap_s: float
    digest: str = ""


class NotServed(RuntimeError):
    """The server answered with an error.

    Args:
        status: Of the answer.
        detail: Its body.
        retry_after: What it says of when to ask again; empty: nothing.
    """

    def __init__(self, status: int, detail: str, retry_after: str = ""):
        super().__init__(f"{status}: {detail}")
        self.status, self.retry_after = status, retry_after


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of all benchmarks of a speech server.

    Without a GPU the default is the embedded voice.
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
    """Run a server, measure it, and write the rows.

    Args:
        benchmark: Names the result, together with the size.
        measure: Measures the server at a URL.
        options: Parsed options of `arguments`.
        max_running: Number of streams that the server runs at the same time.
        reported: Further values of the result.
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
    """Return a client with a number of connections.

    Uses aiohttp, because httpx delays requests with some 100 busy connections: of 128 listeners,
    only ten received audio at a time.
    """
    connector = aiohttp.TCPConnector(limit=connections, keepalive_timeout=_TIMEOUT_S)
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    return aiohttp.ClientSession(url, connector=connector, timeout=timeout)


async def open_connections(client: aiohttp.ClientSession, connections: int) -> None:
    """Open a number of connections, as callers keep them open from earlier requests."""

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
    """Request one utterance, and read it as it arrives.

    Args:
        client: See `connect`.
        model: One of SPEAKING, as loaded by the server.
        number: The seed; selects the text if there is none.
        text: Text to speak.
        frames: Length of the utterance; None uses the server's.
        clip: `ref_audio` and `ref_text` of the voice, instead of one of the server's voices.

    Raises:
        NotServed: The server answered with an error.
    """
    body = request_body(model, number, text or TEXTS[number % len(TEXTS)], frames)
    if clip:
        del body["voice"]
        body.update(clip)
    began = time.perf_counter()
    audible, received, rest, late = 0.0, 0, b"", 0.0
    digest = hashlib.sha256()
    silent = b""  # what came before anything was audible
    async with client.post("/v1/audio/speech", json=body) as answer:
        if answer.status != 200:
            retry_after = answer.headers.get("retry-after", "")
            raise NotServed(answer.status, await answer.text(), retry_after)
        async for part in answer.content.iter_any():
            now = time.perf_counter() - began
            digest.update(part)
            data = rest + part
            whole = len(data) & ~1
            samples, rest = np.frombuffer(data[:whole], "<i2"), data[whole:]
            if not audible:
                silent += data[:whole]
                loud = audible_blocks(from_s16le(silent))
                if len(loud):
                    audible, start = now, int(loud[0]) * AUDIBLE_BLOCK
            elif len(samples):  # playback of earlier audio lasts until here
                late = max(late, now - audible - (received - start) / _RATE)
            received += len(samples)
    total = time.perf_counter() - began
    gap_s = max(0.0, late)
    return Listened(audible or total, total, received / _RATE, gap_s, digest.hexdigest())


async def listen_at(
    times_s: Iterable[float], ask: Callable[[], Coroutine[Any, Any, Listened]]
) -> list[Listened]:
    """Start listeners at given times, and wait until all have received everything.

    Args:
        times_s: Seconds from now, ascending.
        ask: Called at each of these times.
    """
    tasks, began_s = list[asyncio.Task[Listened]](), time.perf_counter()
    for at_s in times_s:
        await asyncio.sleep(max(0.0, began_s + at_s - time.perf_counter()))
        tasks.append(asyncio.create_task(ask()))
    return await asyncio.gather(*tasks)


def request_body(model: str, seed: int, text: str, frames: int | None) -> dict[str, Any]:
    """Return the body of a speech request; with None the server chooses the number of frames."""
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
    """Return time to first audio and underruns of all listeners, and the longest gap in ms."""
    first_s = [one.audible_s for one in played]
    return {
        "requests": len(played),
        **{f"ttfa_ms_p{percent}": milliseconds(first_s, percent) for percent in (50, 95, 99)},
        "underruns": sum(one.gap_s > _GAP_S for one in played),
        "gap_ms_most": milliseconds([one.gap_s for one in played], 100),
    }


def milliseconds(seconds: Sequence[float], percent: float) -> float:
    """Return a percentile of times, in milliseconds."""
    return round(float(np.percentile(seconds, percent)) * 1e3, 2)
