"""Read a checkpoint's weights, every tensor checked by name and shape. Knows no backend."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open

from izwi.checkpoints.folder import read_json
from izwi.checkpoints.formats.choice import layout_of
from izwi.checkpoints.formats.layout import Layout, Parts
from izwi.checkpoints.gguf_file import GgufTensor
from izwi.checkpoints.gguf_folder import gguf_path, gguf_tensors
from izwi.checkpoints.linear_spec import LinearForm, LinearSpec
from izwi.checkpoints.stored_tensor import StoredTensor, stored_tensors
from izwi.errors import CheckpointError
from izwi.ops.ranks import Part

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_WEIGHT = ".weight"
# A file beside the index or, of a checkpoint that shares weights, in a folder beside its own.
_SHARD = re.compile(r"(\.\./(?!\.\.?/)[^/\\\0]+/)?[^/\\\0]+\.safetensors")
NO_PARTS: Mapping[str, Part] = MappingProxyType({})


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
        if not _SHARD.fullmatch(name):
            raise CheckpointError(
                f"{index}: weight_map names {name!r:.80}; it may name safetensors files of this "
                "folder, or of a folder beside it"
            )
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder / name} is named by {index.name} but is missing")
    return {tensor: folder / str(name) for tensor, name in shard_of.items()}


def read_tensors(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    framework: str,
    parts: Mapping[str, Part] = NO_PARTS,
) -> Iterator[tuple[str, Any]]:
    """Read the tensors that `shapes` names, one by one.

    Args:
        folder: Folder of a checkpoint, or one safetensors file.
        shapes: Shape of every tensor of the checkpoint.
        framework: Array library of the result, as named by safetensors: "pt" or "mlx".
        parts: Parts that are read instead of whole tensors; packed weights are read whole.

    Yields:
        Name, and the tensor in the dtype of the file or, of a packed weight, its `LinearSpec`.

    Raises:
        CheckpointError: A tensor is missing, is not expected, or has another shape or a type that
            cannot be read; its name and both shapes are in the message.
    """
    files = _checked(folder, shapes)
    for name in sorted(files.packed_names):
        yield name, files.read(name, _matrix(folder, name, shapes[name]))
    yield from files.plain_tensors(framework, parts)


def check_tensors(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check names, shapes and types of a checkpoint's tensors without reading their numbers.

    Arguments and errors as of `read_tensors`.
    """
    files = _checked(folder, shapes)
    for name in sorted(files.packed_names):
        files.form(name, _matrix(folder, name, shapes[name]))


def _checked(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> _Files:
    """List the tensors of a checkpoint that has all that are expected. Raises CheckpointError."""
    files = _files_of(folder)
    names = files.plain_shapes.keys() | files.packed_names
    if unexpected := sorted(names - set(shapes)):
        raise CheckpointError(f"{folder}: unexpected tensor {unexpected[0]!r}")
    for name, found in files.plain_shapes.items():
        expected = tuple(shapes[name])
        if found != expected:
            raise CheckpointError(f"{folder}: tensor {name!r} is {found}, expected {expected}")
    if missing := set(shapes) - names:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{folder}: missing tensor {min(missing)!r}{more}")
    return files


def packed_forms(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, LinearForm]:
    """Return the forms of a checkpoint's packed weights, from the heads of its files.

    Arguments and errors as of `read_tensors`.
    """
    if layout_of(folder) is None and gguf_path(folder) is None:
        return {}  # then the files may be missing: sizes are known without them
    files = _files_of(folder)
    return {
        name: files.form(name, _matrix(folder, name, shapes[name]))
        for name in sorted(files.packed_names & shapes.keys())
    }


def tensor_names(folder: Path) -> set[str]:
    """Return the names of a folder's tensors, or of one file's; empty if they cannot be read.

    A packed weight has the name that it would have unpacked. Loading reports the error.
    """
    try:
        files = _files_of(folder)
    except CheckpointError:
        return set()
    return {*files.plain_shapes, *files.packed_names}


class _Files(Protocol):
    """The tensors of a checkpoint's files. All methods raise CheckpointError."""

    @property
    def plain_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the tensors that are numbers as they are, by name."""
        ...

    @property
    def packed_names(self) -> Set[str]:
        """Names that the packed weights would have unpacked."""
        ...

    def form(self, name: str, shape: tuple[int, int]) -> LinearForm:
        """Return the form of a packed weight of an expected shape."""
        ...

    def read(self, name: str, shape: tuple[int, int]) -> LinearSpec:
        """Read a packed weight of an expected shape."""
        ...

    def plain_tensors(self, framework: str, parts: Mapping[str, Part]) -> Iterator[tuple[str, Any]]:
        """Read the others: arrays of the library or, from files that it does not read, numpy's."""
        ...


def _files_of(folder: Path) -> _Files:
    tensors = gguf_tensors(folder)
    return _Safetensors.open_folder(folder) if tensors is None else _Gguf(folder, tensors)


@dataclass(frozen=True, slots=True)
class _Gguf:
    """The tensors of a GGUF file, by the names of other checkpoints."""

    folder: Path
    tensors: Mapping[str, GgufTensor]

    @property
    def plain_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: one.shape for name, one in self.tensors.items() if one.is_float}

    @property
    def packed_names(self) -> set[str]:
        return {name for name, one in self.tensors.items() if not one.is_float}

    def form(self, name: str, shape: tuple[int, int]) -> LinearForm:
        return self._expected(name, shape).form()

    def read(self, name: str, shape: tuple[int, int]) -> LinearSpec:
        return self._expected(name, shape).read()

    def plain_tensors(self, framework: str, parts: Mapping[str, Part]) -> Iterator[tuple[str, Any]]:
        del framework
        for name in self.plain_shapes:
            numbers = self.tensors[name].numbers()
            yield name, numbers[parts[name].index] if name in parts else numbers

    def _expected(self, name: str, shape: tuple[int, int]) -> GgufTensor:
        found = self.tensors[name]
        if found.shape != shape:
            raise CheckpointError(
                f"{self.folder}: tensor {name!r} is {found.shape}, expected {shape}"
            )
        return found


@dataclass(frozen=True, slots=True)
class _Safetensors:
    """The tensors of safetensors files.

    Attributes:
        layout: How weights are packed; None if none are.
        plain: Tensors that are numbers as they are, by name.
        packed: The tensors of each packed weight, by the name that it would have unpacked.
    """

    layout: Layout | None
    plain: Mapping[str, StoredTensor]
    packed: Mapping[str, Parts]

    @property
    def plain_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: stored.shape for name, stored in self.plain.items()}

    @property
    def packed_names(self) -> Set[str]:
        return self.packed.keys()

    def form(self, name: str, shape: tuple[int, int]) -> LinearForm:
        assert self.layout is not None
        return self.layout.form(shape, self.packed[name])

    def read(self, name: str, shape: tuple[int, int]) -> LinearSpec:
        assert self.layout is not None
        return self.layout.read(shape, self.packed[name])

    def plain_tensors(self, framework: str, parts: Mapping[str, Part]) -> Iterator[tuple[str, Any]]:
        with ExitStack() as stack:
            handles: dict[Path, Any] = {}
            for name, stored in self.plain.items():
                if stored.path not in handles:
                    handles[stored.path] = _opened(stored.path, stack, framework)
                handle = handles[stored.path]
                part = parts.get(name)
                # a slice reads its own bytes only
                yield (
                    name,
                    (
                        handle.get_tensor(name)
                        if part is None
                        else handle.get_slice(name)[part.index]
                    ),
                )

    @staticmethod
    def open_folder(folder: Path) -> _Safetensors:
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
            return _Safetensors(None, stored, {})
        packed = dict(_packed(layout, stored))
        used = {tensor.name for parts in packed.values() for tensor in parts.values()}
        plain = {
            name: tensor
            for name, tensor in stored.items()
            if name not in used and not name.endswith(layout.unused)
        }
        return _Safetensors(layout, plain, packed)


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
