"""What does it cost to count a request against a key's limits, in a file and in SQLite?

Processor time of one admission, and how many admissions of several processes had to be counted
alone, because the counts stayed locked for 5 ms. Each process works for 0.5 ms between two
admissions, which is what an API server spends on a request. The counts are checked at the end.

SQLite is used as cheaply as possible: one connection per process, WAL, `synchronous=off`, and one
statement for each admission.
"""

from __future__ import annotations

import multiprocessing
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import arguments, write_result
from izwi_api.usage.shared_counts import CountsFile, KeyCounts

_ROUNDS, _REPEATS = 15, 1000
_PROCESSES, _SHARED_REPEATS = (2, 4), 4000
_WORK_S = 0.0005
_LOCK_WAIT_S = 0.005
_KEY = "benchmark"
_COUNT = """
INSERT INTO counts VALUES (?1, ?2, 1, ?3, 0)
ON CONFLICT (key) DO UPDATE SET spent_at_s = ?2, spent = spent + 1, day = ?3
RETURNING spent, day, characters
"""

Admit = Callable[[], bool]


def open_file(folder: Path) -> Admit:
    """Return a function that counts one request in the file of a key; False if it could not."""
    counts_file = CountsFile(folder, _KEY)

    def admit() -> bool:
        now_s = time.time()
        with counts_file.locked(now_s) as locked:
            if locked is None:
                return False
            before = locked.counts
            spent = 1.0 if before is None else before.spent + 1
            locked.write(KeyCounts(now_s, spent, int(now_s // 86_400), {"characters": 0.0}))
        return True

    return admit


def open_sqlite(folder: Path) -> Admit:
    """Return a function that counts one request in a database; False if it stayed locked."""
    db = sqlite3.connect(folder / "counts.sqlite", isolation_level=None, timeout=_LOCK_WAIT_S)
    db.execute("PRAGMA journal_mode=wal")
    db.execute("PRAGMA synchronous=off")
    db.execute(
        "CREATE TABLE IF NOT EXISTS counts "
        "(key TEXT PRIMARY KEY, spent_at_s REAL, spent REAL, day INTEGER, characters REAL)"
    )

    def admit() -> bool:
        now_s = time.time()
        try:
            db.execute(_COUNT, (_KEY, now_s, int(now_s // 86_400))).fetchall()
        except sqlite3.OperationalError:
            return False
        return True

    return admit


def count_in(folder: Path, kind: str) -> float:
    """Return the requests counted in a folder."""
    if kind == "file":
        with CountsFile(folder, _KEY).locked(time.time()) as locked:
            assert locked is not None
            assert locked.counts is not None
            return locked.counts.spent
    db = sqlite3.connect(folder / "counts.sqlite")
    (spent,) = db.execute("SELECT spent FROM counts").fetchone()
    return float(spent)


OPEN = {"file": open_file, "sqlite": open_sqlite}


def alone_us(kind: str) -> float:
    """Return the processor time of one admission, in the fastest round."""
    with TemporaryDirectory() as folder:
        admit = OPEN[kind](Path(folder))
        rounds = []
        for _ in range(_ROUNDS):
            began_s = time.process_time()
            for _ in range(_REPEATS):
                admit()
            rounds.append((time.process_time() - began_s) / _REPEATS * 1e6)
    return round(min(rounds), 1)


def _run(kind: str, folder: Path, refused: multiprocessing.SimpleQueue[int]) -> None:
    admit, num_refused = OPEN[kind](folder), 0
    for _ in range(_SHARED_REPEATS):
        num_refused += not admit()
        work_until_s = time.process_time() + _WORK_S
        while time.process_time() < work_until_s:
            pass
    refused.put(num_refused)


def together(kind: str, num_processes: int) -> dict[str, object]:
    """Return the figures of several processes that count requests of one key."""
    refused: multiprocessing.SimpleQueue[int] = multiprocessing.SimpleQueue()
    with TemporaryDirectory() as name:
        folder = Path(name)
        OPEN[kind](folder)()
        processes = [
            multiprocessing.Process(target=_run, args=(kind, folder, refused))
            for _ in range(num_processes)
        ]
        for process in processes:
            process.start()
        num_refused = sum(refused.get() for _ in processes)
        for process in processes:
            process.join()
        num_counted = count_in(folder, kind) - 1
    num_asked = num_processes * _SHARED_REPEATS
    return {
        "kind": kind,
        "processes": num_processes,
        "admissions": num_asked,
        "counted_alone": num_refused,
        "lost": num_asked - num_refused - num_counted,
    }


def main() -> None:
    """Measure, print and write."""
    arguments(__doc__).parse_args()
    rows: list[dict[str, object]] = [
        {"kind": kind, "processes": 1, "cpu_us": alone_us(kind)} for kind in OPEN
    ]
    rows += [together(kind, count) for count in _PROCESSES for kind in OPEN]
    write_result("shared_counts", rows)


if __name__ == "__main__":
    main()
