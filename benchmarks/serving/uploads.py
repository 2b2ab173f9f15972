"""Clients of a server under test that upload clips and read their transcripts.

They run in the benchmark's process, so that they do not share Python's lock with the server. Bodies
are built before timing starts, so that only the server is measured.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Iterable, Sequence

import aiohttp
import httpx
import soundfile

from benchmarks.serving.listeners import connect, open_connections
from izwi.arrays import Float32
from izwi.audio.mel import WHISPER_RATE


def upload_of(model: str, samples: Float32) -> httpx.Request:
    """A request to transcribe a clip as 16-bit WAV, ready to be sent to any server.

    Args:
        model: Name of the model on the server.
        samples: (n,) at WHISPER_RATE.
    """
    file = io.BytesIO()
    soundfile.write(file, samples, WHISPER_RATE, format="WAV", subtype="PCM_16")
    upload = httpx.Request(
        "POST",
        "http://server/v1/audio/transcriptions",
        data={"model": model},
        files={"file": ("clip.wav", file.getvalue(), "audio/wav")},
    )
    upload.read()
    return upload


async def post_upload(client: aiohttp.ClientSession, upload: httpx.Request) -> str:
    """Send an upload on one of the client's connections; return the body of the answer.

    Raises:
        RuntimeError: The server answered with an error.
    """
    headers = {"Content-Type": upload.headers["Content-Type"]}
    async with client.post(upload.url.path, data=upload.content, headers=headers) as answer:
        text = await answer.text()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {text}")
    return text


async def transcribe_all(
    url: str, uploads: Sequence[httpx.Request], streams: int
) -> tuple[list[float], float]:
    """Upload clips with a number of clients, each with its own open connection.

    Returns:
        Seconds that each clip took, and the total seconds.

    Raises:
        RuntimeError: The server answered with an error.
    """
    taken_s: list[float] = []
    async with connect(url, streams) as client:

        async def slot(mine: Iterable[httpx.Request]) -> None:
            for upload in mine:
                began = time.perf_counter()
                await post_upload(client, upload)
                taken_s.append(time.perf_counter() - began)

        await open_connections(client, streams)  # before the clock starts
        began = time.perf_counter()
        await asyncio.gather(*(slot(uploads[place::streams]) for place in range(streams)))
        wall_s = time.perf_counter() - began
    return taken_s, wall_s
