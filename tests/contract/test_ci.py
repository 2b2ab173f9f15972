"""CI runs the Python versions that the package names, and targets that the Makefile has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
CI = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_ci_runs_every_python_that_the_package_names() -> None:
    (matrix,) = re.findall(r"matrix: \{python: \[(.*)\]\}", CI)
    named = re.findall(r"Python :: (\d+\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert re.findall(r"\d+\.\d+", matrix) == named
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_ci_runs_targets_of_the_makefile() -> None:
    targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    used = re.findall(r"run: make (\w+)", CI)
    assert set(used) == {"test", "check"}
    assert set(used) <= set(targets)
