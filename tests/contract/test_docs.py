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
