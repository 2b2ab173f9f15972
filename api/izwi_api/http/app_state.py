"""What routes share: set once by the app, read from the request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fastapi import FastAPI, Request

from izwi_api.http.client_secrets import ClientSecrets
from izwi_api.http.drain import Drain
from izwi_api.http.metrics import HttpMetrics
from izwi_api.services.context import Services
from izwi_api.services.model_changes import ModelChanges
from izwi_api.sessions.open_sessions import OpenSessions


@dataclass(frozen=True, slots=True)
class AppState:
    """Everything that lives as long as the app.

    Attributes:
        aliases: Gives alias -> name of the models that are served now.
        sessions: The live ones.
    """

    services: Services
    metrics: HttpMetrics
    started_at: int
    drain: Drain
    changes: ModelChanges
    aliases: Callable[[], Mapping[str, str]]
    client_secrets: ClientSecrets
    sessions: OpenSessions


def set_state(app: FastAPI, state: AppState) -> None:
    """Give the app its state."""
    app.state.izwi = state


def state_of(request: Request) -> AppState:
    """Return the state of the app that serves this request."""
    state: AppState = request.app.state.izwi
    return state


def services_of(request: Request) -> Services:
    """Return what a route needs to reach the engine."""
    return state_of(request).services
