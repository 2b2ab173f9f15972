"""The served models, looked up once a request, each with the engine that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

from msgspec.structs import replace

from izwi.checkpoints.hub import Report
from izwi.checkpoints.registry import Loaded
from izwi.engine_client.protocol import Answer, Answers, EngineClient, LimitsWaits
from izwi.errors import InvalidRequest, ModelNotFound
from izwi.fairness.callers import current_caller, is_idle_work
from izwi.model.capability import Capability
from izwi.model.frontend import (
    ChatFrontend,
    ConversationFrontend,
    Frontend,
    SpeechFrontend,
    TranscriptionFrontend,
    check_capability,
)
from izwi.request.adapter import AdapterRef
from izwi.request.deadlines import Deadlines
from izwi.request.request import Request
from izwi_api.services.models.alias_option import OPTION
from izwi_api.services.models.caller_deadlines import current_deadlines
from izwi_api.settings import Settings
from izwi_api.telemetry.calls import current_call
from izwi_api.usage.metering import note_model

_MAX_SHOWN = 64
# Of live sessions: above all other requests. The policy defines its effect; see ADR 27 for
# `deadline`.
LIVE_PRIORITY = 1
# Of a batch's lines: they use only what others leave idle.
IDLE_PRIORITY = -1

FrontendT = TypeVar("FrontendT", bound=Frontend)
FrontendT_co = TypeVar("FrontendT_co", bound=Frontend, covariant=True)


class Registry(Protocol):
    """The models of an engine by name, as in `izwi.checkpoints.registry.Registry`."""

    def names(self) -> list[str]:
        """Return all names, in the order of loading."""
        ...

    def model(self, name: str) -> Frontend:
        """Return a model. Raises ModelNotFound."""
        ...

    def speech(self, name: str) -> SpeechFrontend:
        """Return a speech model. Raises ModelNotFound and InvalidRequest."""
        ...

    def transcription(self, name: str) -> TranscriptionFrontend:
        """Return a transcription model. Raises ModelNotFound and InvalidRequest."""
        ...

    def chat(self, name: str) -> ChatFrontend:
        """Return a chat model. Raises ModelNotFound and InvalidRequest."""
        ...

    def conversation(self, name: str) -> ConversationFrontend:
        """Return a speech-to-speech model. Raises ModelNotFound and InvalidRequest."""
        ...

    def fingerprint(self, name: str) -> str:
        """Return a short text that identifies the checkpoint behind a name."""
        ...

    def default(self, capability: Capability) -> str:
        """Return the first model with a capability. Raises ModelNotFound."""
        ...

    def locate(self, name: str, *, offline: bool = False, report: Report | None = None) -> Path:
        """Return the folder of a checkpoint that may be loaded. Raises ModelNotFound."""
        ...

    def read(self, folder: Path, name: str) -> Loaded:
        """Read a checkpoint or an adapter. Raises CheckpointError and ModelNotFound."""
        ...

    def adapter(self, name: str) -> AdapterRef | None:
        """Return the adapter that a name stands for; None for a model as it is."""
        ...

    def adapters_of(self, name: str) -> list[str]:
        """Return the names of the served adapters of a model."""
        ...

    def serve(self, name: str, loaded: Loaded) -> None:
        """Serve a model under a name."""
        ...

    def unload(self, name: str) -> None:
        """Stop serving a model. Raises ModelNotFound."""
        ...


class LocalModels(NamedTuple):
    """Models in this process, the engine over them, which does not step yet, and the settings."""

    engine: EngineClient
    registry: Registry
    settings: Settings


@dataclass(frozen=True, slots=True)
class ServedModel(Generic[FrontendT_co]):
    """A served model: what a request needs of it, from preparing to the answer.

    Attributes:
        name: The name under which it is served, never an alias.
        frontend: Prepares requests and reads their output.
        fingerprint: Changes with the checkpoint.
        engine: Runs its requests.
        is_live: Its requests are those of a live session. They have priority, and if the engine
            process has died, they wait for the next one: the user cannot be asked to repeat what
            they said.
        adapter: With what the engine runs its requests; None: as it is.
        max_entries: Most entries of its answers, while it is loaded; None: as they ask.
        deadlines: How long its requests may take, while it is loaded; None: as callers wish.
    """

    name: str
    frontend: FrontendT_co
    fingerprint: str
    engine: EngineClient
    is_live: bool = False
    adapter: AdapterRef | None = None
    max_entries: int | None = None
    deadlines: Deadlines | None = None

    def can(self, capability: Capability) -> bool:
        """Return whether the model has a capability."""
        return capability in self.frontend.capabilities

    def as_chat(self) -> ServedModel[ChatFrontend]:
        """Return it as a model that answers in text. Raises InvalidRequest if it does not."""
        check_capability(self.name, self.frontend, Capability.CHAT)
        return cast(ServedModel[ChatFrontend], self)

    def as_conversation(self) -> ServedModel[ConversationFrontend]:
        """Return it as a speech-to-speech model. Raises InvalidRequest if it is none."""
        check_capability(self.name, self.frontend, Capability.CONVERSE)
        return cast(ServedModel[ConversationFrontend], self)

    def check_admission(self) -> None:
        """Refuse a new stream before its input is decoded and prepared, if `submit` would.

        Call it as soon as the model is known, so that a refusal under load costs little. Live
        sessions and background work are never refused so.

        Raises:
            Overloaded: The predicted wait is too long.
        """
        if isinstance(self.engine, LimitsWaits) and not (self.is_live or is_idle_work.get()):
            self.engine.check_admission(self.name if self.adapter is None else self.adapter.model)

    def submit(self, request: Request) -> Answer:
        """Submit a request. Raises EngineStopped; a refusal by the queue ends the answer."""
        return self.submit_all([request])[0]

    def submit_all(self, requests: Sequence[Request]) -> Answers[Answer]:
        """Submit requests that start together, all or none; raises as `submit`."""
        call = current_call.get()
        answers = self.engine.submit_all([self._addressed(request) for request in requests])
        note_model(self.name)
        return answers if call is None else call.watch(requests, answers, self.frontend)

    def note_heard(self, seconds: float) -> None:
        """Note audio that it hears while it arrives, for metrics."""
        if (call := current_call.get()) is not None:
            call.note_heard(self.name, seconds)

    def _addressed(self, request: Request) -> Request:
        """Return a request that says who asks, in which call, and how urgently."""
        if self.adapter is not None:
            request = replace(request, model=self.adapter.model, adapter=self.adapter)
        caller, call = current_caller.get(), current_call.get()
        if self.max_entries is not None and self.max_entries < request.max_entries:
            fewest = max(self.max_entries, request.min_entries)
            request = replace(request, max_entries=min(fewest, request.max_entries))
        correlation = None if call is None else call.correlation
        wished = current_deadlines.get() if self.deadlines is None else self.deadlines
        if wished is not None:
            request = replace(request, deadlines=wished.tighter(current_deadlines.get()))
        if self.is_live:
            request = replace(request, priority=LIVE_PRIORITY, awaits_engine=True)
        elif is_idle_work.get():
            request = replace(request, priority=IDLE_PRIORITY, awaits_engine=True, streams=False)
        if caller == request.caller and correlation is None:
            return request
        return replace(request, caller=caller, correlation=correlation)


class ServedModels:
    """The served models by name or alias, over the engine that runs them.

    Args:
        engine: The engine.
        registry: Its models.
        aliases: Alias -> name of a model, for clients whose model name cannot be changed.
        checks: Require that every aliased model is served now; else it may be loaded later.

    Raises:
        InvalidRequest: An alias is the name of a model, or, with `checks`, its model is not served.
    """

    def __init__(
        self,
        engine: EngineClient,
        registry: Registry,
        aliases: Mapping[str, str] | None = None,
        *,
        checks: bool = True,
    ):
        self._engine, self._registry, self._aliases = engine, registry, aliases or {}
        self._is_live = False
        served = registry.names() if self._aliases else []
        for alias, name in self._aliases.items():
            if alias in served:
                raise InvalidRequest(f"{OPTION} {alias!r} is the name of a model", param=OPTION)
            if checks and name not in served:
                raise InvalidRequest(
                    f"{OPTION} {alias}={name}: no model {name!r} is served, only "
                    f"{', '.join(served)}",
                    param=OPTION,
                )

    def live(self) -> ServedModels:
        """Return the same models for a live session; see `ServedModel.is_live`."""
        models = ServedModels(self._engine, self._registry, self._aliases, checks=False)
        models._is_live = True
        return models

    def names(self) -> list[str]:
        """Return the names of all models, without their aliases, in the order of loading."""
        return self._registry.names()

    def aliases(self) -> dict[str, str]:
        """Return alias -> name for the models that are served now."""
        served = self.names()
        return {alias: name for alias, name in self._aliases.items() if name in served}

    def default(self, capability: Capability) -> str:
        """Return the name of the first model with a capability. Raises ModelNotFound."""
        return self._registry.default(capability)

    def model(self, name: str) -> ServedModel[Frontend]:
        """Return a model, whatever it does. Raises ModelNotFound."""
        real = self._served(name)
        return self._with(real, self._registry.model(real))

    def speech(self, name: str) -> ServedModel[SpeechFrontend]:
        """Return a model that speaks. Raises ModelNotFound and InvalidRequest."""
        real = self._served(name)
        return self._with(real, self._registry.speech(real))

    def transcription(self, name: str) -> ServedModel[TranscriptionFrontend]:
        """Return a model that transcribes. Raises ModelNotFound and InvalidRequest."""
        real = self._served(name)
        return self._with(real, self._registry.transcription(real))

    def chat(self, name: str) -> ServedModel[ChatFrontend]:
        """Return a model that answers in text. Raises ModelNotFound and InvalidRequest."""
        real = self._served(name)
        return self._with(real, self._registry.chat(real))

    def conversation(self, name: str) -> ServedModel[ConversationFrontend]:
        """Return a speech-to-speech model. Raises ModelNotFound and InvalidRequest."""
        real = self._served(name)
        return self._with(real, self._registry.conversation(real))

    def _with(self, name: str, frontend: FrontendT) -> ServedModel[FrontendT]:
        fingerprint = self._registry.fingerprint(name)
        adapter = self._registry.adapter(name)
        return ServedModel(name, frontend, fingerprint, self._engine, self._is_live, adapter)

    def _served(self, name: str) -> str:
        """Return the model's name for a name or an alias. Raises ModelNotFound."""
        real = self._aliases.get(name, name)
        if real not in self.names():
            shown = name[:_MAX_SHOWN]
            raise ModelNotFound(
                f"no model {shown!r} is served here; GET /v1/models lists those that are. "
                f"To give one of them this name: izwi serve {OPTION} {shown}=MODEL",
                param="model",
            )
        return real
