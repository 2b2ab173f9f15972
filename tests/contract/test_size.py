"""Files and functions stay short enough to be read at once."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("izwi", "models", "api", "web", "benchmarks")
BANNED = ("Manager", "Helper", "Util")


def sources() -> list[Path]:
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def test_files_and_functions_are_short() -> None:
    assert len(sources()) > 40
    long: list[str] = []
    for path in sources():
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > 400:
            long.append(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno
                if length > 60:
                    long.append(f"{path.relative_to(ROOT)}: {node.name} has {length} lines")
    assert not long


def test_names_say_something() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and any(word in node.name for word in BANNED)
    ]
    found += [str(path) for path in sources() if path.stem.startswith(("util", "helper"))]
    assert not found
