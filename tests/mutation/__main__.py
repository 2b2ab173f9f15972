"""Plant faults in modules, one at a time, and count those that the tests of the area notice.

    python -m tests.mutation                                # all areas; goes on where it stopped
    python -m tests.mutation izwi/scheduler/step_builder.py        # one module
    python -m tests.mutation --minutes 60                   # as much as fits
    python -m tests.mutation --most 40                      # so many of each module, drawn by lot
    python -m tests.mutation --page                         # write docs/mutants.md, run nothing

The faults are planted in a copy under build/mutants, where each module has a session file. A module
whose source has changed begins again; if only its tests have, its survivors are tried again.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkItem

from tests.mutation.areas import AREAS
from tests.mutation.page import write_page
from tests.mutation.planting import plan_mutants
from tests.mutation.sessions import (
    BUILD,
    ROOT,
    TREE,
    Digest,
    read_digest,
    session_path,
    write_digest,
)
from tests.mutation.trials import TestsBroken, Trials


def main() -> None:
    """Try the mutants of the modules that are named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "modules", nargs="*", help="such as izwi/scheduler/step_builder.py; default: all"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--most", type=int, help="try so many mutants of each module, drawn by lot")
    parser.add_argument("--page", action="store_true", help="write docs/mutants.md, run nothing")
    arguments = parser.parse_args()
    unknown = [module for module in arguments.modules if module not in AREAS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: not in tests/mutation/areas.py")
    if not arguments.page:
        until = time.monotonic() + 60 * arguments.minutes
        _copy_tree()
        for module in arguments.modules or AREAS:
            if not _try_module(module, until, arguments.most):
                break
    write_page()


def _copy_tree() -> None:
    """Copy what git knows, and what it does not ignore, to where faults may be planted."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    shutil.rmtree(TREE, ignore_errors=True)
    for name in filter(None, listed.decode().split("\0")):
        source = ROOT / name
        if source.is_file():
            target = TREE / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _try_module(module: str, until: float, most: int | None) -> bool:
    """Try the mutants of a module that are left; whether there was time for all of them."""
    tests = [test for test in AREAS[module] if (TREE / test).exists()]
    digest = Digest.of(TREE / module, [TREE / test for test in tests])
    with use_db(session_path(module), WorkDB.Mode.create) as session:
        before = read_digest(module)
        if before is None or before.source != digest.source:
            plan_mutants(TREE / module, session)
            before = digest
            write_digest(module, digest)
        again = [] if before.tests == digest.tests else _survivors(session)
        tried = sum(result.worker_outcome is WorkerOutcome.NORMAL for _, result in session.results)
        fresh = session.pending_work_items  # in an order drawn by lot
        fresh = fresh[: None if most is None else max(0, most - tried)]
        if again or fresh:
            print(f"{module}: {len(fresh)} mutants, and {len(again)} survivors again", flush=True)
            try:
                trials = Trials(module, tests)
            except TestsBroken as error:
                print(f"{module}: its tests fail without a fault: {error}", file=sys.stderr)
                return True
            if not _try_all(again, trials, session, until):
                return False
        write_digest(module, digest)  # not before: the survivors were of the tests as they were
        return _try_all(fresh, trials, session, until) if fresh else True


def _survivors(session: WorkDB) -> list[WorkItem]:
    return [
        item
        for item, result in session.completed_work_items
        if result.test_outcome is TestOutcome.SURVIVED
    ]


def _try_all(items: Sequence[WorkItem], trials: Trials, session: WorkDB, until: float) -> bool:
    """Try mutants and write down what became of them; whether there was time for all."""
    for item in items:
        if time.monotonic() > until:
            return False
        (mutant,) = item.mutations
        result = trials.try_mutant(mutant)
        session.set_result(item.job_id, result)
        if result.test_outcome is TestOutcome.SURVIVED:
            name = f"{mutant.module_path.relative_to(TREE)}:{mutant.start_pos[0]}"
            print(f"  {name}: {mutant.operator_name} survived", flush=True)
    return True


if __name__ == "__main__":
    BUILD.mkdir(parents=True, exist_ok=True)
    main()
