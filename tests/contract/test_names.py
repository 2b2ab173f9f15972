"""Names of classes and modules say what they are."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.contract.sources import statements

ROOT = Path(__file__).parents[2]
ROOMS = ("izwi", "models", "api", "web", "benchmarks")
BANNED = ("Manager", "Helper", "Util")


def sources() -> list[Path]:
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def test_names_say_something() -> None:
    assert len(sources()) > 40
    found = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in sources()
        for node in statements(path)
        if isinstance(node, ast.ClassDef) and any(word in node.name for word in BANNED)
    ]
    found += [str(path) for path in sources() if path.stem.startswith(("util", "helper"))]
    assert not found
