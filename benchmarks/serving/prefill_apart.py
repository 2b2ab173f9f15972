"""What does it do to running streams if one engine computes long prompts for the other?

Two engine processes of a chat model with random weights run behind the router of an API server,
which is this process. Some streams decode all the time, and long prompts that share nothing arrive
at a steady rate. First both engines do all, then the first one computes the long prompts
(`--prefill-replicas 1`). Columns:

    gap_ms_*        between two outputs of a running stream; a listener's slack has to bridge it
    first_ms_*      first output of the long prompts
    moved           long prompts of which more than half came from the other engine
    tokens_per_s    of all requests
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from benchmarks.chat.speed import SAMPLED, SIZES, write_folder
from benchmarks.measure import write_result
from benchmarks.random_checkpoint import RandomBackend
from izwi.backends.choice import own_device
from izwi.backends.torch.backend import torch_backend
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.engine_client.protocol import Answer
from izwi.request.request import Request
from izwi.router.options import RouterOptions
from izwi_api.serve.engine_process import ApiServerConnections
from izwi_api.serve.remote_engine import RemoteEngine
from izwi_api.serve.replica_router import ReplicaRouter
from izwi_api.serve.sockets import bind, open_socket, receive
from izwi_api.serve.wire import RequestCodec
from izwi_models.qwen3_chat import FAMILY
from izwi_models.qwen3_chat.prompt import ChatPrompt

_PROGRAM = (sys.executable, "-m", "benchmarks.serving.prefill_apart", "--engine")
_MS = 1e3


def run_engine(options: argparse.Namespace) -> None:
    """Run as one of the engine processes, until it is killed."""
    device = own_device(options.devices)
    backend = RandomBackend(torch_backend(device).ops)
    with tempfile.TemporaryDirectory() as place:
        model = FAMILY.load_model(write_folder(options.size, Path(place) / "chat"), backend)
    engine = Engine({"chat": model}, backend, EngineConfig(max_running=options.streams + 8))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    lines = ApiServerConnections(engine, RequestCodec(), context, publishes=True)
    commands = open_socket(context, zmq.PULL)
    bind(commands, options.engine)
    lines.thread.start()
    while True:
        commands.poll()
        if frames := receive(commands):
            lines.receive(frames)


def request_of(name: str, length: int, tokens: int, seed: int) -> Request:
    """Return a request with random ids."""
    ids = np.random.default_rng(seed).integers(0, 256, length, dtype=np.int64)
    return Request(
        name, "chat", ChatPrompt(ids, False), SAMPLED, max_entries=tokens, min_entries=tokens
    )


async def read(answer: Answer) -> tuple[list[float], int, int]:
    """Return when outputs came, their tokens, and how many positions were cached."""
    came_s, num_tokens, num_cached = list[float](), 0, 0
    async for chunk in answer:
        if chunk.error is not None:
            raise chunk.error
        if len(chunk.entries):
            came_s.append(time.perf_counter())
            num_tokens += len(chunk.entries)
        if chunk.timing is not None:
            num_cached = chunk.timing.num_cached or 0
    return came_s, num_tokens, num_cached


async def play(router: ReplicaRouter, options: argparse.Namespace, salt: int) -> dict[str, Any]:
    """Run the streams, and the long prompts beside them."""
    ends_s = time.perf_counter() + options.seconds
    gaps_s, firsts_s, tokens, moved = list[float](), list[float](), list[int](), list[bool]()

    async def stream(place: int) -> None:
        number = 0
        while time.perf_counter() < ends_s:
            name = f"{salt}-{place}-{number}"
            seed = salt * 10**6 + place * 1000 + number
            came_s, count, _ = await read(router.submit(request_of(name, 128, 256, seed)))
            gaps_s.extend(b - a for a, b in pairwise(came_s))
            tokens.append(count)
            number += 1

    async def long(number: int) -> None:
        request = request_of(
            f"{salt}-long-{number}", options.prompt, 32, salt * 10**6 + 10**5 + number
        )
        began_s = time.perf_counter()
        came_s, count, num_cached = await read(router.submit(request))
        firsts_s.append(came_s[0] - began_s)
        tokens.append(count)
        moved.append(num_cached > options.prompt // 2)

    began_s = time.perf_counter()
    streams = [asyncio.create_task(stream(place)) for place in range(options.streams)]
    longs = []
    await asyncio.sleep(min(1.0, options.seconds / 4))
    while options.per_s and time.perf_counter() < ends_s - 1 / options.per_s:
        longs.append(asyncio.create_task(long(len(longs))))
        await asyncio.sleep(1 / options.per_s)
    await asyncio.gather(*streams, *longs)
    return {
        "streams": options.streams,
        "prompt": options.prompt,
        "prompts_per_s": options.per_s,
        **_percentiles("gap_ms", gaps_s),
        **_percentiles("first_ms", firsts_s),
        "long": len(longs),
        "moved": sum(moved),
        "tokens_per_s": round(sum(tokens) / (time.perf_counter() - began_s), 1),
    }


async def _is_connected(engine: RemoteEngine) -> None:
    while not engine.alive:  # noqa: ASYNC110
        await asyncio.sleep(0.1)


def _percentiles(name: str, times_s: Sequence[float]) -> dict[str, float]:
    found = {50: "p50", 95: "p95", 99: "p99", 100: "most"}
    return {
        f"{name}_{called}": round(_MS * float(np.percentile(times_s, percent)), 1)
        for percent, called in found.items()
        if times_s
    }


async def measure(options: argparse.Namespace, folder: Path, addresses: Sequence[str]) -> None:
    """Measure both placements on the same engines."""
    rows = []
    for number, num_prefill in enumerate((0, 1)):
        engines = [
            RemoteEngine(f"api-server-{number}", folder, RequestCodec(), replica=replica)
            for replica in range(len(addresses))
        ]
        router = ReplicaRouter(engines, RouterOptions("least_load", num_prefill=num_prefill))
        for replica, address in enumerate(addresses):
            router.connect(replica, address)
        async with asyncio.timeout(options.start_s):
            await asyncio.gather(*map(_is_connected, engines))
        for warm in range(2):
            await asyncio.gather(
                *(
                    read(engine.submit(request_of(f"warm-{number}-{warm}-{n}", 256, 8, n)))
                    for n, engine in enumerate(engines)
                )
            )
        row = {"num_prefill": num_prefill, **await play(router, options, 1 + number)}
        rows.append(row)
        write_result("prefill_apart", rows, size=options.size, devices=options.devices)
        await router.stop()


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="8B")
    parser.add_argument("--devices", default="cuda:0,cuda:1")
    parser.add_argument("--streams", type=int, default=32, help="that decode all the time")
    parser.add_argument("--prompt", type=int, default=8192, help="positions of the long prompts")
    parser.add_argument("--per-s", type=float, default=1.0, help="long prompts a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each placement")
    parser.add_argument("--start-s", type=float, default=120.0, help="for which the start may last")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        run_engine(options)
        return
    with tempfile.TemporaryDirectory(prefix="izwi-") as place:
        folder = Path(place)
        addresses, processes = [], []
        for number, device in enumerate(options.devices.split(",")):
            addresses.append(f"ipc://{folder / f'engine-{number}'}")
            more = ["--size", options.size, "--devices", device, "--streams", str(options.streams)]
            processes.append(subprocess.Popen([*_PROGRAM, addresses[-1], *more]))
        try:
            asyncio.run(measure(options, folder, addresses))
        finally:
            for process in processes:
                process.kill()
    os._exit(0)  # at once: sockets of killed engines


if __name__ == "__main__":
    main()
