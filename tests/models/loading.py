"""Load a checkpoint whole: what its API server and its engine would each load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from izwi.model.family import Family
from izwi.model.protocol import Model, ModelBackend


class Checkpoint(NamedTuple):
    frontend: Any
    model: Any


def load_checkpoint(family: Family, folder: Path, backend: ModelBackend) -> Checkpoint:
    return Checkpoint(family.load_frontend(folder), family.load_model(folder, backend))


def models_of(checkpoints: Mapping[str, Checkpoint]) -> dict[str, Model]:
    """The models by name, for an engine."""
    return {name: checkpoint.model for name, checkpoint in checkpoints.items()}
