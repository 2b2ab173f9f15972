"""An app's engine and registry without models or torch, for commands that only use voices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from izwi.checkpoints.registry import Registry
from izwi.engine_client.protocol import Answer, Answers
from izwi.errors import InvalidRequest
from izwi.model.protocol import Model
from izwi.request.request import Request
from izwi_api.services.models.served import LocalModels
from izwi_api.settings import Settings


class NoEngine:
    """Implements `izwi.engine_client.protocol.EngineClient` without models."""

    alive = True

    @property
    def load(self) -> Mapping[str, Mapping[str, float]]:
        """Return no counts."""
        return {}

    def start(self) -> None:
        """Do nothing."""

    async def stop(self) -> None:
        """Do nothing."""

    def submit(self, request: Request) -> Answer:  # noqa: ARG002
        """Raise InvalidRequest."""
        raise _no_model()

    def submit_all(self, requests: Sequence[Request]) -> Answers[Answer]:  # noqa: ARG002
        """Raise InvalidRequest."""
        raise _no_model()

    async def add(self, name: str, model: Model | None, folder: Path) -> None:  # noqa: ARG002
        """Raise InvalidRequest."""
        raise _no_model()

    async def remove(self, name: str) -> None:  # noqa: ARG002
        """Raise InvalidRequest."""
        raise _no_model()


def without_models(settings: Settings) -> LocalModels:
    """Return an engine and a registry without models."""
    return LocalModels(NoEngine(), Registry(), settings)


def _no_model() -> InvalidRequest:
    return InvalidRequest("no model is loaded", param="model")
