"""Submit a list of requests to a real engine, each at its arrival time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from benchmarks.simulation.arrivals import Arrival, Playback
from izwi.engine.async_engine import AsyncEngine
from izwi.engine_client.output_stream import Stream
from izwi.request.request import Reason


async def play(
    engine: AsyncEngine,
    arrivals: Sequence[Arrival],
    sample_rate: int,
    patience_s: float | None = None,
) -> list[Playback]:
    """Submit every request at its arrival time, and receive all output.

    Args:
        engine: A running engine.
        arrivals: Arrivals in order of time.
        sample_rate: Sample rate of the audio, Hz.
        patience_s: A listener without audio leaves after this many seconds; None for never.

    Returns:
        What each listener received, in the same order. Times count from the call.
    """
    start_s = time.perf_counter()
    played: list[Playback] = []
    listeners: list[asyncio.Task[None]] = []
    for arrival in arrivals:
        await asyncio.sleep(start_s + arrival.at_s - time.perf_counter())
        one = Playback(arrival.request, time.perf_counter() - start_s)
        stream = engine.submit(arrival.request)
        played.append(one)
        listeners.append(asyncio.create_task(_listen(stream, one, start_s, sample_rate)))
        if patience_s is not None:
            asyncio.get_running_loop().call_later(patience_s, _leave, stream, one)
    await asyncio.gather(*listeners)
    return played


async def _listen(stream: Stream, one: Playback, start_s: float, sample_rate: int) -> None:
    async for chunk in stream:
        now_s = time.perf_counter() - start_s
        if chunk.pcm is not None:
            one.chunks.append((now_s, len(chunk.pcm) / sample_rate))
        if chunk.reason is Reason.ERROR:
            one.refused = True
        elif chunk.reason in (Reason.STOP, Reason.LENGTH):
            one.ended_s = now_s


def _leave(stream: Stream, one: Playback) -> None:
    if not one.chunks:
        stream.abort()
