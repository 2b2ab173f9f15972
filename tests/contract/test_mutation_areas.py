"""What `make mutants` mutates is there, and so are the tests that must notice."""

from __future__ import annotations

from pathlib import Path

from tests.mutation.areas import AREAS

ROOT = Path(__file__).parents[2]


def test_every_module_and_every_test_of_an_area_exists() -> None:
    named = {*AREAS, *(test for tests in AREAS.values() for test in tests)}
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []
    assert all(AREAS.values())
