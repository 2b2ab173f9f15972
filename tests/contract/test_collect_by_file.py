"""Workers that import a file when they run it report what pytest reports, also when one dies."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FILES = {
    "pytest.ini": """
[pytest]
addopts = --import-mode=importlib -m "not slow"
markers = slow
asyncio_default_fixture_loop_scope = function
""",
    "test_outcomes.py": """
import pytest
from pathlib import Path

@pytest.fixture(scope="module")
def once():
    yield 1
    with Path("torn_down").open("a") as lines:
        lines.write("once ")

def test_passes(once): pass
def test_fails(once): assert once == 2
@pytest.mark.skip(reason="shown as skipped")
def test_skipped(): raise AssertionError
@pytest.mark.slow
def test_slow(): raise AssertionError
""",
    "folder/test_many.py": """
import pytest

@pytest.mark.parametrize("number", range(30))
def test_number(number): pass
""",
    "folder/test_killed.py": """
import os, signal

def test_before(): pass
def test_kills(): os.kill(os.getpid(), signal.SIGKILL)
def test_after(): pass
""",
    "test_not_importable.py": "import no_such_module",
    "test_kills_on_import.py": """
import os, signal

os.kill(os.getpid(), signal.SIGKILL)
""",
}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with two such workers in `folder`."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.collect_by_file", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=240,
    )


def lay_out(folder: Path, *names: str) -> None:
    for name in ("pytest.ini", *names):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(FILES[name])


@pytest.mark.slow  # starts five workers
def test_failures_and_deaths_are_reported_by_test_and_the_rest_runs(tmp_path: Path) -> None:
    lay_out(tmp_path, *FILES)
    ran = run(tmp_path, "-n", "2", "--durations", "3")
    assert ran.returncode == 1
    assert " 3 failed, 33 passed, 1 skipped, 1 error in " in ran.stdout.splitlines()[-1]
    for line in (
        "FAILED test_outcomes.py::test_fails - ",
        "FAILED folder/test_killed.py::test_kills - worker ",
        "FAILED test_kills_on_import.py - worker ",
        "ERROR test_not_importable.py - ImportError",
    ):
        assert line in ran.stdout
    assert (tmp_path / "torn_down").read_text() == "once "  # after the last test of the file
    (tmp_path / "test_kills_on_import.py").unlink()
    (tmp_path / "test_not_importable.py").unlink()
    failed = subprocess.run(
        [sys.executable, "-m", "pytest", "--last-failed", "--collect-only", "--quiet"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert set(failed.stdout.splitlines()[:2]) == {
        "test_outcomes.py::test_fails",
        "folder/test_killed.py::test_kills",
    }


@pytest.mark.slow  # starts two workers
def test_tests_are_chosen_by_expression(tmp_path: Path) -> None:
    lay_out(tmp_path, "test_outcomes.py", "folder/test_many.py")
    ran = run(tmp_path, "-n", "2", "-k", "passes or number and 29")
    assert ran.returncode == 0
    assert " 2 passed in " in ran.stdout.splitlines()[-1]


@pytest.mark.parametrize("arguments", [["--last-failed"], ["test_outcomes.py::test_passes"]])
def test_choosing_single_tests_is_refused(tmp_path: Path, arguments: list[str]) -> None:
    lay_out(tmp_path, "test_outcomes.py")
    ran = run(tmp_path, *arguments)
    assert ran.returncode == pytest.ExitCode.USAGE_ERROR
    assert "without -p" in ran.stderr
