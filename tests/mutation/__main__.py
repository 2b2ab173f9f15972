"""Plant faults in modules, one at a time, and count those that the tests of the area notice.

    python -m tests.mutation                                   # all areas; goes on where it stopped
    python -m tests.mutation izwi/scheduler/step_builder.py    # one module
    python -m tests.mutation --jobs 16 --seconds 450           # side by side, as many as fit
    python -m tests.mutation --most 40                         # so many of each module, by lot
    python -m tests.mutation --again                           # what survived, and no others
    python -m tests.mutation --without tests/serve/test_processes.py --test-seconds 40
    python -m tests.mutation --page                            # write docs/mutants.md, run nothing

First each test file of the areas runs once, traced; a mutant is tried with the tests that pass and
reach its statement. For a machine without cosmic-ray: `--write-plan FILE` here, `--plan FILE --out
RESULTS` there, `--merge RESULTS` here.
"""

from __future__ import annotations

import argparse
import shutil
import time
from itertools import zip_longest
from pathlib import Path

from tests.mutation.areas import AREAS
from tests.mutation.jobs import in_copies
from tests.mutation.mutants import BUILD, Mutant, Plan
from tests.mutation.page import justified, write_page
from tests.mutation.reach import Reached
from tests.mutation.results import RESULTS, Results
from tests.mutation.trials import (
    LATE,
    NOTICED,
    STALE,
    UNKNOWN,
    Copy,
    load_libraries,
    reach_folder,
    set_environment,
)


def main() -> None:
    """Try the mutants of the modules that are named, or of all."""
    arguments = _arguments()
    modules = arguments.modules or list(AREAS)
    results = Results(arguments.out)
    for path in arguments.merge:
        results.merge(path)
    if arguments.write_plan:
        plan = _make_plan(modules, results, arguments.most, again=arguments.again)
        plan.write(arguments.write_plan)
        return
    if not arguments.page and not arguments.merge:
        until = time.monotonic() + arguments.seconds
        plan = (
            Plan.read(arguments.plan)
            if arguments.plan
            else _make_plan(modules, results, arguments.most, again=arguments.again)
        )
        for module, ids in plan.ids.items():
            results.store_ids(module, ids)
        _try_plan(plan, results, arguments, until)
    results.write()
    if arguments.out == RESULTS:
        write_page(results)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "modules", nargs="*", help="such as izwi/scheduler/step_builder.py; default: all"
    )
    parser.add_argument("--jobs", type=int, default=1, help="so many at once, each in its copy")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--most", type=int, default=60, help="so many of each module, by lot")
    parser.add_argument("--again", action="store_true", help="try what survived, and no others")
    parser.add_argument(
        "--trace-seconds", type=float, default=600.0, help="limit of the traced runs, together"
    )
    parser.add_argument(
        "--without", nargs="+", default=[], help="test files that start servers, say: not run"
    )
    parser.add_argument(
        "--test-seconds",
        type=float,
        default=float("inf"),
        help="try each with its quickest tests, so many seconds of them",
    )
    parser.add_argument("--traced", action="store_true", help="take the last run's traces")
    parser.add_argument("--page", action="store_true", help="write docs/mutants.md, run nothing")
    parser.add_argument("--plan", type=Path, help="try what a plan has drawn")
    parser.add_argument("--write-plan", type=Path, help="draw, and try nothing")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results go")
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="results to add")
    arguments = parser.parse_args()
    unknown = [module for module in arguments.modules if module not in AREAS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: not in tests/mutation/areas.py")
    return arguments


def _make_plan(modules: list[str], results: Results, most: int, *, again: bool) -> Plan:
    """Draw so many mutants of each module; those that survived without a reason come first.

    With `again` they are all.
    """
    from tests.mutation.planting import find_sites, plant  # cosmic-ray, not everywhere installed

    plan = Plan({}, {})
    for module in modules:
        sites = find_sites(module)
        results.store_ids(module, [site.id for site in sites])
        found = results.modules[module]
        open_ids = {s["id"] for s in found["survivors"] if not justified(module, s)}
        drawn = [site for site in sites if site.id in open_ids]
        if not again:
            rest = [site for site in sites if site.id not in found["outcomes"]]
            drawn += rest[: max(0, most - len(found["outcomes"]))]
        made = [(site, plant(module, site)) for site in drawn]
        void = {site.id for site, mutant in made if mutant is None}
        plan.ids[module] = [site.id for site in sites if site.id not in void]
        plan.drawn[module] = [mutant for _, mutant in made if mutant is not None]
        print(f"{module}: {len(plan.drawn[module])} of {len(plan.ids[module])} drawn", flush=True)
    return plan


def _try_plan(plan: Plan, results: Results, arguments: argparse.Namespace, until: float) -> None:
    """Trace the tests, then try the mutants, one of each module in turn, the quickest first."""
    set_environment()
    num_jobs = arguments.jobs
    copies = [Copy(number) for number in range(num_jobs)]
    for copy in copies:
        copy.fill()
    if not arguments.traced:
        modules = [module for module, mutants in plan.drawn.items() if mutants]
        files = {test for module in modules for test in AREAS[module]} - {*arguments.without}
        _trace(modules, files, num_jobs, min(until, time.monotonic() + arguments.trace_seconds))
    reached = Reached(reach_folder(), arguments.test_seconds)
    cut = sorted(
        {file for module in plan.drawn for file in AREAS[module] if not reached.complete([file])}
    )
    print(f"not traced to the end: {', '.join(cut) or 'none'}", flush=True)
    for test, outcome in sorted(reached.left_out.items()):
        print(f"  left out, {outcome}: {test}", flush=True)
    load_libraries()
    _try_all(_in_turn(plan, reached), reached, results, num_jobs, until)
    for copy in copies:
        copy.remove()


def _trace(modules: list[str], found: set[str], num_jobs: int, until: float) -> None:
    """Find which tests of some files reach which lines."""
    files = sorted(found)
    files.sort(
        key=lambda file: file.split("/")[1] not in ("serve", "engine")
    )  # the slow ones first
    begun = time.monotonic()
    shutil.rmtree(reach_folder(), ignore_errors=True)

    def trace(copy: Copy, file: str) -> None:
        copy.trace(file, modules, until)

    for _ in in_copies(files, trace, num_jobs=num_jobs, until=until):
        pass
    print(f"traced {len(files)} test files in {time.monotonic() - begun:.0f} s", flush=True)


def _in_turn(plan: Plan, reached: Reached) -> list[Mutant]:
    """Return one mutant of each module after the other, modules with quick tests first."""

    def seconds(mutants: list[Mutant]) -> float:
        tests = [reached.tests(mutant.module, mutant.statement) for mutant in mutants]
        return sum(reached.seconds[test] for found in tests for test in found) / len(mutants)

    by_cost = sorted((mutants for mutants in plan.drawn.values() if mutants), key=seconds)
    return [mutant for turn in zip_longest(*by_cost) for mutant in turn if mutant is not None]


def _try_all(
    mutants: list[Mutant], reached: Reached, results: Results, num_jobs: int, until: float
) -> None:
    def attempt(copy: Copy, mutant: Mutant) -> tuple[str, int]:
        outcome = copy.try_mutant(mutant, reached, until)
        return outcome, len(reached.tests(mutant.module, mutant.statement))

    for mutant, (outcome, num_tests) in in_copies(mutants, attempt, num_jobs=num_jobs, until=until):
        if outcome in (LATE, STALE, UNKNOWN):
            continue
        results.add(mutant, outcome, num_tests)
        results.write()
        if outcome != NOTICED:
            was, became = mutant.first
            print(f"{mutant.module}:{mutant.line} {outcome} ({num_tests} tests)", flush=True)
            print(f"  - {was}\n  + {became}", flush=True)


if __name__ == "__main__":
    BUILD.mkdir(parents=True, exist_ok=True)
    main()
