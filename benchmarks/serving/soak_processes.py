"""What the processes of a server use over time: memory, open files, processor time.

An engine's caches fill up to their bounds for as long as prompts and audio are new, and connections
come and go with their callers: both are counted apart, because neither is a leak.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, combinations
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from izwi_api.serve.operator_socket import ListReplicas, ask_supervisor

_PROGRAMS = ("engine_process", "api_server_process", "decode_worker", "grammar_worker")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_ESTABLISHED = "01"  # as /proc/net/tcp writes the state of a connection
_OF_CACHES = (
    *("pages", "free_pages", "host_pages", "page_bytes"),
    *("encoded_bytes", "saved_state_bytes"),
)
# Memory moves by this much without a reason: an allocator's arenas, a cache of the interpreter.
NOISE_BYTES = 512 << 10


class Usage(NamedTuple):
    """What one process uses at one moment.

    Attributes:
        pss_bytes: Its memory, and of what it shares with others its share.
        anonymous_bytes: Of these, what is in no file. Pages of files, such as libraries and
            checkpoints, belong to the system's cache, which drops them when memory is needed, and
            a process's share of them changes with whatever else runs on the machine.
        handles: Open files, sockets and pipes, without the connections of callers who are there.
        threads: Its threads.
        cpu_s: Processor time so far.
        cached_bytes: Of an engine, what its bounded caches hold: pages of keys and values on the
            device and in host memory, results of encoders, and codec states of preempted streams.
            A page that is free again stays touched.
    """

    pss_bytes: int
    anonymous_bytes: int
    handles: int
    threads: int
    cpu_s: float
    cached_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """All processes at one moment, by name and id.

    Attributes:
        at_s: `time.monotonic`.
        is_whole: All replicas were ready, so that shared memory has all its sharers.
        used: By the name of a process and its id.
        machine_busy_s: Processor time of the whole machine so far.
    """

    at_s: float
    is_whole: bool
    used: dict[tuple[str, int], Usage]
    machine_busy_s: float


def sample(supervisor: int, port: int, key: str) -> Sample:
    """Look at all processes of a server once; `key` may read its metrics."""
    replicas = ask_supervisor(port, ListReplicas()).replicas
    engines = {replica.pid: replica.replica for replica in replicas}
    headers = {"authorization": f"Bearer {key}"}
    metrics = httpx.get(f"http://127.0.0.1:{port}/metrics", headers=headers, timeout=60.0)
    cached_bytes = cached_bytes_of(metrics.raise_for_status().text)
    used = {}
    for name, pid in _named(supervisor, engines):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            used[name, pid] = usage_of(pid, port, cached_bytes.get(name, 0))
    is_whole = all(replica.status == "ready" for replica in replicas)
    return Sample(time.monotonic(), is_whole, used, _machine_busy_s())


def _named(supervisor: int, engines: dict[int | None, int]) -> list[tuple[str, int]]:
    """Return names and ids of the supervisor and of all processes below it."""
    found, servers = [("supervisor", supervisor)], 0
    for pid in children_of(supervisor):
        program = _program(pid)
        if program == "engine_process" and pid in engines:
            found.append((f"engine {engines[pid]}", pid))
        elif program == "api_server_process":
            server = f"API server {servers}"
            servers += 1
            found.append((server, pid))
            workers = [(child, _program(child)) for child in children_of(pid)]
            found += [
                (f"{worker.replace('_', ' ')} of {server}", child)
                for child, worker in workers
                if worker
            ]
    return found


def _program(pid: int) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        command = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
        return next((program for program in _PROGRAMS if program in command), "")
    return ""


def children_of(pid: int) -> list[int]:
    """Return the ids of the processes that this one has started; not each kernel lists them."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                parent = _stat(folder)[1]
                found += [int(folder.name)] * (int(parent) == pid)
    return sorted(found)


def _stat(folder: Path) -> list[str]:
    """Return the fields from the state on; the name before may have spaces and brackets."""
    return (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()


def cached_bytes_of(metrics: str) -> dict[str, int]:
    """Return what bounded caches hold, by the name of the engine."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for family in text_string_to_metric_families(metrics):
        name = family.name.removeprefix("izwi_engine_")
        if name in _OF_CACHES:
            for one in family.samples:
                who = f"engine {one.labels.get('replica', '0')}", one.labels["model"]
                found.setdefault(who, {})[name] = one.value
    sizes: dict[str, int] = {}
    for (engine, _), figures in found.items():
        pages = figures["pages"] - figures["free_pages"] + figures["host_pages"]
        cached = pages * figures["page_bytes"] + figures["encoded_bytes"]
        sizes[engine] = sizes.get(engine, 0) + round(cached + figures["saved_state_bytes"])
    return sizes


def _of_callers(port: int) -> set[str]:
    """Return the connections to a port of callers who have not closed them, as /proc names them."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(f":{port:04X}") and fields[3] == _ESTABLISHED:
                found.add(f"socket:[{fields[9]}]")
    return found


def usage_of(pid: int, port: int, cached_bytes: int = 0) -> Usage:
    """Look at one process of a server that listens on a port. Raises OSError if it has ended."""
    folder = Path(f"/proc/{pid}")
    lines = (folder / "smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    anonymous = kib["Pss_Anon"] + kib["Pss_Shmem"]
    stat = _stat(folder)
    cpu_s = (int(stat[11]) + int(stat[12])) / _TICKS_PER_S
    handles = 0
    callers = _of_callers(port)
    for file in (folder / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            handles += str(file.readlink()) not in callers
    return Usage(kib["Pss"] << 10, anonymous << 10, handles, int(stat[17]), cpu_s, cached_bytes)


def _machine_busy_s() -> float:
    """Return the processor time of all programs of the machine since its start."""
    first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    user, nice, system, _idle, _wait, irq, soft = map(int, first.split()[1:8])
    return (user + nice + system + irq + soft) / _TICKS_PER_S


def slope_per_s(at_s: Sequence[float], values: Sequence[float]) -> float:
    """Return the median slope of all pairs (Theil-Sen): a jump alone does not move it.

    Raises:
        ValueError: Fewer than two values.
    """
    if len(at_s) < 2:
        raise ValueError("a slope needs two values")
    pairs = combinations(zip(at_s, values, strict=True), 2)
    return float(np.median([(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs]))


@dataclass(frozen=True, slots=True)
class Trend:
    """How what a process uses changed while it was looked at.

    Attributes:
        name: Of the process.
        minutes: How long it was looked at.
        pss_mib: Median.
        anonymous_mib: Median of what is in no file.
        pss_percent_per_hour: Slope of its memory, of the median.
        anonymous_percent_per_hour: The same of what is in no file.
        own_percent_per_hour: Slope of what is in no file without the most that its caches have held
            so far, of the median of what is in no file.
        own_growth_bytes: That slope times the time.
        caches_mib: The most that its caches have held, in the end.
        handles: Median in the first fifth of the time, and in the last.
        threads: The same.
    """

    name: str
    minutes: float
    pss_mib: float
    anonymous_mib: float
    pss_percent_per_hour: float
    anonymous_percent_per_hour: float
    own_percent_per_hour: float
    own_growth_bytes: float
    caches_mib: float
    handles: tuple[float, float]
    threads: tuple[float, float]

    def has_grown(self, percent_per_hour: float) -> bool:
        """Return whether memory besides caches grows faster than this, by more than noise."""
        is_steep = self.own_percent_per_hour > percent_per_hour
        return is_steep and self.own_growth_bytes > NOISE_BYTES

    def has_more_handles(self) -> bool:
        """Return whether more files are open at the end than at the beginning."""
        return self.handles[1] > self.handles[0] + max(2.0, 0.05 * self.handles[0])


def trends(samples: Sequence[Sample], from_s: float) -> list[Trend]:
    """Return the trend of each process that was there from a time until the end.

    Args:
        samples: In order of time.
        from_s: `time.monotonic` after the warm-up; earlier samples, and those without all
            replicas, do not count.
    """
    counted = [one for one in samples if one.at_s >= from_s and one.is_whole]
    if len(counted) < 10:
        return []
    lived = set.intersection(*(set(one.used) for one in counted))
    before = [one for one in samples if one.at_s < from_s]
    return [_trend(who, counted, _most_cached(who, before)) for who in sorted(lived)]


def _most_cached(who: tuple[str, int], samples: Sequence[Sample]) -> int:
    return max((one.used[who].cached_bytes for one in samples if who in one.used), default=0)


def _trend(who: tuple[str, int], counted: Sequence[Sample], had_cached_bytes: int) -> Trend:
    at_s = [one.at_s for one in counted]
    used = [one.used[who] for one in counted]
    seconds = at_s[-1] - at_s[0]
    so_far = (one.cached_bytes for one in used)
    cached = list(accumulate(so_far, max, initial=had_cached_bytes))[1:]
    anonymous = [one.anonymous_bytes for one in used]
    own = slope_per_s(at_s, [all_ - most for all_, most in zip(anonymous, cached, strict=True)])
    pss_bytes = statistics.median(one.pss_bytes for one in used)
    anonymous_bytes = statistics.median(anonymous)
    fifth = max(1, len(used) // 5)
    first, last = used[:fifth], used[-fifth:]
    return Trend(
        who[0],
        round(seconds / 60, 1),
        round(pss_bytes / (1 << 20), 1),
        round(anonymous_bytes / (1 << 20), 1),
        _percent_per_hour(slope_per_s(at_s, [one.pss_bytes for one in used]), pss_bytes),
        _percent_per_hour(slope_per_s(at_s, anonymous), anonymous_bytes),
        _percent_per_hour(own, anonymous_bytes),
        round(own * seconds),
        round(cached[-1] / (1 << 20), 1),
        (
            statistics.median(one.handles for one in first),
            statistics.median(one.handles for one in last),
        ),
        (
            statistics.median(one.threads for one in first),
            statistics.median(one.threads for one in last),
        ),
    )


def _percent_per_hour(bytes_per_s: float, of_bytes: float) -> float:
    return round(bytes_per_s * 3600 / of_bytes * 100, 2)
