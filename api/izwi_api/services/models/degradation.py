"""What a chat is answered with while its model has more requests than it can start."""

from __future__ import annotations

from dataclasses import replace

from izwi.engine_client.protocol import EngineClient, replicas_of
from izwi.fairness.callers import is_idle_work
from izwi.inputs.chat import ChatInput, has_images
from izwi.model.frontend import ChatFrontend
from izwi.request.deadlines import Deadlines
from izwi_api.services.models.served import ServedModel, ServedModels
from izwi_api.settings import Degradation
from izwi_api.telemetry.calls import current_call

# However long the queue, an answer may have so many tokens.
_FEWEST_TOKENS = 16
# The same in seconds.
_LEAST_DECODE_S = 0.5


def check_degradation(degradation: Degradation | None, models: ServedModels) -> None:
    """Refuse to degrade to models that are not there, or do not chat.

    Raises:
        ModelNotFound: A model is not served.
        InvalidRequest: A model does not answer in text.
    """
    for pair in (degradation.smaller if degradation is not None else {}).items():
        for name in pair:
            models.chat(name)


def degraded(
    models: ServedModels,
    model: ServedModel[ChatFrontend],
    ask: ChatInput,
    degradation: Degradation | None,
) -> ServedModel[ChatFrontend]:
    """Return the model that answers: of a loaded one its smaller one, and with fewer tokens.

    What is changed is noted at the call, whose answer names it. Live sessions and batches are
    answered as always, and images by the model that was asked for.
    """
    if degradation is None or model.is_live or is_idle_work.get():
        return model
    waiting = _num_waiting(model.engine, model.name)
    if waiting < degradation.waiting:
        return model
    changed: list[str] = []
    smaller = degradation.smaller.get(model.name)
    if smaller is not None and not has_images(ask):
        model, changed = models.chat(smaller), [f"model={smaller}"]
    share = degradation.waiting / waiting  # twice as many that wait leave half of it
    if degradation.max_decode_s:
        seconds = max(_LEAST_DECODE_S, round(degradation.max_decode_s * share, 1))
        model = replace(model, deadlines=Deadlines(decode_s=seconds))
        changed.append(f"max_decode_s={seconds:g}")
    if degradation.max_tokens:
        limit = max(_FEWEST_TOKENS, int(degradation.max_tokens * share))
        model = replace(model, max_entries=limit)
        changed.append(f"max_tokens={limit}")
    if (call := current_call.get()) is not None:
        call.degraded = "; ".join(changed)
    return model


def _num_waiting(engine: EngineClient, name: str) -> float:
    """Return how many requests wait for a model on all engines, as of their latest figures."""
    loads = [one.load for one in replicas_of(engine)] or [engine.load]
    return sum(load[name].get("waiting", 0.0) for load in loads if name in load)
