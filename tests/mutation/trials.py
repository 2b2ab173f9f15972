"""Run tests over a copy of the tree, in processes forked from one that has its libraries loaded.

A process for each mutant from nothing would spend most of its time on importing torch.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.areas import AREAS
from tests.mutation.mutants import BUILD, ROOT, Mutant
from tests.mutation.reach import ENDED, Reached, ReachPlugin, traces_of

_OURS = frozenset(("izwi", "izwi_api", "izwi_models", "izwi_web", "benchmarks", "tests"))
_FOLDERS = ("izwi", "models", "api", "web", "tests", "benchmarks", "docs")
# A mutant that hangs is one that was noticed: a test may take so many times as long as it did.
_PATIENCE, _LEAST_S = 4.0, 15.0
_LOADED = BUILD / "loaded.txt"
_RUN = os.getpid()  # of the process whose children all others are

NOTICED, SURVIVED, UNREACHED = "noticed", "survived", "unreached"
# no time was left for it, its lines have changed since, or not all of its tests were traced
LATE, STALE, UNKNOWN = "late", "stale", "unknown"


class ChosenTests:
    """Runs the chosen tests alone, those of quick files first, each with a limit of its own."""

    def __init__(self, seconds: dict[str, float]):
        self._seconds = seconds

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep what was chosen, in order."""
        kept = [item for item in items if item.nodeid in self._seconds]
        files: dict[str, float] = {}
        for item in kept:
            file = item.nodeid.partition("::")[0]
            files[file] = files.get(file, 0.0) + self._seconds[item.nodeid]
            limit_s = max(_LEAST_S, _PATIENCE * self._seconds[item.nodeid])
            item.add_marker(pytest.mark.timeout(limit_s, method="thread"), append=False)
        items[:] = sorted(kept, key=lambda i: (files[i.nodeid.partition("::")[0]], i.location[0]))


class Copy:
    """A copy of the tree in which one fault at a time is planted."""

    def __init__(self, number: int):
        self.number = number
        self.tree = BUILD / f"tree{number}"
        # short, since paths of Unix sockets are: under 108 bytes
        self._scratch = Path(tempfile.gettempdir()) / f"mt{_RUN}-{number}"

    def fill(self) -> None:
        """Copy Python files, and link all others."""
        shutil.rmtree(self.tree, ignore_errors=True)
        for name in _tracked():
            target = self.tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.suffix == ".py":
                shutil.copy2(ROOT / name, target)
            else:
                target.symlink_to(ROOT / name)

    def remove(self) -> None:
        """Take the copy away, and what its tests have left."""
        shutil.rmtree(self.tree, ignore_errors=True)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def trace(self, test_file: str, modules: list[str], until: float) -> None:
        """Run a test file as it is, and write down under build/mutants/reach what it reaches.

        One that takes too long is ended; what its tests reached until then counts.
        """
        folder = reach_folder() / traces_of(test_file)
        shutil.rmtree(folder, ignore_errors=True)
        if self._run([test_file], lambda: ReachPlugin(self.tree, modules, folder), until) >= 0:
            (folder / ENDED).touch()

    def try_mutant(self, mutant: Mutant, reached: Reached, until: float) -> str:
        """Plant a fault, run the tests that reach it, and take it away again."""
        path = self.tree / mutant.module
        text = path.read_text(encoding="utf-8")
        found = mutant.found_in(text)
        if found is None:
            return STALE
        tests = reached.tests(mutant.module, found.statement)
        if not tests:
            return UNREACHED if reached.complete(AREAS[mutant.module]) else UNKNOWN
        seconds = {test: reached.seconds[test] for test in tests}
        patience_s = max(2 * _LEAST_S, _PATIENCE * sum(seconds.values()))
        limit = time.monotonic() + patience_s
        for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            cached.unlink()  # made of the same second, it could stand for a mutant
        path.write_text(found.planted_in(text), encoding="utf-8")
        try:
            files = sorted({test.partition("::")[0] for test in tests})
            code = self._run(["-x", *files], lambda: ChosenTests(seconds), min(limit, until))
        finally:
            path.write_text(text, encoding="utf-8")
        if code == 0:
            return SURVIVED
        return LATE if code < 0 and until < limit else NOTICED

    def _run(self, arguments: list[str], plugin: Any, until: float) -> int:
        """Run pytest in a child; its exit code, or negative if it took too long or was killed."""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setsid()
                code = self._run_pytest(arguments, plugin)
            finally:
                os._exit(code)
        while time.monotonic() < until:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                _end_group(child)
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        _end_group(child)
        os.waitpid(child, 0)
        return -1

    def _run_pytest(self, arguments: list[str], plugin: Any) -> int:
        self._scratch.mkdir(parents=True, exist_ok=True)
        output = os.open(BUILD / f"last{self.number}.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(self.tree)
        rooms = [str(self.tree), *(str(self.tree / room) for room in ("models", "api", "web"))]
        elsewhere = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        os.environ |= {
            "PYTHONPATH": os.pathsep.join([*rooms, *elsewhere]),
            "TMPDIR": str(self._scratch),
            "IZWI_HOME": str(self._scratch / "home"),
        }
        tempfile.tempdir = None
        sys.path[:0] = rooms
        made = plugin()  # of the tests' module that is loaded here
        for name in [name for name in sys.modules if name.partition(".")[0] in _OURS]:
            if not name.startswith("tests.mutation"):
                del sys.modules[name]  # of the tree that is not mutated
        from hypothesis import Phase, settings

        # The same examples each time, and none made smaller: a fault is noticed or it is not.
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile(
            "mutation",
            max_examples=100,
            deadline=None,
            phases=phases,
            derandomize=True,
            database=None,
        )
        base = [
            *("-q", "--no-header", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist"),
            *("-p", "no:benchmark", "-m", "not gpu and not slow", f"--rootdir={self.tree}"),
            f"--basetemp={self._scratch / 'base'}",
        ]
        code = int(pytest.main([*base, *arguments], plugins=[made]))
        _LOADED.with_suffix(f".{self.number}").write_text("\n".join(sys.modules))
        sys.stdout.flush()
        return code


def reach_folder() -> Path:
    """Return where the traced runs write."""
    return BUILD / "reach"


def set_environment() -> None:
    """Hide GPUs, and fix what tests and the processes that they start would read otherwise."""
    os.environ |= {
        "CUDA_VISIBLE_DEVICES": "",
        "HYPOTHESIS_PROFILE": "mutation",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TRITON_INTERPRET": "1",
    }


def load_libraries() -> None:
    """Import what the traced runs imported and is not ours, for children to find it there."""
    names = {n for path in BUILD.glob("loaded.[0-9]*") for n in path.read_text().splitlines()}
    for name in sorted(names):
        if name.partition(".")[0] not in _OURS and not name.startswith(("_", "conftest", "test")):
            with suppress(Exception):
                importlib.import_module(name)


def _tracked() -> Iterable[str]:
    """Yield what git knows, and does not ignore; without git, the folders of the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
        names = list(filter(None, listed.decode().split("\0")))
    except (OSError, subprocess.CalledProcessError):
        found = (path for folder in _FOLDERS for path in (ROOT / folder).rglob("*"))
        names = [str(path.relative_to(ROOT)) for path in (*found, *ROOT.glob("*.*"))]
    return [name for name in names if (ROOT / name).is_file() and "__pycache__" not in name]


def _end_group(leader: int) -> None:
    """End what a child has started and left."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
