"""Make Triton's interpreter quicker; what it computes stays the same.

For each call of a device function it looks through all members of `triton.language` for functions
to replace; for each value it builds the table of types again; and it computes the exclusive or of
an axis, which sorting needs in each of its steps, one element at a time in Python.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import numpy as np


def hasten() -> None:
    """Replace functions of the interpreter. The names are those of Triton 3.6."""
    import triton.language as tl
    from triton.runtime import interpreter

    find_dtype, reduce = interpreter._get_np_dtype, interpreter.ReduceOps.apply_impl
    patch_attr, patch_lang = interpreter._patch_attr, interpreter._patch_lang
    run_grid = interpreter.GridExecutor.__call__
    patched: dict[int, Any] = {}  # by module of a function, while a kernel runs
    dtypes: dict[tuple[type, str], np.dtype[Any]] = {}

    @cache
    def builtins_of(package: Any) -> list[str]:
        """Names of what is replaced. The first call comes before anything is."""
        members = inspect.getmembers(package)
        return [name for name, member in members if tl.core.is_builtin(member)]

    def patch_builtin(package: Any, builder: Any, scope: Any) -> None:
        for name in builtins_of(package):
            member = getattr(package, name)
            if tl.core.is_builtin(member):  # else it is replaced already
                patch_attr(package, name, member, builder, scope)

    def patch_once(function: Any) -> Any:
        """Restored when the kernel ends; what its device functions ask for again is there."""
        module = id(function.__globals__)
        if module not in patched:
            patched[module] = patch_lang(function)
        return patched[module]

    def run_grid_anew(self: Any, *arguments: Any, **named: Any) -> None:
        patched.clear()
        try:
            run_grid(self, *arguments, **named)
        finally:
            patched.clear()

    def dtype_of(kind: Any) -> np.dtype[Any]:
        key = type(kind), kind.name
        if key not in dtypes:
            dtypes[key] = find_dtype(kind)
        return dtypes[key]

    def apply(self: Any, operands: Any) -> Any:
        if self.combine_fn != tl.standard._xor_combine or self.axis is None:
            return reduce(self, operands)
        (operand,) = operands
        found = np.bitwise_xor.reduce(operand.handle.data, self.axis, keepdims=self.keep_dims)
        return self.to_tensor(found, operand.dtype)

    interpreter._patch_lang = patch_once
    interpreter.GridExecutor.__call__ = run_grid_anew
    interpreter._patch_builtin = patch_builtin
    interpreter._get_np_dtype = dtype_of
    interpreter.ReduceOps.apply_impl = apply
