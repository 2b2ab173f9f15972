"""How much do several engines serve, what does the router cost, and what does a lost engine cost?

`--devices cuda:0,cuda:1` serves from the first device alone, then from both; with 4 or 8 devices
from 1, 2, 4 and 8. A closed loop keeps a number of listeners busy on each device. An open loop then
sends Poisson arrivals at a share of the closed loop's rate, and at several times this rate. Of two
engines or more the last one is killed with streams in flight, which must go on at the same byte.

The router's cost is processor time of a submitted request, beside a client of one engine alone.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import aiohttp
import torch
from msgspec import Struct

from benchmarks.measure import TEXTS, write_result
from benchmarks.random_checkpoint import EMBEDDED, SPEAKING
from benchmarks.serving.closed_loop import run_level
from benchmarks.serving.http_server import served_by_replicas
from benchmarks.serving.listeners import connect, listen, milliseconds, request_body
from izwi.arrays import Int64
from izwi.request.request import Chunk, EncodeInput, Reason, Request
from izwi.request.serialization import Frame
from izwi.router.options import RouterOptions
from izwi_api.serve import wire
from izwi_api.serve.operator_socket import ListReplicas, ask_supervisor
from izwi_api.serve.remote_engine import RemoteEngine
from izwi_api.serve.replica_router import ReplicaRouter

_SECONDS_IN_MS = 1e3
_ROUNDS = 7  # of the router's cost, of which the median counts
_REQUESTS = 400
_PAGE = 16


class IdsPrompt(Struct, frozen=True, eq=False, tag=True):
    """A prompt of token ids."""

    ids: Int64
    encode_inputs: tuple[EncodeInput, ...] = ()

    @property
    def num_positions(self) -> int:
        """Number of positions of the prompt."""
        return len(self.ids)

    @property
    def content_keys(self) -> Int64:
        """Content keys of the positions: the ids."""
        return self.ids


class UnconnectedEngine(RemoteEngine):
    """A client that encodes its commands and sends them nowhere; its engine answers at once."""

    def __init__(self, replica: int):
        codec = wire.RequestCodec([IdsPrompt])
        super().__init__("api-server", Path(), codec, replica=replica)
        self._loop, self._is_welcome = asyncio.get_running_loop(), True
        if self.router is not None:
            self.router.welcomed(self)

    def _send(self, frames: list[Frame]) -> None:
        del frames

    def answer(self, last: Sequence[Chunk]) -> None:
        """Receive the last chunks of requests."""
        self._acknowledge(wire.encode_chunks(last))


async def measure_router(positions: Sequence[int]) -> list[dict[str, Any]]:
    """Return the processor time of a request without a router, and behind it."""
    rows = []
    for num_positions in positions:
        alone = UnconnectedEngine(0)
        base_ms = _request_ms([alone], alone.submit_all, num_positions)
        for num_replicas in (1, 2, 8):
            engines = [UnconnectedEngine(number) for number in range(num_replicas)]
            router = ReplicaRouter(engines, RouterOptions("prefix", _PAGE))
            for engine in engines:
                router.welcomed(engine)
            spent_ms = _request_ms(engines, router.submit_all, num_positions)
            rows.append(
                {
                    "measured": "router",
                    "replicas": num_replicas,
                    "prompt_positions": num_positions,
                    "client_cpu_ms": round(base_ms, 4),
                    "router_cpu_ms": round(spent_ms - base_ms, 4),
                }
            )
    return rows


def _request_ms(
    engines: Sequence[UnconnectedEngine],
    submit_all: Callable[[Sequence[Request]], object],
    num_positions: int,
) -> float:
    """Return the median processor time of a request from its submission to its end, in ms."""
    times_ms, numbers = [], count()
    shared = list(range(num_positions // 2))  # half of each prompt is a conversation so far
    for _ in range(_ROUNDS):
        requests = [
            Request(f"r{next(numbers)}", "chat", _prompt(shared, number, num_positions))
            for number in range(_REQUESTS)
        ]
        began_s = time.process_time()
        answers = [submit_all([request]) for request in requests]
        for engine in engines:
            names = [request.request_id for request in requests if engine.runs(request.request_id)]
            engine.answer([_last(name) for name in names])
        times_ms.append((time.process_time() - began_s) / _REQUESTS * _SECONDS_IN_MS)
        del answers
    return statistics.median(times_ms)


def _prompt(shared: Sequence[int], number: int, num_positions: int) -> IdsPrompt:
    rest = range(number * 1000, number * 1000 + num_positions - len(shared))
    return IdsPrompt(torch.tensor([*shared, *rest]).numpy())


def _last(request_id: str) -> Chunk:
    return Chunk(request_id, torch.zeros((0, 1), dtype=torch.int64).numpy(), reason=Reason.STOP)


async def measure_throughput(
    url: str, options: argparse.Namespace, num_replicas: int
) -> list[dict[str, Any]]:
    """Measure a closed loop, and open loops at shares of its rate."""
    streams, size = options.streams * num_replicas, options.size
    clients = options.clients * num_replicas
    await run_level(url, size, streams, 1)  # warms all engines up
    closed = await run_level(url, size, streams, options.rounds, clients)
    per_s = closed["audio_s_per_s"] / (options.frames * 0.08)
    rows = [{"measured": "closed", "replicas": num_replicas, **closed}]
    for rate in options.rates:
        row = await _open_loop(url, options, rate * num_replicas, num_replicas)
        rows.append({"measured": "open", "replicas": num_replicas, **row})
    for share in options.shares:
        row = await _open_loop(url, options, share * per_s, num_replicas)
        rows.append({"measured": "open", "replicas": num_replicas, "of_closed_rate": share, **row})
    return rows


async def _open_loop(
    url: str, options: argparse.Namespace, per_s: float, num_replicas: int
) -> dict[str, Any]:
    """Send Poisson arrivals; some may be refused."""
    times, at_s = random.Random(1), 0.0
    first_s: list[float] = []
    refused = failed = 0
    async with connect(url, 1024) as client:

        async def one(number: int, at_s: float) -> None:
            nonlocal refused, failed
            await asyncio.sleep(at_s)
            try:
                first_s.append((await listen(client, options.size, number)).audible_s)
            except RuntimeError as error:
                is_refusal = str(error).startswith(("503", "429"))
                refused, failed = refused + is_refusal, failed + (not is_refusal)

        tasks = []
        for number in range(options.arrivals * num_replicas):
            at_s += times.expovariate(per_s)
            tasks.append(asyncio.create_task(one(number, at_s)))
        await asyncio.gather(*tasks)
    return {
        "per_s": round(per_s, 2),
        "accepted": len(first_s),
        "refused": refused,
        "failed": failed,
        **{f"ttfa_ms_p{percent}": milliseconds(first_s, percent) for percent in (50, 95)},
    }


async def measure_death(url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Kill an engine with streams in flight; compare them with undisturbed ones."""
    replicas = ask_supervisor(options.port, ListReplicas()).replicas
    # as many as the engines that are left run at a time
    num_streams = min(options.lost_streams, options.running * (len(replicas) - 1))
    async with connect(url, num_streams) as client:

        async def all_streams(begun: asyncio.Event | None = None) -> list[tuple[str, list[float]]]:
            waiting = set(range(num_streams))

            def has_begun(number: int) -> None:
                waiting.discard(number)
                if not waiting and begun is not None:
                    begun.set()

            return await asyncio.gather(
                *(_digest(client, options, number, has_begun) for number in range(num_streams))
            )

        undisturbed = await all_streams()
        begun = asyncio.Event()
        reading = asyncio.create_task(all_streams(begun))
        await begun.wait()
        killed_s = time.perf_counter()
        pid = replicas[-1].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        disturbed = await reading
    pauses = [_longest_pause(came_s) for _, came_s in undisturbed]
    after = [
        _longest_pause([killed_s, *(at_s for at_s in came_s if at_s > killed_s)])
        for _, came_s in disturbed
    ]
    # until its next part; a stream that had ended by then counts for nothing
    nexts = [
        min(at_s for at_s in came_s if at_s > killed_s) - killed_s
        for _, came_s in disturbed
        if came_s[-1] > killed_s
    ]
    return {
        "measured": "killed",
        "replicas": len(replicas),
        "streams": num_streams,
        "equal": sum(a == b for (a, _), (b, _) in zip(undisturbed, disturbed, strict=True)),
        "next_part_ms_most": milliseconds(nexts, 100),
        "next_part_ms_p50": milliseconds(nexts, 50),
        "pause_ms_most": milliseconds(after, 100),
        "pause_ms_p50": milliseconds(after, 50),
        "undisturbed_pause_ms_most": milliseconds(pauses, 100),
    }


async def _digest(
    client: aiohttp.ClientSession,
    options: argparse.Namespace,
    number: int,
    has_begun: Callable[[int], None],
) -> tuple[str, list[float]]:
    """Return the digest of a stream, and the times at which its parts came."""
    text = TEXTS[number % len(TEXTS)]
    body = request_body(options.size, number, text, options.lost_frames)
    audio, came_s = hashlib.sha256(), list[float]()
    async with client.post("/v1/audio/speech", json=body) as answer:
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {await answer.text()}")
        async for part in answer.content.iter_any():
            came_s.append(time.perf_counter())
            audio.update(part)
            has_begun(number)
    return audio.hexdigest(), came_s


def _longest_pause(came_s: Sequence[float]) -> float:
    return max((b - a for a, b in pairwise(came_s)), default=0.0)


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SPEAKING, default="tts-1.7b" if on_gpu else EMBEDDED)
    parser.add_argument("--devices", default="cuda:0,cuda:1" if on_gpu else "cpu,cpu")
    parser.add_argument("--counts", default="1,2,4,8", help="numbers of devices")
    parser.add_argument("--frames", type=int, default=52, help="frames of an utterance")
    parser.add_argument("--streams", type=int, default=64 if on_gpu else 4, help="of each device")
    parser.add_argument(
        "--running", type=int, help="sequences that a device runs at a time; default: --streams"
    )
    parser.add_argument("--rounds", type=int, default=8 if on_gpu else 2, help="of each listener")
    parser.add_argument(
        "--arrivals", type=int, default=256 if on_gpu else 12, help="of each device"
    )
    parser.add_argument(
        "--clients", type=int, default=1, help="processes of listeners, for each device"
    )
    parser.add_argument(
        "--api-servers", type=int, default=1, help="API-server processes, for each device"
    )
    parser.add_argument(
        "--rates", type=float, nargs="*", default=[], help="arrivals a second, of each device"
    )
    parser.add_argument("--shares", type=float, nargs="*", default=[0.7, 4.0])
    parser.add_argument("--lost-streams", type=int, default=20)
    parser.add_argument("--lost-frames", type=int, default=120 if on_gpu else 60)
    parser.add_argument("--positions", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--port", type=int, default=8100)
    options = parser.parse_args()
    options.running = options.running or options.streams
    devices = options.devices.split(",")
    rows = asyncio.run(measure_router(options.positions))
    counts = [n for n in map(int, options.counts.split(",")) if n <= len(devices)]
    for num_replicas in counts:
        used = devices[:num_replicas]
        with served_by_replicas(
            *(options.size, options.frames, options.running, options.port),
            used,
            options.api_servers * num_replicas,
        ) as url:
            rows += asyncio.run(measure_throughput(url, options, num_replicas))
            if num_replicas > 1:
                rows.append(asyncio.run(measure_death(url, options)))
            write_result(f"replicas_{options.size}", rows, devices=devices, frames=options.frames)


if __name__ == "__main__":
    main()
