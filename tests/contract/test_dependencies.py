"""Every dependency is imported; versions that work together are pinned."""

from __future__ import annotations

import ast
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.contract.sources import statements
from tests.contract.write_constraints import LEFT_OUT, constraints

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ROOMS = ("izwi", "models", "api", "web")
IMPORTED_BY_ANOTHER = {"python-multipart": "starlette imports it when it parses a form"}


def imported_modules() -> set[str]:
    """Names of the top-level modules that the rooms import."""
    found: set[str] = set()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            for node in statements(path):
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    found.add(node.module.partition(".")[0])
    return found


def requirements(*extras: str) -> list[Requirement]:
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    return [Requirement(line) for line in lines]


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.partition("==") for line in lines if not line.startswith("#"))
    return {name: version for name, _, version in pairs}


def test_every_dependency_is_imported() -> None:
    modules = imported_modules()
    imported = {
        canonicalize_name(distribution)
        for module, distributions in packages_distributions().items()
        if module in modules
        for distribution in distributions
    }
    names = {canonicalize_name(each.name) for each in requirements()}
    assert len(names) > 10
    assert names - imported == set(IMPORTED_BY_ANOTHER)


def test_every_dependency_has_a_version_that_is_allowed() -> None:
    versions = pinned()
    for each in requirements("dev", "mutants"):
        name = canonicalize_name(each.name)
        if name.startswith(LEFT_OUT):
            continue
        assert name in versions, f"{name}: `make constraints` writes its version down"
        assert versions[name] in each.specifier, f"{name}=={versions[name]} is not {each.specifier}"


def test_torch_stays_below_the_version_that_no_test_has_seen() -> None:
    assert pinned()["torch"] == "2.13.0"


def test_constraints_are_names_and_versions() -> None:
    reported = {"Foo_Bar.baz": "1.2+cpu", "izwi": "0.1.0", "nvidia-cublas": "13.0"}
    install = [{"metadata": {"name": n, "version": v}} for n, v in reported.items()]
    assert constraints({"install": install}).splitlines()[1:] == ["foo-bar-baz==1.2"]
