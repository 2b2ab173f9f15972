"""Aliases of served models, for clients whose model name cannot be changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from izwi.checkpoints.hub import Report
from izwi.checkpoints.registry import Loaded
from izwi.engine_client.protocol import EngineClient, ForwardingEngine, OutputStream
from izwi.errors import InvalidRequest, ModelNotFound
from izwi.fairness.callers import current_caller
from izwi.model.capability import Capability
from izwi.model.frontend import (
    ChatFrontend,
    ConversationFrontend,
    Frontend,
    SpeechFrontend,
    TranscriptionFrontend,
)
from izwi.request.request import Request
from izwi_api.services.context import Registry
from izwi_api.services.models.alias_option import OPTION

_MAX_SHOWN = 64


class AliasedRegistry:
    """A registry that also finds models by their aliases.

    Args:
        registry: The served models.
        aliases: Alias -> name of a model.
        checks: Require that every aliased model is served now; else it may be loaded later.

    Raises:
        InvalidRequest: An alias is the name of a model, or, with `checks`, its model is not served.
    """

    def __init__(self, registry: Registry, aliases: Mapping[str, str], *, checks: bool = True):
        self._registry, self._aliases = registry, aliases
        served = registry.names()
        for alias, name in aliases.items():
            if alias in served:
                raise InvalidRequest(f"{OPTION} {alias!r} is the name of a model", param=OPTION)
            if checks and name not in served:
                raise InvalidRequest(
                    f"{OPTION} {alias}={name}: no model {name!r} is served, only "
                    f"{', '.join(served)}",
                    param=OPTION,
                )

    def names(self) -> list[str]:
        """Return the names of all models, without their aliases, in the order of loading."""
        return self._registry.names()

    def aliases(self) -> dict[str, str]:
        """Return alias -> name for the models that are served now."""
        served = self.names()
        return {alias: name for alias, name in self._aliases.items() if name in served}

    def real_name(self, name: str) -> str:
        """Return the model's name for an alias; any other name is returned as it is."""
        return self._aliases.get(name, name)

    def model(self, name: str) -> Frontend:
        """Return a model. Raises ModelNotFound."""
        return self._registry.model(self._served(name))

    def speech(self, name: str) -> SpeechFrontend:
        """Return a speech model. Raises ModelNotFound and InvalidRequest."""
        return self._registry.speech(self._served(name))

    def transcription(self, name: str) -> TranscriptionFrontend:
        """Return a transcription model. Raises ModelNotFound and InvalidRequest."""
        return self._registry.transcription(self._served(name))

    def chat(self, name: str) -> ChatFrontend:
        """Return a chat model. Raises ModelNotFound and InvalidRequest."""
        return self._registry.chat(self._served(name))

    def conversation(self, name: str) -> ConversationFrontend:
        """Return a speech-to-speech model. Raises ModelNotFound and InvalidRequest."""
        return self._registry.conversation(self._served(name))

    def fingerprint(self, name: str) -> str:
        """Return a short text that identifies the checkpoint. Raises ModelNotFound."""
        return self._registry.fingerprint(self._served(name))

    def default(self, capability: Capability) -> str:
        """Return the first model with a capability. Raises ModelNotFound."""
        return self._registry.default(capability)

    def locate(self, name: str, *, offline: bool = False, report: Report | None = None) -> Path:
        """Return the folder of a checkpoint that may be loaded. Raises ModelNotFound."""
        return self._registry.locate(name, offline=offline, report=report)

    def read(self, folder: Path) -> Loaded:
        """Read a checkpoint. Raises CheckpointError."""
        return self._registry.read(folder)

    def serve(self, name: str, loaded: Loaded) -> None:
        """Serve a model under a name."""
        self._registry.serve(name, loaded)

    def unload(self, name: str) -> None:
        """Stop serving a model. Raises ModelNotFound."""
        self._registry.unload(name)

    def _served(self, name: str) -> str:
        real = self.real_name(name)
        if real not in self.names():
            shown = name[:_MAX_SHOWN]
            raise ModelNotFound(
                f"no model {shown!r} is served here; GET /v1/models lists those that are. "
                f"To give one of them this name: izwi serve {OPTION} {shown}=MODEL",
                param="model",
            )
        return real


class AliasedEngine(ForwardingEngine):
    """An engine client that resolves aliases in requests, and notes who asks.

    Args:
        engine: The engine that runs the requests.
        registry: Resolves the aliases.
    """

    def __init__(self, engine: EngineClient, registry: AliasedRegistry):
        super().__init__(engine)
        self._registry = registry

    def submit(self, request: Request) -> OutputStream:
        """Submit a request; raises as the engine does."""
        return self._engine.submit(self._named(request))

    def submit_all(self, requests: Sequence[Request]) -> Sequence[OutputStream]:
        """Submit all requests or none; raises as the engine does."""
        return self._engine.submit_all([self._named(request) for request in requests])

    def _named(self, request: Request) -> Request:
        name, caller = self._registry.real_name(request.model), current_caller.get()
        if name == request.model and caller == request.caller:
            return request
        return replace(request, model=name, caller=caller)
