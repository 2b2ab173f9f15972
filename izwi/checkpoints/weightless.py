"""Weightless models: configuration and tokenizer without tensors, for API servers without torch.

A process that prepares requests and reads results loads its models with this backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from izwi.model.sizes import ModelSizes
from izwi.ops.protocol import Ops, Weights


class NoArray:
    """A placeholder for arrays of any shape; every operation on it returns it again."""

    shape = (0, 0, 0, 0)

    def __getitem__(self, _: object) -> NoArray:
        return self

    def _of(self, *_: object, **__: object) -> NoArray:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _of
    __truediv__ = __rtruediv__ = __matmul__ = __pow__ = __neg__ = _of
    __gt__ = __ge__ = __lt__ = __le__ = _of

    def __getattr__(self, name: str) -> Callable[..., NoArray]:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._of


_NO_ARRAY = NoArray()


class NoOps:
    """Implements `izwi.ops.protocol.Ops`: every operation exists and returns no array."""

    def fold_norm(self, norm: NoArray, weight: NoArray) -> tuple[NoArray, NoArray]:
        """The one whose result a loader takes apart."""
        return norm, weight

    def __getattr__(self, name: str) -> Callable[..., NoArray]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _NO_ARRAY._of


class WeightlessBackend:
    """A backend that reads no weights."""

    ops: Ops = cast(Ops, NoOps())

    def load_weights(
        self,
        folder: Path,  # noqa: ARG002
        shapes: Mapping[str, tuple[int, ...]],
    ) -> Weights:
        """Return placeholders; missing tensors are reported by the process that runs the model."""
        none: dict[str, Any] = dict.fromkeys(shapes, _NO_ARRAY)
        return none


class _ShapesBackend(WeightlessBackend):
    """Reads no weights, but keeps their shapes."""

    def __init__(self) -> None:
        self.shapes: list[Mapping[str, tuple[int, ...]]] = []

    def load_weights(self, folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> Weights:
        self.shapes.append(shapes)
        return super().load_weights(folder, shapes)


def weightless(load: Callable[[Path, Any], Any]) -> tuple[Any, Any, Any]:
    """Return the three loaders of a family whose model is its own frontend."""

    def read_sizes(folder: Path) -> ModelSizes:
        backend = _ShapesBackend()
        model = load(folder, backend)
        return replace(ModelSizes.of(model), weights=tuple(backend.shapes))

    return lambda folder: load(folder, WeightlessBackend()), load, read_sizes
