"""Which tests reach which lines: each test file runs once, traced, before any fault is planted.

A line that runs in a test's own call belongs to that test; one that runs while fixtures are set up,
or in a process that a test started, to every test of the file. What runs at import belongs to all
tests that reach the module.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pytest

# read by sitecustomize in the processes that tests start
TRACED, FOLDER, TEST_FILE = "MUTATION_TRACED", "MUTATION_FOLDER", "MUTATION_TEST_FILE"
ENDED = "ended"  # a file beside the traces of a test file that ran to its end
_SITE = f"""
import contextlib, os
if {TRACED!r} in os.environ:
    with contextlib.suppress(ImportError):
        from tests.mutation import reach
        reach.trace_child()
"""


class LineTracer:
    """Writes each line that runs for the first time in a context, at once: tests kill processes."""

    def __init__(self, paths: dict[str, str], out: Path, context: str):
        self.context = context
        self._paths = paths  # absolute path to module
        self._seen: set[tuple[str, str, int]] = set()
        self._out = os.open(out, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def start(self) -> None:
        """Trace every thread from here on."""
        if sys.version_info >= (3, 12):
            monitoring = sys.monitoring
            monitoring.use_tool_id(monitoring.COVERAGE_ID, "reach")
            monitoring.register_callback(
                monitoring.COVERAGE_ID, monitoring.events.LINE, self._on_line
            )
            monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.LINE)
        else:
            threading.settrace(self._on_call)
            sys.settrace(self._on_call)

    def enter(self, context: str) -> None:
        """Count what runs from here on to a test, or to its file."""
        self.context = context
        if sys.version_info >= (3, 12):
            sys.monitoring.restart_events()

    def _on_line(self, code: Any, line: int) -> Any:  # sys.monitoring, each line once a context
        if code.co_filename in self._paths:
            self._hit(code.co_filename, line)
        return sys.monitoring.DISABLE if sys.version_info >= (3, 12) else None

    def _on_call(self, frame: Any, event: str, argument: Any) -> Any:  # sys.settrace
        if frame.f_code.co_filename not in self._paths:
            return None
        self._hit(frame.f_code.co_filename, frame.f_lineno)
        return self._in_frame

    def _in_frame(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            self._hit(frame.f_code.co_filename, frame.f_lineno)
        return self._in_frame

    def _hit(self, path: str, line: int) -> None:
        key = (self.context, path, line)
        if key not in self._seen:
            self._seen.add(key)
            found = json.dumps([self.context, self._paths[path], line])
            os.write(self._out, f"{found}\n".encode())


def trace_child() -> None:
    """Trace a process that a test started, for the whole file of that test."""
    paths, folder = json.loads(os.environ[TRACED]), Path(os.environ[FOLDER])
    file = os.environ.get(TEST_FILE, "")
    LineTracer(paths, folder / f"lines-{os.getpid()}.jsonl", file).start()


class ReachPlugin:
    """Traces a run of pytest by test, and writes down how each test ended and how long it took."""

    def __init__(self, tree: Path, modules: list[str], folder: Path):
        paths = {str(tree / module): module for module in modules}
        folder.mkdir(parents=True, exist_ok=True)
        site = folder / "site"
        site.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(_SITE)
        os.environ |= {TRACED: json.dumps(paths), FOLDER: str(folder)}
        os.environ["PYTHONPATH"] = os.pathsep.join([str(site), os.environ["PYTHONPATH"]])
        self._tracer = LineTracer(paths, folder / f"lines-{os.getpid()}.jsonl", "")
        self._tracer.start()
        self._ended = folder / f"tests-{os.getpid()}.jsonl"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        file = os.environ[TEST_FILE] = item.nodeid.partition("::")[0]
        self._tracer.enter(file)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._tracer.enter(item.nodeid)
        try:
            return (yield)
        finally:
            self._tracer.enter(os.environ[TEST_FILE])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        with self._ended.open("a") as out:
            ended = [report.nodeid, report.when, report.outcome, round(report.duration, 3)]
            out.write(json.dumps(ended) + "\n")


def traces_of(test_file: str) -> str:
    """Return the name of the folder of a test file's traces."""
    return test_file.replace("/", ".")


class Reached:
    """What the traced runs found.

    Args:
        folder: Where they have written.
        most_s: Of the tests of a statement the quickest are taken, files with quick tests first,
            until they took so many seconds; one at least.
    """

    def __init__(self, folder: Path, most_s: float = math.inf):
        self._folder = folder
        self._most_s = most_s
        self.seconds: dict[str, float] = defaultdict(float)
        self.left_out: dict[str, str] = {}
        passed: set[str] = set()
        for path in sorted(folder.glob("*/tests-*.jsonl")):
            for line in path.read_text().splitlines():
                test, when, outcome, seconds = json.loads(line)
                self.seconds[test] += seconds
                if outcome != "passed":
                    self.left_out[test] = outcome
                elif when == "call":
                    passed.add(test)
        self._passed = passed - self.left_out.keys()
        self._contexts: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._of_module: dict[str, set[str]] = defaultdict(set)
        for path in sorted(folder.glob("*/lines-*.jsonl")):
            for line in path.read_text().splitlines():
                context, module, number = json.loads(line)
                self._contexts[module, number].add(context)
                if context:
                    self._of_module[module].add(context)

    def complete(self, files: Iterable[str]) -> bool:
        """Whether all of some test files ran to their end, and no test of them was left out."""
        out = {test.partition("::")[0] for test in self.left_out}
        return all(
            file not in out and (self._folder / traces_of(file) / ENDED).exists() for file in files
        )

    def tests(self, module: str, statement: tuple[int, int]) -> list[str]:
        """Return tests that pass and reach a statement, quick files first, none if none does."""
        contexts = set[str]().union(
            *(self._contexts[module, line] for line in range(statement[0], statement[1] + 1))
        )
        if "" in contexts:
            contexts |= self._of_module[module]
        return self._quickest(
            test
            for test in sorted(self._passed)
            if test in contexts or test.partition("::")[0] in contexts
        )

    def _quickest(self, tests: Iterable[str]) -> list[str]:
        """Return the tests that fit into the time, those of files that are quick together first."""
        by_file: dict[str, list[str]] = defaultdict(list)
        for test in tests:
            by_file[test.partition("::")[0]].append(test)

        def seconds(found: list[str]) -> float:
            return sum(self.seconds[test] for test in found)

        kept: list[str] = []
        spent_s = 0.0
        for found in sorted(by_file.values(), key=seconds):
            for test in sorted(found, key=lambda test: self.seconds[test]):
                spent_s += self.seconds[test]
                if spent_s <= self._most_s or not kept:
                    kept.append(test)
        return kept
