"""Read a checkpoint's weights, every tensor checked by name and shape. Knows no backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from izwi.checkpoints.folder import read_json
from izwi.checkpoints.formats.choice import layout_of
from izwi.checkpoints.formats.layout import Layout, Parts
from izwi.checkpoints.linear_spec import LinearForm
from izwi.checkpoints.stored_tensor import StoredTensor, stored_tensors
from izwi.errors import CheckpointError

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_WEIGHT = ".weight"


def weight_files(folder: Path) -> list[Path]:
    """Files of a single or sharded checkpoint (model.safetensors or its index), or a file itself.

    Raises:
        CheckpointError: There is neither, or a shard that the index names is missing.
    """
    if folder.is_file():
        return [folder]
    single = folder / _SINGLE
    return [single] if single.is_file() else sorted(set(_file_of(folder).values()))


def _file_of(folder: Path) -> dict[str, Path]:
    """File of each tensor of a sharded checkpoint; raises as `weight_files`."""
    index = folder / _INDEX
    if not index.is_file():
        raise CheckpointError(f"{folder} has neither {_SINGLE} nor its index")
    shard_of = read_json(index).get("weight_map")
    if not isinstance(shard_of, dict):
        raise CheckpointError(f"{index} lacks the object 'weight_map'")
    for name in sorted({str(name) for name in shard_of.values()}):
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder / name} is named by {index.name} but is missing")
    return {tensor: folder / str(name) for tensor, name in shard_of.items()}


def read_tensors(
    folder: Path, shapes: Mapping[str, tuple[int, ...]], framework: str
) -> Iterator[tuple[str, Any]]:
    """Read the tensors that `shapes` names, one by one.

    Args:
        folder: Folder of a checkpoint, or one safetensors file.
        shapes: Shape of every tensor of the checkpoint.
        framework: Array library of the result, as named by safetensors: "pt" or "mlx".

    Yields:
        Name, and the tensor in the dtype of the file or, of a packed weight, its `LinearSpec`.

    Raises:
        CheckpointError: A tensor is missing, is not expected, or has another shape or a type that
            cannot be read; its name and both shapes are in the message.
    """
    files = _Files.of(folder)
    missing = set(shapes) - files.plain.keys() - files.packed.keys()
    if unexpected := sorted((files.plain.keys() | files.packed.keys()) - set(shapes)):
        raise CheckpointError(f"{folder}: unexpected tensor {unexpected[0]!r}")
    for name, stored in files.plain.items():
        shape = tuple(shapes[name])
        if stored.shape != shape:
            raise CheckpointError(f"{folder}: tensor {name!r} is {stored.shape}, expected {shape}")
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{folder}: missing tensor {min(missing)!r}{more}")
    for name, parts in files.packed.items():
        assert files.layout is not None
        yield name, files.layout.read(_matrix(folder, name, shapes[name]), parts)
    with ExitStack() as stack:
        handles: dict[Path, Any] = {}
        for name, stored in files.plain.items():
            if stored.path not in handles:
                handles[stored.path] = _opened(stored.path, stack, framework)
            yield name, handles[stored.path].get_tensor(name)


def packed_forms(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, LinearForm]:
    """Return the forms of a checkpoint's packed weights, from the heads of its files.

    Arguments and errors as of `read_tensors`.
    """
    if layout_of(folder) is None:
        return {}
    files = _Files.of(folder)
    assert files.layout is not None
    known = {name: parts for name, parts in files.packed.items() if name in shapes}
    return {
        name: files.layout.form(_matrix(folder, name, shapes[name]), parts)
        for name, parts in known.items()
    }


def tensor_names(folder: Path) -> set[str]:
    """Return the names of a folder's tensors, or of one file's; empty if they cannot be read.

    A packed weight has the name that it would have unpacked. Loading reports the error.
    """
    try:
        files = _Files.of(folder)
    except CheckpointError:
        return set()
    return {*files.plain, *files.packed}


@dataclass(frozen=True, slots=True)
class _Files:
    """The tensors of a checkpoint's files.

    Attributes:
        layout: How weights are packed; None if none are.
        plain: Tensors that are numbers as they are, by name.
        packed: The tensors of each packed weight, by the name that it would have unpacked.
    """

    layout: Layout | None
    plain: Mapping[str, StoredTensor]
    packed: Mapping[str, Parts]

    @staticmethod
    def of(folder: Path) -> _Files:
        """List a checkpoint's tensors. Raises CheckpointError."""
        # a file may be another checkpoint's, and have tensors of which this one has its own
        alone = folder.is_file() or (folder / _SINGLE).is_file()
        file_of = {} if alone else _file_of(folder)
        stored = {
            tensor.name: tensor
            for path in weight_files(folder)
            for tensor in stored_tensors(path)
            if file_of.get(tensor.name, path) == path
        }
        layout = layout_of(folder)
        if layout is None:
            return _Files(None, stored, {})
        packed = dict(_packed(layout, stored))
        used = {tensor.name for parts in packed.values() for tensor in parts.values()}
        plain = {
            name: tensor
            for name, tensor in stored.items()
            if name not in used and not name.endswith(layout.unused)
        }
        return _Files(layout, plain, packed)


def _packed(
    layout: Layout, stored: Mapping[str, StoredTensor]
) -> Iterator[tuple[str, dict[str, StoredTensor]]]:
    """Yield the name of each packed weight, and its tensors."""
    for name, tensor in stored.items():
        suffix = next((one for one in layout.codes if name.endswith(one)), None)
        if suffix is None or tensor.is_float:
            continue
        layer = name.removesuffix(suffix)
        parts = {one: stored[layer + one] for one in layout.suffixes if layer + one in stored}
        yield layer + _WEIGHT, parts


def _matrix(folder: Path, name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Check that a packed weight is expected to be a matrix. Raises CheckpointError."""
    if len(shape) != 2:
        raise CheckpointError(f"{folder}: {name!r} is packed as a matrix, expected {tuple(shape)}")
    return shape[0], shape[1]


def _opened(path: Path, stack: ExitStack, framework: str) -> Any:
    try:
        return stack.enter_context(safe_open(path, framework=framework))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a safetensors file: {error}") from error
