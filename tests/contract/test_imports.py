"""What benchmarks and tests import from this repository exists.

Some of these modules run only on a GPU or with other packages, so the names are looked up in the
source, without importing anything.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.contract.sources import statements

ROOT = Path(__file__).parents[2]
ROOMS = (ROOT, ROOT / "models", ROOT / "api", ROOT / "web")
# It runs among openai-python's own tests, a package of the same name.
LEFT_OUT = ROOT / "tests/clients/plugin"
PACKAGES = ("izwi", "izwi_models", "izwi_api", "izwi_web", "benchmarks", "tests")


@cache
def file_of(module: str) -> Path | None:
    """Return the source file of one of our modules, a folder, or None."""
    for room in ROOMS:
        path = room.joinpath(*module.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
        if path.is_dir():
            return path  # a folder without __init__.py
    return None


def bound(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module binds outside functions and classes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        else:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            yield from bound(node)


@cache
def names_of(file: Path) -> frozenset[str]:
    """Return the names that a module binds; none for a folder."""
    if not file.is_file():
        return frozenset()
    return frozenset(bound(ast.parse(file.read_text(encoding="utf-8"))))


def missing_in(source: str) -> list[str]:
    """Return the imports of a source that have no definition, as module.name."""
    missing = []
    for node in statements(source):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        if node.module.partition(".")[0] not in PACKAGES:
            continue
        file = file_of(node.module)
        names = frozenset() if file is None else names_of(file)
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            if alias.name not in names and file_of(full) is None:
                missing.append(full)
    return missing


@pytest.mark.parametrize(
    "folder",
    ["benchmarks", pytest.param("tests", marks=pytest.mark.slow), "models/izwi_models/tiny"],
)
def test_every_imported_name_exists(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert len(files) > 20
    missing = {
        str(path.relative_to(ROOT)): names
        for path in files
        if LEFT_OUT not in path.parents and (names := missing_in(path.read_text(encoding="utf-8")))
    }
    assert not missing


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("from izwi.engine.engine import Engine", []),
        ("from izwi.engine.engine import Locomotive", ["izwi.engine.engine.Locomotive"]),
        ("from izwi.engines import Engine", ["izwi.engines.Engine"]),
        ("from izwi.backends.torch import ops as torch_ops, triton", []),
        ("def f():\n    from izwi_api.cli.main import ape", ["izwi_api.cli.main.ape"]),
        ("from torch import nothing_of_ours", []),
    ],
)
def test_a_name_without_definition_is_found(source: str, missing: list[str]) -> None:
    assert missing_in(source) == missing
