"""The endpoints: one file each, and one line each in ROUTERS."""

from __future__ import annotations

from fastapi import APIRouter

from izwi_api.routes import (
    health,
    metrics,
    models,
    page,
    speech,
    speech_batch,
    speech_stream,
    transcriptions,
    voices,
)

ROUTERS: tuple[APIRouter, ...] = (
    speech.router,
    speech_batch.router,
    speech_stream.router,
    transcriptions.router,
    models.router,
    voices.router,
    health.router,
    metrics.router,
    page.router,
)
