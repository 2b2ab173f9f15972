"""The modules that `make mutants` mutates exist, and so do their tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.areas import AREAS
from tests.mutation.jobs import in_copies
from tests.mutation.mutants import Mutant, Plan
from tests.mutation.reach import Reached
from tests.mutation.results import Results

ROOT = Path(__file__).parents[2]


def test_every_module_and_every_test_of_an_area_exists() -> None:
    named = {*AREAS, *(test for tests in AREAS.values() for test in tests)}
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []
    assert all(AREAS.values())


TEXT = "a = 1\nb = 2\nc = a\n"
FAULT = Mutant("x.py", "i", 2, ("b = 2",), ("b = 3",), (2, 2))


def test_a_fault_is_planted_where_its_lines_are_now() -> None:
    moved = FAULT.found_in("\n\n" + TEXT)
    assert moved is not None
    assert (moved.line, moved.statement) == (4, (4, 4))
    assert moved.planted_in("\n\n" + TEXT) == "\n\na = 1\nb = 3\nc = a\n"
    assert FAULT.found_in(TEXT) == FAULT
    assert FAULT.found_in("a = 1\nb = 4\n") is None
    assert FAULT.found_in("\n" + TEXT + TEXT) is None  # which of the two is not known


def test_a_plan_and_its_results_travel(tmp_path: Path) -> None:
    Plan({"x.py": ["i", "j"]}, {"x.py": [FAULT]}).write(tmp_path / "plan.json")
    plan = Plan.read(tmp_path / "plan.json")
    assert plan.drawn == {"x.py": [FAULT]}
    there = Results(tmp_path / "there.json")
    there.store_ids("x.py", plan.ids["x.py"])
    there.add(FAULT, "survived", 3)
    there.write()
    here = Results(tmp_path / "here.json")
    here.merge(tmp_path / "there.json")
    assert here.modules["x.py"]["outcomes"] == {"i": "survived"}
    assert [s["became"] for s in here.modules["x.py"]["survivors"]] == ["b = 3"]
    here.add(FAULT, "noticed", 4)  # a test was written
    assert here.modules["x.py"] == {"outcomes": {"i": "noticed"}, "survivors": [], "mutants": 2}
    here.store_ids("x.py", ["j"])  # and the function changed
    assert here.modules["x.py"] == {"outcomes": {}, "survivors": [], "mutants": 1}


def test_tests_are_chosen_by_the_lines_that_they_reach(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    ended = [("t.py::a", "passed"), ("t.py::b", "passed"), ("u.py::c", "failed")]
    (tmp_path / "f/tests-1.jsonl").write_text(
        "".join(f'["{test}", "call", "{outcome}", 1.0]\n' for test, outcome in ended)
    )
    # at import, in a process that tests of another file start, too; in a test's call; in a fixture
    # of a file; in a test that fails as it is
    hits = [("", 1), ("u.py", 1), ("t.py::a", 5), ("t.py", 6), ("u.py::c", 7)]
    (tmp_path / "f/lines-1.jsonl").write_text(
        "".join(f'["{context}", "x.py", {line}]\n' for context, line in hits)
    )
    reached = Reached(tmp_path)
    assert reached.tests("x.py", (1, 1)) == ["t.py::a", "t.py::b"]
    assert reached.tests("x.py", (4, 5)) == ["t.py::a"]
    assert reached.tests("x.py", (6, 6)) == ["t.py::a", "t.py::b"]
    assert reached.tests("x.py", (7, 8)) == []


def test_the_quickest_tests_are_kept_that_fit_into_the_time(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    seconds = {"a.py::one": 9.0, "a.py::two": 1.0, "b.py::one": 4.0, "b.py::two": 3.0}
    (tmp_path / "f/tests-1.jsonl").write_text(
        "".join(f'["{test}", "call", "passed", {took}]\n' for test, took in seconds.items())
    )
    (tmp_path / "f/lines-1.jsonl").write_text('["a.py", "x.py", 1]\n["b.py", "x.py", 1]\n')
    quick_first = ["b.py::two", "b.py::one", "a.py::two", "a.py::one"]
    for most_s, num_kept in ((17.0, 4), (16.9, 3), (8.0, 3), (7.9, 2), (7.0, 2), (1.0, 1)):
        kept = Reached(tmp_path, most_s).tests("x.py", (1, 1))
        assert kept == quick_first[:num_kept]


@pytest.mark.parametrize("num_jobs", [1, 3])
def test_jobs_do_every_piece_once_and_a_broken_one_does_not_hang(num_jobs: int) -> None:
    def square(copy: object, piece: int) -> int:
        return piece * piece

    found = dict(in_copies(range(5), square, num_jobs=num_jobs, until=float("inf")))
    assert found == {n: n * n for n in range(5)}

    def fail(copy: object, piece: int) -> None:
        raise SystemExit

    assert list(in_copies(range(5), fail, num_jobs=num_jobs, until=float("inf"))) == []
