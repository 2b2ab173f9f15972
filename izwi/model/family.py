"""A model family: how one kind of checkpoint is recognised and loaded, as frontend and as model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from msgspec import Struct

from izwi.config import EngineConfig
from izwi.model.frontend import Frontend
from izwi.model.protocol import Model, ModelBackend
from izwi.model.sizes import ModelSizes
from izwi.ops.ranks import ALONE, RankNumber


class ModelModule(Protocol):
    """The module of a family that computes; both functions raise CheckpointError."""

    def load_model(self, folder: Path, backend: ModelBackend) -> Model:
        """Read configuration and weights."""
        ...

    def read_sizes(self, folder: Path, ranks: RankNumber = ALONE) -> ModelSizes:
        """Return what a rank's part of the model will take of a device, from its configuration.

        Raises:
            InvalidRequest: The ranks cannot share the model; `load_model` raises it, too.
        """
        ...


# Returns a value of the metadata by key and type; raises CheckpointError without one.
GgufValue = Callable[[str, type | tuple[type, ...]], Any]


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """How a family's checkpoints are stored in GGUF.

    Attributes:
        architecture: Its `general.architecture`.
        published_name: Name of a tensor in other checkpoints; None for an unknown one.
        config: Makes config.json of the metadata and of the tensors' shapes by published names.
            Raises CheckpointError.
    """

    architecture: str
    published_name: Callable[[str], str | None]
    config: Callable[[GgufValue, Mapping[str, tuple[int, ...]]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Family:
    """How to recognise and load one kind of checkpoint, from a folder in the published layout.

    Attributes:
        model_type: The `model_type` of its config.json, or else the first of its `architectures`.
        load_frontend: Reads configuration and tokenizer. Raises CheckpointError, which names the
            file or key that is missing or wrong.
        model: Name of the `ModelModule`, which is not imported in processes without an engine.
        fits: Distinguishes its config.json from others with that `model_type`; None accepts any
            other.
        prompts: Tagged structs of the prompts of its requests, so that they can be sent to another
            process.
        gguf: How its checkpoints are stored in GGUF; None if they are not.
        has_own_engine: `model` names a module with `open_engine(folders, device, dtype, config)`,
            which returns what `izwi.engine.stepped.Stepped` describes: izwi's loop does not run it.
    """

    model_type: str
    load_frontend: Callable[[Path], Frontend]
    model: str
    fits: Callable[[Mapping[str, Any]], bool] | None = None
    prompts: tuple[type[Struct], ...] = ()
    gguf: GgufFamily | None = None
    has_own_engine: bool = False

    def load_model(self, folder: Path, backend: ModelBackend) -> Model:
        """Read configuration and weights.

        Raises:
            CheckpointError: A file, key or tensor is missing or wrong; the message names it.
        """
        return self._module().load_model(folder, backend)

    def read_sizes(self, folder: Path, ranks: RankNumber = ALONE) -> ModelSizes:
        """Read what a rank's part of a model will take of a device; see `ModelModule`."""
        return self._module().read_sizes(folder, ranks)

    def open_engine(
        self, folders: Mapping[str, Path], device: str, dtype: str, config: EngineConfig
    ) -> Any:
        """Open an engine of its own over checkpoints by name; see `has_own_engine`.

        Raises:
            CheckpointError: A checkpoint cannot be loaded.
            InvalidRequest: The device or a package is not here.
        """
        return import_module(self.model).open_engine(folders, device, dtype, config)

    def _module(self) -> ModelModule:
        return cast(ModelModule, import_module(self.model))
