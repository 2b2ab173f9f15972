"""The HTTP app: endpoints, middleware, error handlers, and the engine's start and stop."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI
from starlette.middleware.cors import CORSMiddleware

from izwi import __version__
from izwi.engine_client.protocol import EngineClient, StartsEngines
from izwi.host.threads import use_few_threads
from izwi_api.http import auth
from izwi_api.http import errors as http_errors
from izwi_api.http.app_state import AppState, set_state
from izwi_api.http.audit import Audit, AuditLog
from izwi_api.http.bodies import CloseUnread
from izwi_api.http.client_secrets import ClientSecrets
from izwi_api.http.deadlines import CallerDeadlines
from izwi_api.http.drain import Drain, Draining
from izwi_api.http.head import Head
from izwi_api.http.host_check import HostCheck
from izwi_api.http.metrics import CountRequests, EngineFigures, HttpMetrics
from izwi_api.http.request_id import RequestId
from izwi_api.http.telemetry import ObserveCalls
from izwi_api.routes import ROUTERS
from izwi_api.routes.openapi import REFUSALS
from izwi_api.schemas.warm_file import read_warm_file
from izwi_api.services.context import Services
from izwi_api.services.decoding import Decoder, DecoderPool, InProcess
from izwi_api.services.images import ImageDecoder
from izwi_api.services.models.changes import ModelChanges
from izwi_api.services.models.served import Registry, ServedModels
from izwi_api.services.store.answers import StoredAnswers
from izwi_api.services.store.completions import StoredCompletions
from izwi_api.services.store.items import StoredItems
from izwi_api.services.store.responses import StoredResponses
from izwi_api.services.uploads import Uploads
from izwi_api.services.warming import Warming
from izwi_api.sessions.open_sessions import OpenSessions
from izwi_api.settings import Access, Settings
from izwi_api.telemetry.calls import CallObserver
from izwi_api.telemetry.device_figures import open_device_figures
from izwi_api.telemetry.log_lines import CallLog
from izwi_api.telemetry.metrics_export import open_metrics_export
from izwi_api.telemetry.tracing import Tracing, open_tracing
from izwi_api.usage.keys import KeyRing
from izwi_api.vendors import load_vendors
from izwi_api.voices.references import References
from izwi_api.voices.store import VoiceStore

if TYPE_CHECKING:
    from izwi_api.batches.runner import BatchRunner

_PLAIN: dict[str, Any] = {
    # otherwise a POST to ".../speech/" would get a 307, and its body would be sent twice
    "redirect_slashes": False,
    # FastAPI's pages load code from another server; `routes/page.py` serves /docs
    "docs_url": None,
    "redoc_url": None,
}


def create_app(
    engine: EngineClient,
    registry: Registry,
    settings: Settings,
    metrics_folder: Path | None = None,
    kept: Path | None = None,
    tracing: Tracing | None = None,
) -> FastAPI:
    """Build the app. It starts the engine on startup, and stops it on shutdown.

    Args:
        engine: The engine, not started.
        registry: The served models.
        settings: Settings of the API server.
        metrics_folder: See `HttpMetrics`.
        kept: File of earlier answers that API servers share, or None.
        tracing: Takes the calls; None: as OpenTelemetry's environment variables say.

    Raises:
        InvalidRequest: The keys file is broken, or an alias names no served model.
        OSError: The keys file cannot be read, or the audit log cannot be written.
    """
    access = settings.access
    audit_log = None if access.audit_log is None else AuditLog(access.audit_log)
    items = StoredItems(kept)

    @asynccontextmanager
    async def app_lifespan(_: FastAPI) -> AsyncGenerator[None]:
        use_few_threads()
        engine.start()
        sessions.start()
        if warming is not None and isinstance(engine, StartsEngines):
            engine.on_start(warming.start)
        elif warming is not None:
            warming.start(engine)
        if export is not None:
            export.start()
        if batches is not None:
            batches.start()
        try:
            yield
        finally:
            await sessions.close()
            if batches is not None:
                await batches.stop()
            if warming is not None:
                await warming.stop()
            if export is not None:
                await export.close()
            changes.stop()
            await engine.stop()
            decoder.stop()
            images.stop()
            references.stop()
            items.close()
            if audit_log is not None:
                audit_log.close()
            if traces is not None:
                await asyncio.to_thread(traces.close)

    traces = tracing or open_tracing(os.environ)
    app = FastAPI(title="izwi", version=__version__, lifespan=app_lifespan, **_PLAIN)
    metrics = HttpMetrics(metrics_folder)
    metrics.registry.register(EngineFigures(engine))
    if (devices := open_device_figures()) is not None:
        metrics.registry.register(devices)
    export = open_metrics_export(os.environ, metrics.registry, metrics_folder)
    decoder = _decoder(settings)
    references, images = _references(settings), ImageDecoder(settings.decode_workers)
    voices = VoiceStore(settings.home / "voices")
    aliases, checks = settings.model_aliases, not settings.manage_models
    models = ServedModels(engine, registry, aliases, checks=checks)
    if settings.degradation is not None and checks:
        from izwi_api.services.models.degradation import check_degradation

        check_degradation(settings.degradation, models)
    rest = *_earlier(items), metrics.count_prepared, metrics.observe_answer, metrics.count_turn
    services = Services(
        *(engine, models, settings, voices, decoder, references, *rest),
        images=images,
        uploads=Uploads(settings.max_upload_pieces),
    )
    warming = Warming(services, read_warm_file(settings.warm)) if settings.warm else None
    client_secrets = ClientSecrets(settings.home, time.time)
    sessions = OpenSessions(settings.sessions, metrics_folder, settings.home / "sessions")
    drain, changes = Drain(sessions), ModelChanges(engine, registry, offline=settings.offline)
    begun_s = int(time.time())
    state = AppState(services, metrics, begun_s, drain, changes, client_secrets, sessions)
    set_state(app, state)
    _guard(app, access, settings.home / "counts", client_secrets)
    vendors = load_vendors(settings.apis)
    if vendors:
        from izwi_api.vendors.requests import VendorRequests

        app.add_middleware(VendorRequests, vendors=vendors)
    sinks = (CallLog(), metrics.calls, *((traces,) if traces else ()))
    batches = _batches(app, settings, state, audit_log) if settings.batches else None
    observer = CallObserver(sinks, traces=traces is not None)
    _watch(app, settings, audit_log, metrics, drain)
    app.add_middleware(CallerDeadlines)
    app.add_middleware(ObserveCalls, observer=observer)
    app.add_middleware(RequestId)
    more = [router for vendor in vendors for router in vendor.routers]
    if batches is not None:
        from izwi_api.batches.routes import router

        more.append(router)
    return _routed(app, (*ROUTERS, *more))


def _batches(
    app: FastAPI, settings: Settings, state: AppState, audit_log: AuditLog | None
) -> BatchRunner:
    """Return what runs the batches of an app, which asks the app itself."""
    from izwi_api.batches.runner import BatchRunner
    from izwi_api.batches.store import BatchStore

    models = state.services.registry

    def serves(name: str) -> bool:
        return name in models.names() or name in models.aliases()

    store = BatchStore(settings.home / "batches")
    sender = None
    if (url := settings.webhook.url) is not None and (secret := settings.webhook.secret):
        from izwi_api.batches.webhooks import WebhookSender

        count = state.metrics.count_webhook
        sender = WebhookSender(store, url, secret, count, audit_log)
    runner = BatchRunner(app, store, settings, state.drain, serves, sender)
    app.state.izwi_batches = runner
    return runner


def _routed(app: FastAPI, routers: Sequence[APIRouter]) -> FastAPI:
    """Add the routes and the error handlers."""
    http_errors.install(app, [route for router in routers for route in router.routes])
    for router in routers:
        app.include_router(router, responses=REFUSALS)
    return app


def _earlier(items: StoredItems) -> tuple[StoredAnswers, StoredResponses, StoredCompletions]:
    """Earlier answers of each kind, kept in one place."""
    return StoredAnswers(items), StoredResponses(items), StoredCompletions(items)


def _references(settings: Settings) -> References:
    return References(
        settings.reference_hosts, settings.max_reference_bytes, settings.reference_pace
    )


def _decoder(settings: Settings) -> Decoder:
    workers = settings.decode_workers
    return DecoderPool(workers, settings.home) if workers else InProcess(settings.home)


def _watch(
    app: FastAPI,
    settings: Settings,
    audit_log: AuditLog | None,
    metrics: HttpMetrics,
    drain: Drain,
) -> None:
    """Add the middleware that sees every request. The last one added runs first."""
    if audit_log is not None:
        app.add_middleware(Audit, log=audit_log)
    app.add_middleware(CountRequests, metrics=metrics)
    app.add_middleware(CloseUnread, pace=settings.pace)
    app.add_middleware(Draining, drain=drain)
    if settings.access.allowed_hosts is not None:
        app.add_middleware(HostCheck, allowed=settings.access.allowed_hosts)


def _guard(app: FastAPI, access: Access, counts: Path, client_secrets: ClientSecrets) -> None:
    """Add the middleware that authenticates, outside the one that answers HEAD."""
    app.add_middleware(Head)
    ring = KeyRing(access.api_keys_file, access.api_key_digest)
    app.add_middleware(
        auth.Auth,
        ring=ring,
        origins=access.cors_origins,
        counts=counts,
        client_secrets=client_secrets,
    )
    if access.cors_origins:
        # Outside Auth: browsers send preflight requests without the key, and pages may read
        # refusals.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=access.cors_origins,
            allow_methods=("GET", "HEAD", "POST", "DELETE"),
            allow_headers=("*",),  # the SDK sends a dozen headers of its own
            expose_headers=auth.ANSWER_HEADERS,
        )
