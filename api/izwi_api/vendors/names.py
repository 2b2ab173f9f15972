"""Vendors' names of models: an alias of the operator, or the first model of that kind."""

from __future__ import annotations

import re

from izwi.model.capability import Capability
from izwi_api.services.models.served import ServedModels


def model_name(
    registry: ServedModels, name: str | None, capability: Capability, own: re.Pattern[str]
) -> str:
    """Return the name of the model that a vendor's name stands for.

    Args:
        registry: The served models.
        name: As the client sent it; None for the default.
        capability: What the model must be able to do.
        own: Matches the vendor's own names. One that is neither a model nor an alias here stands
            for the first model with the capability.

    Raises:
        ModelNotFound: No model has the capability.
    """
    if name in registry.names() or name in registry.aliases():
        return name or ""
    if not name or own.fullmatch(name):
        return registry.default(capability)
    return name  # unknown: the registry says so
