"""Read a checkpoint's safetensors, every tensor checked by name and shape. Knows no backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from izwi.checkpoints.folder import read_json
from izwi.errors import CheckpointError

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


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
        Name and tensor, in the dtype of the file.

    Raises:
        CheckpointError: A tensor is missing, is not expected, or has another shape; its name
            and both shapes are in the message.
    """
    missing = set(shapes)
    with ExitStack() as stack:
        for name, handle in _tensors(folder, stack, framework):
            if name not in shapes:
                raise CheckpointError(f"{folder}: unexpected tensor {name!r}")
            shape = tuple(handle.get_slice(name).get_shape())
            if shape != tuple(shapes[name]):
                expected = tuple(shapes[name])
                raise CheckpointError(f"{folder}: tensor {name!r} is {shape}, expected {expected}")
            missing.discard(name)
            yield name, handle.get_tensor(name)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{folder}: missing tensor {min(missing)!r}{more}")


def _tensors(folder: Path, stack: ExitStack, framework: str) -> Iterator[tuple[str, Any]]:
    # a file may be another checkpoint's, and have tensors of which this one has its own
    alone = folder.is_file() or (folder / _SINGLE).is_file()
    file_of = {} if alone else _file_of(folder)
    for path in weight_files(folder):
        try:
            handle = stack.enter_context(safe_open(path, framework=framework))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is not a safetensors file: {error}") from error
        for name in handle.keys():  # noqa: SIM118 (a file handle, not a mapping)
            if file_of.get(name, path) == path:
                yield name, handle
