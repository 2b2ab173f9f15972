"""Which faults are planted: a choice of cosmic-ray's operators, and statements left out."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import parso
from cosmic_ray.ast import Visitor, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.plugins import OPERATOR_PROVIDERS, get_operator, operator_names

from tests.mutation.mutants import ROOT, Mutant

Span = tuple[tuple[int, int], tuple[int, int]]

# Of the operators that replace one sign by any other, those that a person could confuse. The rest
# end in a TypeError, or say the same as another.
_KEPT = re.compile(
    r"core/(ReplaceComparisonOperator_"
    r"(Lt_LtE|Lt_GtE|LtE_Lt|LtE_Gt|Gt_GtE|Gt_LtE|GtE_Gt|GtE_Lt|Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is)"
    r"|ReplaceBinaryOperator_"
    r"(Add_Sub|Sub_Add|Mul_Div|Div_Mul|FloorDiv_Mul|Mod_FloorDiv|Pow_Mul|BitOr_BitAnd|BitAnd_BitOr"
    r"|LShift_RShift|RShift_LShift)"
    r"|ReplaceUnaryOperator_(USub_UAdd|Delete_Not)"
    r"|AddNot|Replace(TrueWithFalse|FalseWithTrue|AndWithOr|OrWithAnd)"
    r"|Replace(BreakWithContinue|ContinueWithBreak)"
    r"|ExceptionReplacer|NumberReplacer|RemoveDecorator|ZeroIterationForLoop)|izwi/.*"
)


class LeaveOut(Operator):  # type: ignore[misc]  # cosmic-ray has no types
    """Leave out a statement that only has an effect: a call, or what is put somewhere."""

    def mutation_positions(self, node: Any) -> Iterator[Span]:
        """Yield the span of a statement that can be left out."""
        if node.type == "simple_stmt" and _has_effect(node.children[0]):
            yield node.start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Put `pass` in the statement's place."""
        nothing = parso.parse("pass").children[0]
        nothing.prefix = node.get_first_leaf().prefix
        node.children[0] = nothing
        return node

    @classmethod
    def examples(cls) -> tuple[Any, ...]:
        """What it does."""
        return (Example("f()\n", "pass\n"),)


def _has_effect(statement: Any) -> bool:
    if statement.type == "expr_stmt":  # a local name that is gone is noticed by ruff
        target = statement.children[0]
        augmented = statement.children[1].type == "operator" and statement.children[1].value != "="
        return target.type in ("power", "atom_expr") or augmented
    if statement.type in ("power", "atom_expr"):
        return statement.get_first_leaf().value not in ("logger", "super")
    return bool(statement.type in ("await", "del_stmt", "raise_stmt"))


class _Provider:
    def __iter__(self) -> Iterator[str]:
        return iter(("LeaveOut",))

    def __getitem__(self, name: str) -> type[LeaveOut]:
        return LeaveOut


OPERATOR_PROVIDERS["izwi"] = _Provider()


@dataclass(frozen=True, slots=True)
class Site:
    """Where an operator can plant a fault, before it is made: making one parses the module."""

    id: str
    operator: str
    occurrence: int
    span: Span


class _Positions(Visitor):  # type: ignore[misc]  # cosmic-ray has no types
    """All places where an operator applies, in the order in which it counts them."""

    def __init__(self, operator: Operator):
        self.spans: list[Span] = []
        self._operator = operator

    def visit(self, node: Any) -> Any:
        self.spans += self._operator.mutation_positions(node)
        return node


def find_sites(module: str) -> list[Site]:
    """Return every place of a module where a fault can be planted, in an order drawn by lot."""
    text = (ROOT / module).read_text(encoding="utf-8")
    tree, parsed, lines = ast.parse(text), get_ast(text), text.splitlines()
    quiet = list(_quiet(tree))
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    found: list[Site] = []
    numbers: dict[str, int] = {}  # sites of an operator in the same function so far
    for name in operator_names():
        if _KEPT.fullmatch(name):
            positions = _Positions(get_operator(name)())
            positions.walk(parsed)
            for occurrence, (start, end) in enumerate(positions.spans):
                is_marker = lines[start[0] - 1][start[1] :].startswith("*,")  # of a signature
                if not is_marker and not any(a <= start and end <= b for a, b in quiet):
                    key = f"{module} {name} {_around(text, functions, start)}"
                    number = numbers[key] = numbers.get(key, -1) + 1
                    digest = sha256(f"{number} {key}".encode()).hexdigest()[:10]
                    found.append(Site(digest, name, occurrence, (start, end)))
    random.Random(module).shuffle(found)
    return found


def _around(text: str, functions: list[Any], start: tuple[int, int]) -> str:
    """Return the innermost function around a place without its prose, or else the line."""
    around = [f for f in functions if f.lineno <= start[0] <= (f.end_lineno or 0)]
    if not around:
        return text.splitlines()[start[0] - 1]
    return _code_of(max(around, key=lambda function: function.lineno))


def _code_of(function: Any) -> str:
    """Return a function without docstrings and comments, which may change: ids stay the same."""
    copy = deepcopy(function)
    for node in ast.walk(copy):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            node.body = node.body[ast.get_docstring(node) is not None :] or [ast.Pass()]
    return ast.unparse(copy)


def plant(module: str, site: Site) -> Mutant | None:
    """Make a mutant; None where it does not compile, or is the same as the module."""
    text = (ROOT / module).read_text(encoding="utf-8")
    try:
        became = mutate_code(text, get_operator(site.operator)(), site.occurrence)
    except AttributeError:  # cosmic-ray's ExceptionReplacer and `except a.b:`
        return None
    if became is None or became == text or not _compiles(became):
        return None
    old, new = text.split("\n"), became.split("\n")
    start = next(i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
    same = 0
    while same < min(len(old), len(new)) - start and old[-1 - same] == new[-1 - same]:
        same += 1
    was, now = tuple(old[start : len(old) - same]), tuple(new[start : len(new) - same])
    lines = _statement_lines(ast.parse(text), site.span)
    return Mutant(module, site.id, start + 1, was, now, lines)


def _statement_lines(tree: ast.Module, span: Span) -> tuple[int, int]:
    """Return the first and last line of the innermost statement around a place, header alone."""
    first, last = span[0][0], span[1][0]
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= first <= (node.end_lineno or 0)
    ]
    return max([node.lineno for node in around], default=first), last


def _compiles(text: str) -> bool:
    try:
        compile(text, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _quiet(tree: ast.Module) -> Iterator[Span]:
    """Yield the spans in which a change is no fault: annotations, `TYPE_CHECKING`, options, limits.

    Options of classes (`frozen`, `slots`) keep others from mistakes and compute nothing. The
    number of a constant (`PATIENCE_STEPS = 1000`) is a choice: a test could only repeat it.
    """
    for node in tree.body:
        if isinstance(node, ast.Assign) and _is_number(node.value):
            yield _span(node.value)
    for node in ast.walk(tree):
        found: list[ast.expr | ast.stmt | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found = [node.returns]
        elif isinstance(node, ast.arg | ast.AnnAssign):
            found = [node.annotation]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            found = [node]
        elif isinstance(node, ast.ClassDef):
            options = [keyword.value for keyword in node.keywords if keyword.arg == "frozen"]
            found = [*node.decorator_list, *options]
        elif isinstance(node, ast.Assign):
            found = [node.value] if _is_type(node) else []
        for part in found:
            if part is not None:
                yield _span(part)


def _span(node: ast.expr | ast.stmt) -> Span:
    end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
    return (node.lineno, node.col_offset), end


def _is_number(node: ast.expr) -> bool:
    value = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(value, ast.Constant) and isinstance(value.value, int | float)


def _is_type(node: ast.Assign) -> bool:
    """Whether a name is given to a type: `Found = Hit | Miss`."""
    names = [n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)]
    return isinstance(node.value, ast.BinOp) and all(name[0].isupper() for name in names)
