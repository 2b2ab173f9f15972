"""ElevenLabs' endpoints, below /elevenlabs: its paths would meet OpenAI's at /v1/models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from izwi_api.vendors.elevenlabs import (
    models,
    multi_stream_input,
    speech,
    stream_input,
    transcription,
    voices,
)
from izwi_api.vendors.elevenlabs.formats import PREFIX
from izwi_api.vendors.vendor import Vendor, key_of_header

# ElevenLabs' own names of some errors, which its clients compare.
_STATUSES = {
    "rate_limit_exceeded": "too_many_concurrent_requests",
    "insufficient_quota": "quota_exceeded",
    "overloaded": "system_busy",
}


def error_body(error: Mapping[str, Any], request_id: str) -> dict[str, Any]:
    """Return the body of an error as ElevenLabs writes it."""
    code = error.get("code") or error["type"]
    detail = {
        "status": _STATUSES.get(code, code),
        "message": error["message"],
        "type": error["type"],
        "code": code,
        "param": error.get("param"),
        "request_id": request_id,
    }
    return {"detail": detail}


VENDOR = Vendor(
    prefix=f"{PREFIX}/",
    routers=(
        speech.router,
        stream_input.router,
        multi_stream_input.router,
        voices.router,
        models.router,
        transcription.router,
    ),
    key_of=key_of_header("xi-api-key"),
    error_body=error_body,
)
