"""Where routes find what they need: put there once by the app, read here."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import FastAPI, Request

from izwi_api.door import Door
from izwi_api.drain import Drain
from izwi_api.metrics import DoorMetrics
from izwi_api.model_changes import ModelChanges


@dataclass(frozen=True, slots=True)
class AppState:
    """Everything that lives as long as the app."""

    door: Door
    metrics: DoorMetrics
    started_at: int
    drain: Drain
    changes: ModelChanges


def set_state(app: FastAPI, state: AppState) -> None:
    """Give the app its state."""
    app.state.izwi = state


def state_of(request: Request) -> AppState:
    """Return the state of the app that serves this request."""
    state: AppState = request.app.state.izwi
    return state


def door_of(request: Request) -> Door:
    """Return what a route needs to reach the engine."""
    return state_of(request).door
