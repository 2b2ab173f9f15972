"""Pack dataclasses and arrays into messages and back. Pure; knows no socket and no model by name.

A dataclass becomes a list: the name of its class, then its fields in order, those that it derives
from others included, so that nothing is hashed twice. Only classes that are known come back, and
what they hold is checked against their annotations. A large array becomes a frame of its own
beside the message, which is sent and received without a copy.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from izwi import errors
from izwi.arrays import Samples
from izwi.errors import IzwiError

Frame = bytes | memoryview

# What is shorter stands in the message: a frame costs more than copying it.
_INLINE_BYTES = 4096
_KINDS = "fiub"
_ERRORS: dict[str, type[IzwiError]] = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, IzwiError)
}


class PackedArray(msgspec.Struct, array_like=True, frozen=True):
    """An array of numbers.

    Attributes:
        data: Its bytes, or the number of the frame that has them.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | int


class PackedError(msgspec.Struct, array_like=True, frozen=True):
    """An error.

    Attributes:
        kind: The nearest of its classes in izwi's tree; empty for one that is none of ours.
        values: What it carries beside its message.
    """

    kind: str
    message: str
    values: dict[str, Any]


class EngineFault(RuntimeError):
    """What failed in the engine's process and is no error of izwi's."""


def pack_array(array: npt.NDArray[Any], frames: list[Frame]) -> PackedArray:
    """Pack an array of numbers; a large one is appended to the frames."""
    if array.dtype.kind not in _KINDS:
        raise TypeError(f"an array of {array.dtype} cannot be sent")
    array = np.ascontiguousarray(array)
    if array.nbytes < _INLINE_BYTES:
        return PackedArray(array.dtype.str, array.shape, array.tobytes())
    frames.append(array.data.cast("B"))
    return PackedArray(array.dtype.str, array.shape, len(frames) - 1)


def unpack_array(packed: PackedArray, frames: Sequence[Frame]) -> npt.NDArray[Any]:
    """Return an array, which must not be written to. Raises ValueError where it is none."""
    data = frames[packed.data] if isinstance(packed.data, int) else packed.data
    dtype = np.dtype(packed.dtype)
    size = math.prod(packed.shape) * dtype.itemsize
    if dtype.kind not in _KINDS or memoryview(data).nbytes != size:
        raise ValueError(f"an array {packed.shape} of {packed.dtype} does not fill its data")
    array = np.frombuffer(data, dtype).reshape(packed.shape)
    array.flags.writeable = False
    return array


def pack_error(error: BaseException) -> PackedError:
    """Pack an error."""
    if not isinstance(error, IzwiError):
        return PackedError("", f"{type(error).__name__}: {error}", {})
    kind = next(cls.__name__ for cls in type(error).__mro__ if cls.__name__ in _ERRORS)
    return PackedError(kind, str(error), dict(vars(error)))


def unpack_error(packed: PackedError) -> Exception:
    """Return an error of the same class; `EngineFault` for one that is none of ours."""
    cls = _ERRORS.get(packed.kind)
    if cls is None:
        return EngineFault(packed.message)
    error = cls.__new__(cls, packed.message)
    error.__dict__.update(packed.values)
    return error


def pack(value: Any, frames: list[Frame]) -> Any:
    """Turn a dataclass, and all that it holds, into what msgspec encodes.

    Args:
        value: Of arrays, tuples, text, numbers, and dataclasses of these.
        frames: Large arrays are appended.
    """
    if isinstance(value, np.ndarray):
        return pack_array(value, frames)
    if is_dataclass(value):
        names = _field_names(value.__class__)
        return [type(value).__name__, *(pack(getattr(value, name), frames) for name in names)]
    if isinstance(value, tuple):
        return [pack(item, frames) for item in value]
    return value


Reader = Callable[[Any, Sequence[Frame]], Any]


class Unpacker:
    """Turns what `pack` gave into dataclasses again.

    Args:
        classes: Dataclasses that may come; those that they name in annotations may, too.
    """

    def __init__(self, classes: Iterable[type]):
        self._classes: dict[str, type] = {}
        self._readers: dict[str, list[tuple[str, Reader]]] = {}
        for cls in classes:
            self._know(cls)

    def unpack(self, packed: Any, frames: Sequence[Frame]) -> Any:
        """Return a dataclass.

        Its derived fields are those that were sent: nothing of it is computed here.

        Raises:
            ValueError: It is of a class that is not known, or does not fit its annotations.
        """
        if not (isinstance(packed, list) and packed and packed[0] in self._readers):
            raise ValueError(f"no class that may be sent: {packed!r:.80}")
        cls, readers = self._classes[packed[0]], self._readers[packed[0]]
        if len(packed) != len(readers) + 1:
            raise ValueError(f"{cls.__name__} has {len(readers)} fields, not {len(packed) - 1}")
        made: Any = object.__new__(cls)
        for (name, read), value in zip(readers, packed[1:], strict=True):
            object.__setattr__(made, name, read(value, frames))
        return made

    def _know(self, cls: type) -> None:
        if self._classes.setdefault(cls.__name__, cls) is not cls:
            raise ValueError(f"two classes that may be sent are called {cls.__name__}")
        if cls.__name__ in self._readers:
            return
        hints = typing.get_type_hints(cls)
        self._readers[cls.__name__] = []
        for name in _field_names(cls):
            self._readers[cls.__name__].append((name, self._reader(hints[name])))

    def _reader(self, hint: Any) -> Reader:
        """What reads a value of an annotation."""
        hint = _without_names(hint)
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if is_dataclass(hint) and isinstance(hint, type):
            self._know(hint)
            return partial(self._read_one, hint)
        if origin is np.ndarray or hint in (np.ndarray, Samples):  # a piece of sound is an array
            return _read_array
        if origin in (typing.Union, types.UnionType):
            return self._union(args)
        if origin is tuple and len(args) == 2 and args[1] is ...:
            read = self._reader(args[0])
            if not isinstance(read, _Plain):
                return lambda value, frames: tuple(read(item, frames) for item in value)
        if getattr(hint, "_is_protocol", False):  # any of the known classes
            return self.unpack
        return _Plain(hint)

    def _union(self, options: Sequence[Any]) -> Reader:
        """What reads one of several: classes tell themselves by name, and arrays are alone."""
        readers = {option: self._reader(option) for option in options}
        plain = [option for option, read in readers.items() if isinstance(read, _Plain)]
        made = [read for read in readers.values() if not isinstance(read, _Plain)]
        if not made:
            return _Plain(typing.Union[tuple(options)])  # noqa: UP007 (built from a list)
        rest = _Plain(typing.Union[tuple(plain)]) if plain else None  # noqa: UP007
        is_array = _read_array in made

        def read(value: Any, frames: Sequence[Frame]) -> Any:
            if value is None and type(None) in plain:
                return None
            if isinstance(value, list):
                return _read_array(value, frames) if is_array else self.unpack(value, frames)
            if rest is None:
                raise ValueError(f"{value!r:.80} is none of {options}")
            return rest(value, frames)

        return read

    def _read_one(self, cls: type, value: Any, frames: Sequence[Frame]) -> Any:
        made = self.unpack(value, frames)
        if not isinstance(made, cls):
            raise ValueError(f"{type(made).__name__} is no {cls.__name__}")
        return made


def _without_names(hint: Any) -> Any:
    """What a named alias stands for: from Python 3.12 on `NDArray` may be one."""
    while True:
        named = typing.get_origin(hint) or hint
        if not hasattr(named, "__value__"):
            return hint
        hint = named.__value__


class _Plain:
    """Reads what msgspec knows by itself: text, numbers, names, and tuples of them."""

    def __init__(self, hint: Any):
        self._hint = hint

    def __call__(self, value: Any, frames: Sequence[Frame]) -> Any:
        del frames
        return msgspec.convert(value, self._hint)


def _read_array(value: Any, frames: Sequence[Frame]) -> npt.NDArray[Any]:
    return unpack_array(msgspec.convert(value, PackedArray), frames)


@cache
def _field_names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))
