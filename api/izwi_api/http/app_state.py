"""What routes share: set once by the app, read from the request."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import FastAPI, Request

from izwi_api.http.client_secrets import ClientSecrets
from izwi_api.http.drain import Drain
from izwi_api.http.metrics import HttpMetrics
from izwi_api.services.context import Services
from izwi_api.services.models.changes import ModelChanges
from izwi_api.sessions.open_sessions import OpenSessions


@dataclass(frozen=True, slots=True)
class AppState:
    """Objects that live as long as the app.

    Attributes:
        sessions: The live sessions.
    """

    services: Services
    metrics: HttpMetrics
    started_at: int
    drain: Drain
    changes: ModelChanges
    client_secrets: ClientSecrets
    sessions: OpenSessions


def set_state(app: FastAPI, state: AppState) -> None:
    """Attach the state to the app."""
    app.state.izwi = state


def state_of(request: Request) -> AppState:
    """Return the state of the app that handles this request."""
    state: AppState = request.app.state.izwi
    return state


def services_of(request: Request) -> Services:
    """Return the services for a route."""
    return state_of(request).services
