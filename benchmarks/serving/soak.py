"""Does a server stay as it is for an hour, with all that callers and machines do to it?

    python -m benchmarks.serving.soak --minutes 60 --rate 0.25
    python -m benchmarks.serving.soak --minutes 10 --rate 0.5 --name soak_nightly

`izwi serve` runs in its processes with the embedded models, two engines and two API servers by
default. Callers speak, clone, transcribe, chat and hold live sessions at random times; some read
half as fast as their answer is played, some leave before or during it. Every few minutes the last
engine is killed (kill -9) and started again by the supervisor, and every few minutes all callers
get another key and the old one is removed.

Every answer is compared with the undisturbed one: of speech each byte, of a live session the words.

Verdicts, after the warm-up:

    memory   of no process that lived through it grew by more than 1 % an hour (median slope of all
             pairs of samples) and by more than 0.5 MiB in all. Counted is what is in no file,
             shared memory by its share, without what an engine's bounded caches hold: pages of keys
             and values (up to --kv-mib and --host-mib), results of encoders (64 MiB) and codec
             states (half of --host-mib). These grow with each new text and clip until they are
             full, which may take longer than the run, and then stay
    handles  of no process more are open in the last fifth than in the first, without connections
             that their callers have not closed
    answers  none was wrong, cut off, refused or failed
    keys     each removed key got 401 within 3 s
    p95      of the second half is within 10 % of the first. Each time is divided by the median of
             its kind; what was in flight when an engine was killed, and 15 s later, is left out.
             On a machine that does other work, too, this says little: `machine_cores` is all of it

The exit status is 1 if one of them fails; p95 counts only with --idle-machine.

With --record what was seen is also written to a file each minute, and --judge makes result and
picture of such a file: on another machine, or of a run that was ended in its midst.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measure import write_result
from benchmarks.pictures import Curve, Panel, draw
from benchmarks.random_checkpoint import EMBEDDED, EMBEDDED_LISTENER
from benchmarks.serving.http_server import running
from benchmarks.serving.soak_callers import COMPARED, EMBEDDED_CHAT, MIX, VARIANTS, Asked, Callers
from benchmarks.serving.soak_processes import Sample, Usage, sample, trends
from izwi_api.serve.operator_socket import ListReplicas, ask_supervisor
from izwi_api.usage.keys import add_key, remove_key
from izwi_api.usage.limits import KeyLimits

_MOST_PERCENT_PER_HOUR = 1.0
_MOST_DRIFT = 0.10
_MOST_IN_FLIGHT = 32
_CALM_AFTER_S = 15.0  # a killed engine is loading again, on the processors of the others
_KEY_KNOWN_S, _KEY_GONE_S = 2.0, 3.0
_SAMPLES_EVERY_S = 10.0
_RECORD_EVERY_S = 60.0
_BAD = ("wrong", "cut", "failed", "refused")


class Run(NamedTuple):
    """What happened: requests, samples, times of kills, and removed keys that still worked."""

    asked: list[Asked]
    samples: list[Sample]
    killed_s: list[float]
    keys: Counter[str]


_NAMED = (
    *("minutes", "warm_up_minutes", "rate", "replicas", "api_servers", "kv_mib", "host_mib"),
    "kill_every_s",
)


def record(options: argparse.Namespace, run: Run) -> None:
    """Write what was seen so far; a reader sees the file as it was before, or whole."""
    seen = {
        "options": {name: getattr(options, name) for name in _NAMED},
        "machine": {
            "device": f"{platform.machine()}, {os.cpu_count()} cores",
            "cores_allowed": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "torch": version("torch"),
        },
        "asked": [asdict(one) for one in run.asked],
        "samples": [asdict(one) | {"used": list(one.used.items())} for one in run.samples],
        "killed_s": run.killed_s,
        "keys": run.keys,
    }
    path = Path(options.record)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(seen), encoding="utf-8")
    part.replace(path)


def recorded(path: Path) -> tuple[dict[str, Any], Run]:
    """Return the options, the machine, and the run of a file that `record` wrote."""
    seen = json.loads(path.read_text(encoding="utf-8"))
    samples = [
        Sample(**one | {"used": {(name, pid): Usage(*used) for (name, pid), used in one["used"]}})
        for one in seen["samples"]
    ]
    asked = [Asked(**one) for one in seen["asked"]]
    fixed = seen["options"] | {"recorded_on": seen["machine"]}
    return fixed, Run(asked, samples, seen["killed_s"], Counter(seen["keys"]))


async def soak(options: argparse.Namespace, url: str, home: Path, supervisor: int) -> Run:
    """Run the load until its time is over."""
    operator = add_key(home / "keys.toml", "operator", KeyLimits())
    callers = Callers(url, add_key(home / "keys.toml", "caller-0", KeyLimits()))
    await asyncio.sleep(_KEY_KNOWN_S)
    run = Run([], [], [], Counter())
    try:
        await callers.learn()
        print("the undisturbed answers are known", flush=True)
        async with asyncio.timeout(options.minutes * 60 + 600):
            disturbances = [
                asyncio.create_task(task)
                for task in (
                    _kill(options, run),
                    _change_keys(options, callers, home, run),
                    _watch(options, supervisor, operator, run),
                    _record_often(options, run),
                )
            ]
            await _arrive(options, callers, run)
            for task in disturbances:
                task.cancel()
            ended = await asyncio.gather(*disturbances, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error
    finally:
        await callers.close()
    return run


async def _arrive(options: argparse.Namespace, callers: Callers, run: Run) -> None:
    """Send requests at random times, at most some at once, and wait for the last ones."""
    chance = random.Random(options.seed)
    kinds, weights = list(MIX), list(MIX.values())
    tasks, until_s = set[asyncio.Task[None]](), time.monotonic() + options.minutes * 60

    async def ask(kind: str, number: int) -> None:
        asked = await callers.ask(kind, number)
        run.asked.append(asked)
        if asked.end in _BAD:
            print(f"{kind} {number} {asked.end}: {asked.detail}", flush=True)

    while time.monotonic() < until_s:
        await asyncio.sleep(chance.expovariate(options.rate))
        if len(tasks) < _MOST_IN_FLIGHT:
            (kind,) = chance.choices(kinds, weights)
            task = asyncio.create_task(ask(kind, chance.randrange(VARIANTS[kind])))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)


async def _kill(options: argparse.Namespace, run: Run) -> None:
    """Kill the last engine again and again; the others live through it all."""
    while True:
        await asyncio.sleep(options.kill_every_s)
        last = ask_supervisor(options.port, ListReplicas()).replicas[-1]
        if last.pid is not None:
            run.killed_s.append(time.monotonic())
            os.kill(last.pid, signal.SIGKILL)


async def _change_keys(options: argparse.Namespace, callers: Callers, home: Path, run: Run) -> None:
    """Give callers another key and remove the old one, again and again."""
    path, number = home / "keys.toml", 0
    while True:
        await asyncio.sleep(options.key_every_s)
        number += 1
        key, old = add_key(path, f"caller-{number}", KeyLimits()), callers.key
        await asyncio.sleep(_KEY_KNOWN_S)
        callers.key = key
        await asyncio.sleep(_KEY_KNOWN_S)  # what is on its way has arrived
        remove_key(path, f"caller-{number - 1}")
        await asyncio.sleep(_KEY_GONE_S)
        # several times, because each API server must know
        refused = [await callers.is_refused(old) for _ in range(8)]
        run.keys["removed" if all(refused) else "still_accepted"] += 1


async def _watch(options: argparse.Namespace, supervisor: int, key: str, run: Run) -> None:
    while True:
        run.samples.append(await asyncio.to_thread(sample, supervisor, options.port, key))
        await asyncio.sleep(_SAMPLES_EVERY_S)


async def _record_often(options: argparse.Namespace, run: Run) -> None:
    while options.record:
        await asyncio.sleep(_RECORD_EVERY_S)
        record(options, run)


def judge(options: argparse.Namespace, run: Run) -> tuple[list[dict[str, Any]], dict[str, bool]]:
    """Return the rows of the result, and the verdicts."""
    begin_s = run.samples[0].at_s
    from_s = begin_s + options.warm_up_minutes * 60
    rows: list[dict[str, Any]] = []
    found = trends(run.samples, from_s)
    rows += [{"measured": "process"} | asdict(one) for one in found]
    ends = Counter((one.kind, one.end) for one in run.asked)
    for kind in MIX:
        times_s = [one.total_s for one in run.asked if one.kind == kind and one.end == "equal"]
        rows.append(
            {
                "measured": "requests",
                "kind": kind,
                **{end: count for (of, end), count in sorted(ends.items()) if of == kind},
                **({"total_s_p50": round(statistics.median(times_s), 3)} if times_s else {}),
                **({"total_s_p95": _p95(times_s)} if times_s else {}),
            }
        )
    halves = _halves(run, from_s)
    rows.append({"measured": "kills", "count": len(run.killed_s)} | dict(run.keys))
    rows.append({"measured": "halves"} | halves)
    bad = sum(count for (_, end), count in ends.items() if end in _BAD)
    verdicts = {
        "memory": bool(found) and not any(one.has_grown(_MOST_PERCENT_PER_HOUR) for one in found),
        "handles": bool(found) and not any(one.has_more_handles() for one in found),
        "answers": bad == 0 and any(end == "equal" for _, end in ends),
        "keys": not run.keys["still_accepted"] and run.keys["removed"] > 0,
        "p95": halves["p95_drift"] <= _MOST_DRIFT,
    }
    return rows, verdicts


def _halves(run: Run, from_s: float) -> dict[str, Any]:
    """Compare times and processor time of the second half after the warm-up with the first."""
    until_s = run.samples[-1].at_s
    middle_s = (from_s + until_s) / 2
    calm = [
        one
        for one in run.asked
        if one.kind in COMPARED and one.end == "equal" and not _is_disturbed(one, run.killed_s)
    ]
    medians = {
        kind: statistics.median(one.total_s for one in calm if one.kind == kind)
        for kind in {one.kind for one in calm}
    }
    row: dict[str, Any] = {}
    for name, begin_s, end_s in (("first", from_s, middle_s), ("second", middle_s, until_s)):
        asked = [one for one in calm if begin_s <= one.began_s < end_s]
        relative = [one.total_s / medians[one.kind] for one in asked]
        samples = [one for one in run.samples if begin_s <= one.at_s <= end_s]
        spent_s = sum(_spent_s(samples).values())
        served = sum(begin_s <= one.began_s < end_s for one in run.asked)
        seconds = samples[-1].at_s - samples[0].at_s
        busy_s = samples[-1].machine_busy_s - samples[0].machine_busy_s
        row |= {
            f"{name}_requests": served,
            f"{name}_p95_of_median": _p95(relative) if relative else float("nan"),
            f"{name}_cpu_s_per_request": round(spent_s / max(1, served), 3),
            f"{name}_machine_cores": round(busy_s / seconds, 2),
        }
    drift = row["second_p95_of_median"] / row["first_p95_of_median"] - 1
    return row | {"p95_drift": round(drift, 3)}


def _is_disturbed(one: Asked, killed_s: Sequence[float]) -> bool:
    end_s = one.began_s + one.total_s
    return any(one.began_s - _CALM_AFTER_S < at_s < end_s for at_s in killed_s)


def _spent_s(samples: Sequence[Sample]) -> dict[tuple[str, int], float]:
    """Return the processor time of each process between the first and the last sample."""
    first: dict[tuple[str, int], float] = {}
    last: dict[tuple[str, int], float] = {}
    for place, one in enumerate(samples):
        for who, used in one.used.items():
            # what starts later is counted from its start
            first.setdefault(who, used.cpu_s if place == 0 else 0.0)
            last[who] = used.cpu_s
    return {who: last[who] - first[who] for who in last}


def _p95(times_s: Sequence[float]) -> float:
    return round(float(np.percentile(times_s, 95)), 3)


def picture(options: argparse.Namespace, run: Run) -> None:
    """Draw memory, handles and times over the minutes."""
    begin_s = run.samples[0].at_s
    thin = run.samples[:: max(1, len(run.samples) // 120)]
    every = sorted({who for one in thin for who in one.used})
    colours = {name: place for place, name in enumerate(sorted({name for name, _ in every}))}
    memory: dict[str, Curve] = {}
    handles: dict[str, Curve] = {}
    for who in every:
        if "worker" in who[0]:
            continue
        used = [((one.at_s - begin_s) / 60, one.used[who]) for one in thin if who in one.used]
        label = who[0] if who[0] not in memory else f"_{who[0]} {who[1]}"  # hidden by the legend
        minutes = [at for at, _ in used]
        colour = colours[who[0]]
        own = [one.anonymous_bytes / (1 << 20) for _, one in used]
        memory[label] = Curve(minutes, own, colour)
        handles[label] = Curve(minutes, [float(one.handles) for _, one in used], colour)
    times = {kind: _by_minutes(run, kind, begin_s, place) for place, kind in enumerate(COMPARED)}
    draw(
        options.name,
        f"{options.minutes:g} minutes, an engine killed {len(run.killed_s)} times",
        [
            Panel("minutes", "memory in no file, MiB", memory, log_y=True),
            Panel("minutes", "open handles", handles),
            Panel("minutes", "95th percentile, s", times, log_y=True),
        ],
    )


def _by_minutes(run: Run, kind: str, begin_s: float, colour: int) -> Curve:
    """Return the 95th percentile of a kind's times, in twelve parts of the run."""
    part_s = (run.samples[-1].at_s - begin_s) / 12
    minutes, seconds = [], []
    for part in range(12):
        from_s = begin_s + part * part_s
        times_s = [
            one.total_s
            for one in run.asked
            if one.kind == kind and one.end == "equal" and from_s <= one.began_s < from_s + part_s
        ]
        if times_s:
            minutes.append((part + 0.5) * part_s / 60)
            seconds.append(_p95(times_s))
    return Curve(minutes, seconds, colour)


@contextmanager
def served(options: argparse.Namespace, home: Path) -> Iterator[tuple[str, int]]:
    """Run the server; yield its address, and the id of its first process."""
    command = [sys.executable, "-c", "from izwi_api.cli.run import main; main()", "serve"]
    for model in (EMBEDDED, EMBEDDED_LISTENER, EMBEDDED_CHAT):  # those that are asked
        command += ["--model", model]
    command += ["--port", str(options.port), "--replicas", str(options.replicas)]
    command += ["--api-servers", str(options.api_servers)]
    command += ["--kv-mib", str(options.kv_mib), "--host-mib", str(options.host_mib)]
    command += ["--api-keys", str(home / "keys.toml"), "--log-level", "warning"]
    command += ["--log-format", "json"]  # in this format uvicorn's lines have a level, too
    url = f"http://127.0.0.1:{options.port}"
    # exec, so that this process is the supervisor itself
    with running(["env", f"IZWI_HOME={home}", *command], url) as process:
        yield url, process.pid


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--minutes", type=float, default=10)
    made.add_argument("--warm-up-minutes", type=float, default=-1, help="default: a quarter")
    made.add_argument("--rate", type=float, default=0.5, help="requests a second")
    made.add_argument("--kill-every-s", type=float, default=150)
    made.add_argument("--key-every-s", type=float, default=60)
    made.add_argument("--replicas", type=int, default=2)
    made.add_argument("--api-servers", type=int, default=2)
    made.add_argument("--kv-mib", type=int, default=64, help="small, so that it is soon full")
    made.add_argument("--host-mib", type=int, default=16)
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--port", type=int, default=8192)
    made.add_argument("--name", default="soak", help="of the files in benchmarks/results")
    made.add_argument("--record", default="", help="file for what was seen, written each minute")
    made.add_argument("--judge", default="", help="such a file: run nothing, and judge it")
    made.add_argument("--idle-machine", action="store_true", help="p95 counts as a verdict")
    return made


def _run(options: argparse.Namespace) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        add_key(home / "keys.toml", "first", KeyLimits())
        with served(options, home) as (url, supervisor):
            run = asyncio.run(soak(options, url, home, supervisor))
    if options.record:
        record(options, run)
    return run


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak, write and draw the result; return the exit status."""
    options = parser().parse_args(arguments)
    if options.judge:
        fixed, run = recorded(Path(options.judge))
        vars(options).update({name: fixed[name] for name in _NAMED})
    else:
        if options.warm_up_minutes < 0:
            options.warm_up_minutes = options.minutes / 4
        run = _run(options)
        fixed = {name: getattr(options, name) for name in _NAMED}
    rows, verdicts = judge(options, run)
    seen_minutes = round((run.samples[-1].at_s - run.samples[0].at_s) / 60, 1)
    write_result(options.name, rows, **fixed, seen_minutes=seen_minutes, verdicts=verdicts)
    picture(options, run)
    print(verdicts)
    asked = set(verdicts) - (set() if options.idle_machine else {"p95"})
    return 0 if all(verdicts[name] for name in asked) else 1


if __name__ == "__main__":
    sys.exit(main())
