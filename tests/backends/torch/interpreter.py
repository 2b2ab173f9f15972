"""Make Triton's interpreter quicker; what it computes stays the same.

For each call of a device function it looks through all members of `triton.language` for functions
to replace; for each value it builds the table of types again, and the type of its shape; for each
sum of integers it finds out whether it overflows, and tells nobody; and it computes the exclusive
or of an axis, which sorting needs in each of its steps, one element at a time in Python.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import numpy as np


def hasten() -> None:
    """Replace functions of the interpreter. The names are those of Triton 3.6."""
    _hasten_calls()
    _hasten_reductions()
    _hasten_types()
    _hasten_operators()


def _hasten_calls() -> None:
    """Look once for what is replaced, and replace it once while a kernel runs."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch_attr, patch_lang = interpreter._patch_attr, interpreter._patch_lang
    semantic_of, wrapped = cache(interpreter.TritonSemantic), tl.tensor.__add__.__code__
    run_grid = interpreter.GridExecutor.__call__
    patched: dict[int, Any] = {}  # by module of a function, while a kernel runs

    @cache
    def builtins_of(package: Any) -> list[str]:
        """Names of what is replaced. The first call comes before anything is."""
        members = inspect.getmembers(package)
        return [name for name, member in members if tl.core.is_builtin(member)]

    def patch_function(package: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        if getattr(member, "__code__", None) is not wrapped:
            patch_attr(package, name, member, builder, scope)
            return
        function, semantic = member.__wrapped__, semantic_of(builder)

        def call(*arguments: Any, **named: Any) -> Any:
            named["_semantic"] = semantic
            return function(*arguments, **named)

        scope.set_attr(package, name, call)

    def patch_builtin(package: Any, builder: Any, scope: Any) -> None:
        for name in builtins_of(package):
            member = getattr(package, name)
            if tl.core.is_builtin(member):  # else it is replaced already
                patch_function(package, name, member, builder, scope)

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

    interpreter._patch_lang = patch_once
    interpreter.GridExecutor.__call__ = run_grid_anew
    interpreter._patch_attr = patch_function
    interpreter._patch_builtin = patch_builtin


def _hasten_reductions() -> None:
    """Let numpy compute the exclusive or of an axis."""
    import triton.language as tl
    from triton.runtime import interpreter

    reduce = interpreter.ReduceOps.apply_impl

    def apply(self: Any, operands: Any) -> Any:
        if self.combine_fn != tl.standard._xor_combine or self.axis is None:
            return reduce(self, operands)
        (operand,) = operands
        found = np.bitwise_xor.reduce(operand.handle.data, self.axis, keepdims=self.keep_dims)
        return self.to_tensor(found, operand.dtype)

    interpreter.ReduceOps.apply_impl = apply


def _hasten_types() -> None:
    """Keep the types and shapes of values; name the type of a tuple when somebody asks for it."""
    import triton.language.core as tl
    from triton.runtime import interpreter

    find_dtype = interpreter._get_np_dtype
    dtypes: dict[tuple[type, str], np.dtype[Any]] = {}

    def dtype_of(kind: Any) -> np.dtype[Any]:
        key = type(kind), kind.name
        if key not in dtypes:
            dtypes[key] = find_dtype(kind)
        return dtypes[key]

    are_equal, make_block = tl.dtype.__eq__, tl.block_type.__init__
    blocks: dict[tuple[int, ...], tuple[Any, int, str, Any]] = {}

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([size if type(size) is int else size.value for size in shape])
        if sizes not in blocks:
            make_block(self, element_ty, shape)
            constants = tl.tuple([tl.constexpr(size) for size in sizes])
            blocks[sizes] = self.shape, self.numel, str(self.shape), constants
            counts[self.numel] = tl.constexpr(self.numel)
        self.element_ty = element_ty
        self.shape, self.numel, name, self.constants = blocks[sizes]
        self.name = f"<{name}, {element_ty}>"

    none, counts = tl.tuple([]), {1: tl.constexpr(1)}

    def tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        if type.is_block():
            self.shape, self.numel = type.constants, counts[type.numel]
        else:
            self.shape, self.numel = none, counts[1]

    def tuple_of(self: Any, args: Any, type: Any = None) -> None:
        self.values = list(args)
        if type is not None:
            self.type = type if isinstance(type, tl.tuple_type) else tl.tuple_type(type)

    def type_of(self: Any) -> Any:
        if "named" not in self.__dict__:
            self.named = tl._type_for_tuple_values(self.values)
        return self.named

    interpreter._get_np_dtype = dtype_of
    tl.block_type.__init__ = block
    tl.tensor.__init__ = tensor
    tl.tuple.__init__ = tuple_of
    tl.tuple.type = property(type_of, lambda self, kind: setattr(self, "named", kind))
    tl.dtype.__eq__ = lambda self, other: self is other or are_equal(self, other)


def _hasten_operators() -> None:
    """Look for what two values have in common only where they differ."""
    import triton.language.core as tl
    from triton.language.semantic import TritonSemantic

    broadcast = TritonSemantic.broadcast_impl_value
    plain = {id(kind) for kind in (tl.int32, tl.int64, tl.float32)}
    check = TritonSemantic.binary_op_type_checking_impl

    def checked(self: Any, lhs: Any, rhs: Any, *how: Any, **named: Any) -> Any:
        are_tensors = type(lhs) is type(rhs) is tl.tensor
        if are_tensors and lhs.dtype is rhs.dtype and id(lhs.dtype) in plain:
            return self.broadcast_impl_value(lhs, rhs)
        return check(self, lhs, rhs, *how, **named)

    def broadcast_others(self: Any, lhs: Any, rhs: Any) -> Any:
        alike = lhs.shape is rhs.shape
        return (lhs, rhs) if alike else broadcast(self, lhs, rhs)

    TritonSemantic.broadcast_impl_value = broadcast_others
    TritonSemantic.binary_op_type_checking_impl = checked
    TritonSemantic.binary_op_sanitize_overflow_impl = lambda *_: None
