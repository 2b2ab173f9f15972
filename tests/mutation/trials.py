"""One mutant after the other, each in a process forked from one that has its libraries loaded.

A process for each mutant from nothing would spend most of its time on importing torch.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from contextlib import suppress

from cosmic_ray.mutating import use_mutation
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkResult

from tests.mutation.sessions import BUILD, TREE

_OURS = frozenset(("izwi", "izwi_api", "izwi_models", "izwi_web", "benchmarks", "tests"))
# A mutant that hangs is one that was noticed: so many times as long as the tests take.
_PATIENCE, _LEAST_S = 4.0, 20.0
_LOADED = BUILD / "loaded.txt"


class TestsBroken(Exception):
    """The tests fail before any fault was planted."""


class Trials:
    """The mutants of one module against its tests.

    Raises:
        TestsBroken: The tests fail as they are.
    """

    def __init__(self, module: str, tests: list[str]):
        self._path = TREE / module
        self._arguments = [
            *("-x", "-q", "--no-header", "--assert=plain", "-p", "no:cacheprovider"),
            *("-m", "not gpu and not slow", f"--rootdir={TREE}", *tests),
        ]
        _set_environment()
        if self._run(600.0) != 0:
            raise TestsBroken(f"python -m pytest {' '.join(tests)}")
        sys.dont_write_bytecode = True  # what was compiled now serves all children
        _load_what_they_load()
        begun = time.monotonic()
        if self._run(600.0) != 0:
            raise TestsBroken("from a process with its libraries loaded")
        self._patience_s = max(_LEAST_S, _PATIENCE * (time.monotonic() - begun))
        for cached in (self._path.parent / "__pycache__").glob(f"{self._path.stem}.*.pyc"):
            cached.unlink()  # made of the same second, it could stand for a mutant

    def try_mutant(self, mutant: MutationSpec) -> WorkResult:
        """Plant a fault, run the tests, and take it away again."""
        operator = get_operator(mutant.operator_name)(**mutant.operator_args)
        with use_mutation(self._path, operator, mutant.occurrence) as (before, after):
            if after is None or not _compiles(after):
                return WorkResult(WorkerOutcome.SKIPPED)
            code = self._run(self._patience_s)
        outcome = TestOutcome.SURVIVED if code == 0 else TestOutcome.KILLED
        return WorkResult(WorkerOutcome.NORMAL, test_outcome=outcome, diff=_change(before, after))

    def _run(self, patience_s: float) -> int:
        """Run the tests in a child; its exit code, or -1 if it took too long."""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setsid()
                code = _run_pytest(self._arguments)
            finally:
                os._exit(code)
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                _end_group(child)
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        _end_group(child)
        os.waitpid(child, 0)
        return -1


def _end_group(leader: int) -> None:
    """End what a child has started and left."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _run_pytest(arguments: list[str]) -> int:
    output = os.open(BUILD / "last.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(TREE)
    sys.path[:0] = [str(TREE), *(str(TREE / room) for room in ("models", "api", "web"))]
    for name in [name for name in sys.modules if name.partition(".")[0] in _OURS]:
        del sys.modules[name]  # of the tree that is not mutated
    import pytest
    from hypothesis import Phase, settings

    # The same examples each time, and none made smaller: a fault is noticed or it is not.
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile(
        "mutation", max_examples=100, deadline=None, phases=phases, derandomize=True, database=None
    )
    code = int(pytest.main(arguments))
    _LOADED.write_text("\n".join(sys.modules))
    sys.stdout.flush()
    return code


def _set_environment() -> None:
    rooms = [str(TREE), *(str(TREE / room) for room in ("models", "api", "web"))]
    os.environ |= {
        "PYTHONPATH": os.pathsep.join(rooms),
        "HYPOTHESIS_PROFILE": "mutation",
        "OMP_NUM_THREADS": "1",
    }


def _load_what_they_load() -> None:
    """Import what the tests imported and is not ours, for the children to find it there."""
    for name in _LOADED.read_text().splitlines():
        if name.partition(".")[0] not in _OURS and not name.startswith(("_", "conftest", "test")):
            with suppress(Exception):
                importlib.import_module(name)


def _compiles(text: str) -> bool:
    try:
        compile(text, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _change(before: str, after: str) -> str:
    """Return the line that was changed, and what became of it."""
    old, new = before.splitlines(), after.splitlines()
    for index, (was, became) in enumerate(zip(old, new, strict=False)):
        if was != became:
            return f"{index + 1}\n{was.strip()}\n{became.strip()}"
    return ""
