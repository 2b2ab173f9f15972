"""The HTTP app: its endpoints, its errors, and the engine's life around them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from izwi import __version__
from izwi_api import http_errors
from izwi_api.app_state import AppState, set_state
from izwi_api.door import Door, Engine, Registry
from izwi_api.metrics import CountRequests, DoorMetrics, EngineFigures
from izwi_api.request_id import RequestId
from izwi_api.routes import ROUTERS
from izwi_api.settings import Settings
from izwi_api.unread_body import CloseUnread
from izwi_api.voice_store import VoiceStore


def create_app(engine: Engine, registry: Registry, settings: Settings) -> FastAPI:
    """Build the app. It starts the engine when it starts, and stops it when it ends."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncGenerator[None]:
        engine.start()
        try:
            yield
        finally:
            await engine.stop()

    # With redirect_slashes a POST to ".../speech/" would be answered 307 and its body sent twice.
    app = FastAPI(title="izwi", version=__version__, lifespan=life, redirect_slashes=False)
    metrics = DoorMetrics()
    metrics.registry.register(EngineFigures(engine))
    door = Door(engine, registry, settings, VoiceStore(settings.home / "voices"))
    set_state(app, AppState(door, metrics, int(time.time())))
    http_errors.install(app)
    app.add_middleware(CountRequests, metrics=metrics)
    app.add_middleware(CloseUnread)
    app.add_middleware(RequestId)  # added last, so it runs first
    for router in ROUTERS:
        app.include_router(router)
    return app
