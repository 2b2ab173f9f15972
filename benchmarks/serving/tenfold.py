"""What gives first at one, two, five and ten times the load that a server can carry?

A closed loop finds how many requests a second the embedded voice speaks on this machine; a server
with --max-wait-ms would refuse most of it, so it needs --per-s, as found without. Then
requests arrive at random times (Poisson) at multiples of that rate; listeners leave when nothing
has come for `--patience-s`. The server has the settings of `izwi serve`, but for `--max-wait-ms`.
Behind each level the queue empties, a few requests at half the rate show whether all is as before,
and some of the answers that were given under load are asked for again, and compared by byte.

With --simulated a GPU is loaded on paper, too, at multiples of the requests a second for which
docs/scale.md plans it. Listeners on paper do not leave.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import aiohttp
import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.measure import write_result
from benchmarks.random_checkpoint import EMBEDDED
from benchmarks.serving.closed_loop import run_level
from benchmarks.serving.http_server import running
from benchmarks.serving.listeners import Listened, NotServed, figures, listen, milliseconds
from benchmarks.serving.soak_processes import children_of, usage_of
from benchmarks.simulation.arrivals import percentile_ms, poisson_within
from benchmarks.simulation.batching_delay import MACHINE as GPU
from benchmarks.simulation.fleet import FleetShape
from benchmarks.simulation.scale import simulate
from izwi.router.options import RouterOptions

_LOOK_EVERY_S = 0.5
_QUEUE_EMPTIES_S = 120.0
_CALM_S, _CALM_SHARE = 4.0, 0.5
_MOST_COMPARED = 8
_PLANNED_PER_S = 60.0  # of a GPU, as in docs/scale.md


class Ended(NamedTuple):
    """How one request ended: at the end of its audio, refused, failed, or without its listener.

    Attributes:
        after_s: From its arrival.
        heard: What was heard; None: not served.
        refusal: What the server answered; None: the listener left, or the connection broke.
        has_left: The listener left.
    """

    after_s: float
    heard: Listened | None = None
    refusal: NotServed | None = None
    has_left: bool = False


class Server(NamedTuple):
    """A server under test: its address and port, and the id of its first process."""

    url: str
    port: int
    pid: int


class Seen(NamedTuple):
    """The server at one moment.

    Attributes:
        waiting: Requests that wait for a place in the batch.
        pss_bytes: Memory of all of its processes.
        handles: Open files of all, without the connections of callers.
    """

    waiting: int
    pss_bytes: int
    handles: int


@contextmanager
def serving(options: argparse.Namespace) -> Iterator[Server]:
    """Run the server; yield it once it is ready."""
    command = [sys.executable, "-c", "from izwi_api.cli.run import main; main()", "serve"]
    command += ["--device", "cpu", "--model", EMBEDDED, "--port", str(options.port)]
    command += ["--log-level", "warning", "--log-format", "json"]  # so that each line has a level
    command += ["--max-wait-ms", str(options.max_wait_ms)]
    url = f"http://127.0.0.1:{options.port}"
    with (
        tempfile.TemporaryDirectory() as home,
        running(["env", f"IZWI_HOME={home}", *command], url) as process,
    ):
        yield Server(url, options.port, process.pid)


def look(server: Server) -> Seen:
    """Look at all processes of the server once."""
    pids, every = [server.pid], []
    while pids:
        pid = pids.pop()
        with suppress(OSError):  # it ended meanwhile
            every.append(usage_of(pid, server.port))
            pids += children_of(pid)
    text = httpx.get(f"{server.url}/metrics", timeout=60.0).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    waiting = sum(one.value for one in families["izwi_engine_waiting"].samples)
    memory, handles = (sum(one.pss_bytes for one in every), sum(one.handles for one in every))
    return Seen(int(waiting), memory, handles)


async def _watch(server: Server, seen: list[Seen]) -> None:
    while True:
        seen.append(await asyncio.to_thread(look, server))
        await asyncio.sleep(_LOOK_EVERY_S)


async def _ask(client: aiohttp.ClientSession, number: int, at_s: float) -> Ended:
    await asyncio.sleep(max(0.0, at_s - time.monotonic()))
    began_s = time.monotonic()
    heard = refusal = None
    has_left = False
    try:
        heard = await listen(client, EMBEDDED, number)
    except NotServed as error:
        refusal = error
    except TimeoutError:
        has_left = True
    except aiohttp.ClientError as error:
        print(f"{number}: {error!r}", flush=True)
    return Ended(time.monotonic() - began_s, heard, refusal, has_left)


class Level(NamedTuple):
    """What was seen of one level: its row, and how each request ended, by its seed."""

    row: dict[str, Any]
    ended: Sequence[Ended]


async def level(server: Server, per_s: float, seconds: float, patience_s: float) -> Level:
    """Send requests at a rate, and wait until each has ended."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=patience_s)
    connector = aiohttp.TCPConnector(limit=0)
    seen: list[Seen] = []
    watching = asyncio.create_task(_watch(server, seen))
    async with aiohttp.ClientSession(server.url, connector=connector, timeout=timeout) as client:
        begin_s = time.monotonic()
        ended = await asyncio.gather(
            *(
                _ask(client, number, begin_s + at_s)
                for number, at_s in enumerate(poisson_within(per_s, seconds, seed=1))
            )
        )
        wall_s = time.monotonic() - begin_s
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    row = row_of(per_s, wall_s, ended) | {
        "waiting_most": max(one.waiting for one in seen),
        "memory_mib_most": round(max(one.pss_bytes for one in seen) / (1 << 20), 1),
        "handles_most": max(one.handles for one in seen),
    }
    return Level(row, ended)


async def compare(url: str, ended: Sequence[Ended]) -> dict[str, int]:
    """Ask again for some of what was served, one after the other; count what differs."""
    served = [(seed, one.heard) for seed, one in enumerate(ended) if one.heard is not None]
    every = max(1, len(served) // _MOST_COMPARED)
    chosen = served[::every][:_MOST_COMPARED]
    async with aiohttp.ClientSession(url) as client:
        again = [(await listen(client, EMBEDDED, seed)).digest for seed, _ in chosen]
    differ = sum(heard.digest != digest for (_, heard), digest in zip(chosen, again, strict=True))
    return {"compared": len(chosen), "wrong": differ}


def row_of(per_s: float, wall_s: float, ended: Sequence[Ended]) -> dict[str, Any]:
    """Return the figures of a level, of requests that ended in `wall_s` seconds."""
    heard = [one.heard for one in ended if one.heard is not None]
    refused = [one for one in ended if one.refusal is not None and one.refusal.status == 503]
    num_left = sum(one.has_left for one in ended)
    times = [one.after_s for one in refused]
    return {
        "per_s": round(per_s, 1),
        "offered": len(ended),
        "served": len(heard),
        "refused": len(refused),
        "refused_without_retry_after": sum(
            one.refusal is None or not one.refusal.retry_after for one in refused
        ),
        "left": num_left,
        "failed": len(ended) - len(heard) - len(refused) - num_left,
        "audio_s_per_s": round(sum(one.audio_s for one in heard) / wall_s, 1),
        **(figures(heard) if heard else {}),
        **({"refusal_ms_p95": milliseconds(times, 95)} if times else {}),
    }


async def measure(server: Server, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Find the capacity, and load the server with multiples of it."""
    rows: list[dict[str, Any]] = []
    capacity = options.per_s
    if not capacity:
        await run_level(server.url, EMBEDDED, options.streams, 1)  # warms up
        began_s = time.monotonic()
        closed = await run_level(server.url, EMBEDDED, options.streams, options.rounds)
        capacity = closed["requests"] / (time.monotonic() - began_s)
        rows += [{"measured": "closed", "per_s": round(capacity, 2), **closed, **_seen_row(server)}]
    await level(server, _CALM_SHARE * capacity, _CALM_S, options.patience_s)  # --max-wait-ms learns
    for factor in options.factors:
        loaded = await level(server, factor * capacity, options.seconds, options.patience_s)
        emptied_s = await _until_empty(server)
        calm = await level(server, _CALM_SHARE * capacity, _CALM_S, options.patience_s)
        load = loaded.row | await compare(server.url, loaded.ended)
        rows += [
            {"measured": "load", "of_capacity": factor, **load, "queue_empty_after_s": emptied_s},
            {"measured": "after", "of_capacity": factor, **calm.row, **_seen_row(server)},
        ]
        print(*rows[-2:], sep="\n", flush=True)
    return rows


def _seen_row(server: Server) -> dict[str, Any]:
    seen = look(server)
    return {"memory_mib": round(seen.pss_bytes / (1 << 20), 1), "handles": seen.handles}


async def _until_empty(server: Server) -> float:
    """Return how long requests still wait, seconds.

    Raises:
        RuntimeError: The queue did not become empty.
    """
    began_s = time.monotonic()
    while (passed_s := time.monotonic() - began_s) < _QUEUE_EMPTIES_S:
        if not (await asyncio.to_thread(look, server)).waiting:
            return round(passed_s, 1)
        await asyncio.sleep(_LOOK_EVERY_S)
    raise RuntimeError("requests wait whose callers are gone")


def simulated(factors: Sequence[float], seconds: float, max_wait_ms: float) -> list[dict[str, Any]]:
    """Load a GPU on paper with multiples of what it is planned for."""
    rows = []
    shape = FleetShape((1,), RouterOptions(max_wait_s=max_wait_ms / 1e3))
    for factor in factors:
        per_s = factor * _PLANNED_PER_S
        _, played = simulate(shape, GPU, per_s, round(per_s * seconds))
        first_s = [one.first_audio_s for one in played if one.chunks]
        rows.append(
            {
                "simulated": "H200",
                "of_planned": factor,
                "per_s": per_s,
                "offered": len(played),
                "served": len(first_s),
                "refused": sum(one.refused for one in played),
                "ttfa_ms_p50": percentile_ms(first_s, 50),
                "ttfa_ms_p95": percentile_ms(first_s, 95),
                "underruns": sum(one.gaps_s > 0 for one in played if one.ended_s is not None),
            }
        )
        print(rows[-1], flush=True)
    return rows


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--factors", type=float, nargs="+", default=[1.0, 2.0, 5.0, 10.0])
    made.add_argument("--per-s", type=float, default=0.0, help="expected load; 0: a closed loop's")
    made.add_argument("--seconds", type=float, default=10.0, help="of each level")
    made.add_argument("--streams", type=int, default=32, help="of the closed loop")
    made.add_argument("--rounds", type=int, default=4, help="of each of its listeners")
    made.add_argument("--patience-s", type=float, default=10.0)
    made.add_argument("--max-wait-ms", type=float, default=0.0, help="of the server; 0: no limit")
    made.add_argument("--port", type=int, default=8193)
    made.add_argument("--simulated", action="store_true", help="a GPU on paper, and nothing else")
    made.add_argument("--name", default=f"tenfold_{EMBEDDED}", help="of the result")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Load a server or a simulated GPU, and write the result."""
    options = parser().parse_args(arguments)
    named = ("seconds", "patience_s", "max_wait_ms")
    if options.simulated:
        rows = [
            {"max_wait_ms": max_wait_ms} | row
            for max_wait_ms in dict.fromkeys((0.0, options.max_wait_ms))
            for row in simulated(options.factors, options.seconds, max_wait_ms)
        ]
        write_result(options.name, rows, seconds=options.seconds)
        return
    with serving(options) as server:
        rows = asyncio.run(measure(server, options))
    fixed = {name: getattr(options, name) for name in named}
    write_result(options.name, rows, cores_allowed=len(os.sched_getaffinity(0)), **fixed)


if __name__ == "__main__":
    main()
