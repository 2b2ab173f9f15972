"""Which faults are planted: a choice of cosmic-ray's operators, and statements left out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import parso
from cosmic_ray.commands.init import init
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.plugins import OPERATOR_PROVIDERS
from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import WorkerOutcome, WorkResult

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


def plan_mutants(module: Path, session: WorkDB) -> None:
    """Write every mutant of a module into a session; those that say nothing are skipped there."""
    init([module], session, {})
    quiet = list(_quiet(ast.parse(module.read_text(encoding="utf-8"))))
    skipped = []
    for item in session.pending_work_items:
        (mutant,) = item.mutations
        start, end = mutant.start_pos, mutant.end_pos
        in_quiet = any(a <= start and end <= b for a, b in quiet)
        if not _KEPT.fullmatch(mutant.operator_name) or in_quiet:
            skipped.append(item.job_id)
    session.set_multiple_results(skipped, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))


def _quiet(tree: ast.Module) -> Iterator[Span]:
    """Yield the spans in which a change changes nothing: annotations, `TYPE_CHECKING`, options.

    Options of `@dataclass` (`frozen`, `slots`) keep others from mistakes and compute nothing.
    """
    for node in ast.walk(tree):
        found: list[ast.expr | ast.stmt | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found = [node.returns]
        elif isinstance(node, ast.arg | ast.AnnAssign):
            found = [node.annotation]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            found = [node]
        elif isinstance(node, ast.ClassDef):
            found = [*node.decorator_list]
        elif isinstance(node, ast.Assign):
            found = [node.value] if _is_type(node) else []
        for part in found:
            if part is not None:
                end = (part.end_lineno or part.lineno, part.end_col_offset or 0)
                yield (part.lineno, part.col_offset), end


def _is_type(node: ast.Assign) -> bool:
    """Whether a name is given to a type: `Found = Hit | Miss`."""
    names = [n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)]
    return isinstance(node.value, ast.BinOp) and all(name[0].isupper() for name in names)
