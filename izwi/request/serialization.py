"""Turn structs that hold arrays and errors into bytes and back, for sockets, logs and recordings.

A message for a socket is a list of frames: the first is msgpack, the others are large arrays, which
are sent and received without a copy. A line of a recording is JSON with compressed arrays. Both are
written and read by the annotations of msgspec structs, so that input is validated and can only
create these structs: bytes never name a class or run code.
"""

from __future__ import annotations

import math
import typing
import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from izwi import errors
from izwi.arrays import Samples
from izwi.errors import EngineFault, InvalidMessage, IzwiError

Frame = bytes | memoryview
T = TypeVar("T")

# Shorter arrays are part of the message: a frame costs more than copying them.
_INLINE_BYTES = 4096
# Arrays that may be sent, by name. Their byte order is little-endian.
_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ERRORS: dict[str, type[IzwiError]] = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, IzwiError)
}
# Values of errors besides their messages, by annotation.
_CARRIED = {name: typing.get_type_hints(cls) for name, cls in _ERRORS.items()}


class PackedArray(Struct, array_like=True, frozen=True):
    """An array in a message.

    Attributes:
        data: The bytes, or the index of the frame that has them.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | int


class CompressedArray(Struct, frozen=True):
    """An array in a line.

    Attributes:
        data: The bytes in planes (all first bytes of the items, then all second bytes, and so on),
            compressed with zlib. Neighbours in audio share their high bytes, so planes compress
            well.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class PackedError(Struct, array_like=True, frozen=True):
    """An error.

    Attributes:
        kind: The nearest class in the error tree; empty for an error outside the tree.
        values: Values of the error besides its message.
    """

    kind: str
    message: str
    values: dict[str, Any]


def encode(value: Any) -> list[Frame]:
    """Encode a struct as a message.

    Returns:
        The message, then its large arrays. Arrays are not copied, so they must not change any more.

    Raises:
        TypeError: It holds something that cannot be sent.
    """
    frames: list[Frame] = [b""]
    frames[0] = msgspec.msgpack.encode(value, enc_hook=partial(_pack, frames))
    return frames


def decode(frames: Sequence[Frame], cls: type[T]) -> T:
    """Decode a message. Its arrays must not be written to: they are views of the frames.

    Args:
        frames: Result of `encode`.
        cls: A struct; generic structs need their parameters.

    Raises:
        InvalidMessage: They are not such a message.
    """
    try:
        return msgspec.msgpack.decode(frames[0], type=cls, dec_hook=partial(_unpack, frames))
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise InvalidMessage(f"a message cannot be read: {error}") from error


def encode_line(value: Any) -> bytes:
    """Encode a struct as one line of JSON with its end. Raises TypeError as `encode`."""
    return msgspec.json.encode(value, enc_hook=_compress) + b"\n"


def decode_line(content: bytes, cls: Any) -> Any:
    """Decode a line of JSON.

    Args:
        content: Result of `encode_line`.
        cls: A struct, or a union of tagged structs.

    Raises:
        InvalidMessage: It is not such a line.
    """
    try:
        return msgspec.json.decode(content, type=cls, dec_hook=_decompress)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise InvalidMessage(f"a line cannot be read: {error}") from error


def pack_error(error: BaseException) -> PackedError:
    """Pack an error."""
    if not isinstance(error, IzwiError):
        return PackedError("", f"{type(error).__name__}: {error}", {})
    kind = next(cls.__name__ for cls in type(error).__mro__ if cls.__name__ in _ERRORS)
    carried = _CARRIED[kind]
    values = {name: value for name, value in vars(error).items() if name in carried}
    return PackedError(kind, str(error), values)


def unpack_error(packed: PackedError) -> IzwiError:
    """Return an error of the same class; `EngineFault` for one outside the tree.

    Raises:
        ValueError: It has values that its class does not have.
    """
    cls = _ERRORS.get(packed.kind)
    if cls is None:
        return EngineFault(packed.message)
    carried = _CARRIED[packed.kind]
    if packed.values.keys() - carried.keys():
        raise ValueError(f"{cls.__name__} does not carry {', '.join(packed.values)}")
    values = {name: msgspec.convert(v, carried[name]) for name, v in packed.values.items()}
    error = cls.__new__(cls, packed.message)
    error.__dict__.update(values)
    return error


# -- messages ------------------------------------------------------------------------------------
def _pack(frames: list[Frame], value: Any) -> Any:
    """Pack what msgspec does not know; a large array is appended to the frames."""
    if isinstance(value, BaseException):
        return pack_error(value)
    array = _array_of(value)
    name, array = _sendable(array)
    if array.nbytes < _INLINE_BYTES:
        return (name, array.shape, array.tobytes())
    frames.append(array.data.cast("B"))
    return (name, array.shape, len(frames) - 1)


def _unpack(frames: Sequence[Frame], cls: Any, packed: Any) -> Any:
    """Unpack what `_pack` packed, as an annotation asks for. Raises ValueError."""
    if cls is BaseException:
        return unpack_error(msgspec.convert(packed, PackedError))
    wanted = _item_type(cls)
    made = msgspec.convert(packed, PackedArray)
    if not isinstance(made.data, int):
        return _array(made, made.data, wanted)
    if not 0 < made.data < len(frames):
        raise ValueError(f"there is no frame {made.data}")
    return _array(made, frames[made.data], wanted)


# -- lines ---------------------------------------------------------------------------------------
def _compress(value: Any) -> CompressedArray:
    name, array = _sendable(_array_of(value))
    planes = np.frombuffer(array.tobytes(), np.uint8).reshape(-1, array.itemsize).T
    return CompressedArray(name, array.shape, zlib.compress(planes.tobytes()))


def _decompress(cls: Any, packed: Any) -> npt.NDArray[Any]:
    wanted = _item_type(cls)
    made = msgspec.convert(packed, CompressedArray)
    itemsize = _dtype(made, wanted).itemsize
    size = math.prod(made.shape) * itemsize
    try:
        planes = zlib.decompressobj().decompress(made.data, size + 1)
    except (zlib.error, OverflowError, MemoryError, ValueError) as error:
        raise ValueError(f"an array cannot be decompressed: {error}") from error
    if len(planes) != size:
        raise ValueError(f"an array {made.shape} of {made.dtype} does not fill its data")
    items = np.frombuffer(planes, np.uint8).reshape(itemsize, -1).T
    return _array(made, items.tobytes(), wanted)


# -- arrays --------------------------------------------------------------------------------------
def _array_of(value: Any) -> npt.NDArray[Any]:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, Samples):
        return value[:]
    raise TypeError(f"{type(value).__name__} cannot be sent")


def _sendable(array: npt.NDArray[Any]) -> tuple[str, npt.NDArray[Any]]:
    """Return the name of an array's dtype, and the array in little-endian order."""
    name = _NAMES.get(array.dtype)
    if name is None:
        name = array.dtype.name
        if name not in _DTYPES:
            raise TypeError(f"an array of {array.dtype} cannot be sent")
        array = array.astype(_DTYPES[name])
    return name, np.ascontiguousarray(array).reshape(array.shape)


def _array(
    packed: PackedArray | CompressedArray, data: Frame, wanted: type | None
) -> npt.NDArray[Any]:
    """Return data as an array that cannot be written to. Raises ValueError."""
    dtype = _dtype(packed, wanted)
    # no length is below zero where the data fill a product above it
    if len(data) != math.prod(packed.shape) * dtype.itemsize:
        raise ValueError(f"an array {packed.shape} of {packed.dtype} does not fill its data")
    array = np.frombuffer(data, dtype).reshape(packed.shape)
    if not isinstance(data, bytes):
        array.flags.writeable = False
    return array


def _dtype(packed: PackedArray | CompressedArray, wanted: type | None) -> np.dtype[Any]:
    """Return an array's dtype. Raises ValueError if it is not `wanted`."""
    dtype = _DTYPES.get(packed.dtype)
    if dtype is None:
        raise ValueError(f"no array of {packed.dtype!r:.80} can be sent")
    if wanted is not None and dtype.type is not wanted:
        raise ValueError(f"an array of {packed.dtype} stands for one of {wanted.__name__}")
    return dtype


def _item_type(cls: Any) -> type | None:
    """Return the item type that an annotation requires; None if any is allowed."""
    if cls is Samples:
        return np.float32
    if getattr(cls, "__origin__", None) is not np.ndarray:
        raise NotImplementedError(f"{cls} cannot be sent")
    (item,) = getattr(cls.__args__[1], "__args__", None) or (Any,)
    return None if item is Any else item
