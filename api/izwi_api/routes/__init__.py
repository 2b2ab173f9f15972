"""The endpoints: one file each, and one line each in ROUTERS."""

from __future__ import annotations

from fastapi import APIRouter

from izwi_api.routes import (
    alignments,
    chat,
    conversions,
    generate,
    health,
    images,
    metrics,
    model_changes,
    models,
    page,
    realtime,
    realtime_calls,
    responses,
    speech,
    speech_batch,
    speech_stream,
    stored_completions,
    transcription_stream,
    transcriptions,
    translations,
    voice_consents,
    voice_matching,
    voices,
)

ROUTERS: tuple[APIRouter, ...] = (
    speech.router,
    speech_batch.router,
    speech_stream.router,
    transcriptions.router,
    transcription_stream.router,
    translations.router,
    alignments.router,
    conversions.router,
    chat.router,
    stored_completions.router,
    responses.router,
    generate.router,
    images.router,
    realtime.router,
    realtime_calls.router,
    models.router,
    model_changes.router,
    voices.router,
    voice_consents.router,
    voice_matching.router,
    health.router,
    metrics.router,
    page.router,
)
