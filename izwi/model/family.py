"""A model family: how one kind of checkpoint is recognised and loaded, as frontend and as model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct

from izwi.model.frontend import Frontend
from izwi.model.protocol import Backend, Model
from izwi.model.sizes import ModelSizes


@dataclass(frozen=True, slots=True)
class Family:
    """How to recognise and load one kind of checkpoint, from a folder in the published layout.

    The three loaders raise CheckpointError, which names the file, key or tensor that is missing or
    wrong.

    Attributes:
        model_type: The `model_type` of its config.json, or else the first of its `architectures`.
        load_frontend: Reads configuration and tokenizer, for API servers.
        load_model: Reads configuration and weights, for engines.
        read_sizes: Reads from the configuration what the model will take of a device.
        fits: Distinguishes its config.json from others with that `model_type`; None accepts any
            other.
        prompts: Tagged structs of the prompts of its requests, so that they can be sent to another
            process.
    """

    model_type: str
    load_frontend: Callable[[Path], Frontend]
    load_model: Callable[[Path, Backend], Model]
    read_sizes: Callable[[Path], ModelSizes]
    fits: Callable[[Mapping[str, Any]], bool] | None = None
    prompts: tuple[type[Struct], ...] = ()
