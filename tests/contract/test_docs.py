"""What the documents quote is what the code says."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path

import pytest

from izwi.engine import Engine

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md"])
def test_the_quoted_loop_is_the_loop(page: str) -> None:
    quoted = (ROOT / page).read_text(encoding="utf-8")
    assert textwrap.dedent(inspect.getsource(Engine.step)).strip() in quoted


def test_the_loop_is_the_first_method_of_the_engine() -> None:
    methods = [name for name, value in vars(Engine).items() if inspect.isfunction(value)]
    assert methods[0] == "step"


def test_architecture_names_every_file_of_izwi_and_every_folder_of_the_api() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    files = [path.name for path in (ROOT / "izwi").glob("*.py")]
    folders = [
        f"{path.name}/"
        for room in ("izwi", "api/izwi_api")
        for path in (ROOT / room).iterdir()
        if (path / "__init__.py").is_file()
    ]
    names = set(files + folders) - {"__init__.py"}
    assert len(names) > 40
    missing = sorted(name for name in names if name not in page)
    assert not missing, "name them in a table of ARCHITECTURE.md"
