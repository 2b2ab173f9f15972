"""No function has more than six parameters, so that calls stay readable."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.contract.sources import statements

ROOT = Path(__file__).parents[2]
ROOMS = ("izwi", "models", "api", "web")
MOST = 6
# Kernels, and the table of operations that they implement, take what the arithmetic takes.
# Commands take an argument for each option of theirs. Recipes are scripts.
COMMANDS, SCRIPTS = "api/izwi_api/cli/", "models/izwi_models/tiny/recipes/"
KERNELS = "izwi/backends/torch/triton/"
TABLES = (
    "izwi/ops/",
    *(f"izwi/backends/mlx/{name}.py" for name in ("ops", "attention", "audio")),
    *(f"izwi/backends/torch/{name}" for name in ("ops.py", "audio.py", "attention/")),
)


def num_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """What a caller passes: neither `self` nor `cls`."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    number = sum(argument.arg not in ("self", "cls") for argument in named)
    return number + (arguments.vararg is not None) + (arguments.kwarg is not None)


def test_no_function_takes_more_than_six() -> None:
    long: set[str] = set()
    num_functions = 0
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            place = str(path.relative_to(ROOT))
            if place.startswith((KERNELS, *TABLES, COMMANDS, SCRIPTS)):
                continue
            for node in statements(path):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    num_functions += 1
                    if num_parameters(node) > MOST:
                        long.add(f"{place}: {node.name}")
    assert num_functions > 1000
    assert not long


def test_it_counts_what_a_caller_passes() -> None:
    (function,) = ast.parse("def f(self, a, /, b, *c, d, e=1, **g): ...").body
    assert isinstance(function, ast.FunctionDef)
    assert num_parameters(function) == 6
