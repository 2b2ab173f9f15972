"""The HTTP app: its endpoints, its errors, and the engine's life around them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from izwi import __version__
from izwi.threads import use_few_threads
from izwi_api import auth, http_errors, voice_errors
from izwi_api.app_state import AppState, set_state
from izwi_api.audit import Audit, AuditLog
from izwi_api.decoding import Decoder, DecoderPool, InProcess
from izwi_api.door import Door, Engine, Registry
from izwi_api.drain import Drain, Draining
from izwi_api.host_check import HostCheck
from izwi_api.keys import KeyRing
from izwi_api.metrics import CountRequests, DoorMetrics, EngineFigures
from izwi_api.model_changes import ModelChanges
from izwi_api.references import References
from izwi_api.request_id import RequestId
from izwi_api.routes import ROUTERS
from izwi_api.schemas.openapi import REFUSALS
from izwi_api.settings import Access, Settings
from izwi_api.unread_body import CloseUnread
from izwi_api.usage import CountedEngine
from izwi_api.voice_store import VoiceStore


def create_app(
    engine: Engine, registry: Registry, settings: Settings, metrics_folder: Path | None = None
) -> FastAPI:
    """Build the app. It starts the engine when it starts, and stops it when it ends.

    Args:
        engine: Not started.
        registry: Of the models that it serves.
        settings: Limits and places.
        metrics_folder: As `DoorMetrics` takes it.

    Raises:
        InvalidRequest: The keys file is broken.
        OSError: The keys file cannot be read, or the audit log not written.
    """
    access = settings.access
    audit_log = AuditLog(access.audit_log) if access.audit_log is not None else None

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncGenerator[None]:
        use_few_threads()
        engine.start()
        try:
            yield
        finally:
            changes.stop()
            await engine.stop()
            decoder.stop()
            references.stop()
            if audit_log is not None:
                audit_log.close()

    # With redirect_slashes a POST to ".../speech/" would be answered 307 and its body sent twice.
    app = FastAPI(title="izwi", version=__version__, lifespan=life, redirect_slashes=False)
    metrics = DoorMetrics(metrics_folder)
    metrics.registry.register(EngineFigures(engine))
    counted = CountedEngine(engine, registry) if access.asks_for_key or audit_log else engine
    decoder = _decoder(settings)
    references = References(
        settings.reference_hosts, settings.max_reference_bytes, settings.reference_pace
    )
    voices = VoiceStore(settings.home / "voices")
    door = Door(counted, registry, settings, voices, decoder, references)
    drain, changes = Drain(), ModelChanges(engine, registry, offline=settings.offline)
    set_state(app, AppState(door, metrics, int(time.time()), drain, changes))
    http_errors.install(app, [route for router in ROUTERS for route in router.routes])
    auth.install(app)
    voice_errors.install(app)
    _guard(app, access, settings.home / "counts")
    if audit_log is not None:
        app.add_middleware(Audit, log=audit_log)
    app.add_middleware(CountRequests, metrics=metrics)
    app.add_middleware(CloseUnread, pace=settings.pace)
    app.add_middleware(Draining, drain=drain)
    if access.allowed_hosts is not None:
        app.add_middleware(HostCheck, allowed=access.allowed_hosts)
    app.add_middleware(RequestId)  # added last, so it runs first
    for router in ROUTERS:
        app.include_router(router, responses=REFUSALS)
    return app


def _decoder(settings: Settings) -> Decoder:
    workers = settings.decode_workers
    return DecoderPool(workers, settings.home) if workers else InProcess(settings.home)


def _guard(app: FastAPI, access: Access, counts: Path) -> None:
    """Put before the routes who may come in."""
    ring = KeyRing(access.api_keys_file, access.api_key_digest)
    app.add_middleware(auth.Auth, ring=ring, origins=access.cors_origins, counts=counts)
    if access.cors_origins:
        # Before Auth: a browser asks for permission without the key, and a page may read a refusal.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=access.cors_origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),  # the SDK sends a dozen of its own
            expose_headers=auth.ANSWER_HEADERS,
        )
