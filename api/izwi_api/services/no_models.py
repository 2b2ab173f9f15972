"""Services without models or torch, for commands that only use stored voices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from izwi.checkpoints.registry import Registry
from izwi.engine_client.protocol import OutputStream
from izwi.errors import InvalidRequest
from izwi.model.protocol import Model
from izwi.request.request import Request
from izwi_api.services.context import Services
from izwi_api.settings import Settings
from izwi_api.voices.store import VoiceStore


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

    def submit(self, request: Request) -> OutputStream:  # noqa: ARG002
        """Raise InvalidRequest."""
        raise _no_model()

    def submit_all(self, requests: Sequence[Request]) -> Sequence[OutputStream]:  # noqa: ARG002
        """Raise InvalidRequest."""
        raise _no_model()

    def write(self, request_id: str, text_ids: Sequence[int], closed: bool) -> None:
        """Do nothing: no request has open input."""

    def pause(self, request_id: str) -> None:
        """Do nothing: no request runs."""

    def resume(self, request_id: str) -> None:
        """Do nothing: no request is paused."""

    def abort(self, request_id: str) -> None:
        """Do nothing: no request runs."""

    async def add(self, name: str, model: Model) -> None:  # noqa: ARG002
        """Raise InvalidRequest."""
        raise _no_model()

    async def remove(self, name: str) -> None:  # noqa: ARG002
        """Raise InvalidRequest."""
        raise _no_model()


def services_without_models(settings: Settings) -> Services:
    """Return services that have stored voices but no models."""
    return Services(NoEngine(), Registry(), settings, VoiceStore(settings.home / "voices"))


def _no_model() -> InvalidRequest:
    return InvalidRequest("no model is loaded", param="model")
