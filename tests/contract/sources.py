"""The statements of a source, for tests that look for classes, functions or imports."""

import ast
from collections.abc import Iterator
from pathlib import Path

_HAVE_STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)


def statements(source: str | Path) -> Iterator[ast.stmt]:
    """Yield the statements of a source, or of a file, at any depth.

    `ast.walk` would also visit expressions, which are nine of ten nodes and contain no statement.
    """
    text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
    pending: list[ast.AST] = [ast.parse(text)]
    while pending:
        children = ast.iter_child_nodes(pending.pop())
        for child in children:
            if isinstance(child, _HAVE_STATEMENTS):
                pending.append(child)
            if isinstance(child, ast.stmt):
                yield child
