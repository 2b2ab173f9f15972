"""Requests and responses for voices and consents, with OpenAI's keys and our own.

Requests are forms, so booleans are words.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from izwi_api.voices.clip_check import ClipFigures, clip_faults
from izwi_api.voices.store import StoredVoice

_SaidText = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=4096)]
_FORM = ConfigDict(extra="forbid", frozen=True)


class SampleVoiceBody(BaseModel):
    """A voice from a clip, in the form's file `audio_sample`."""

    model_config = _FORM

    name: str
    consent: str | None = Field(
        default=None, max_length=1024, description="a recording's id, or words"
    )
    type: Literal["audio_sample"] = "audio_sample"

    # Extensions.
    ref_text: _SaidText | None = Field(
        default=None, description="what the clip says; left out, it is transcribed"
    )
    x_vector_only: bool = Field(default=False, description="follow the speaker, not the speech")
    prompt: _SaidText | None = Field(
        default=None, description="of a designed voice: the description that its clip was made from"
    )


class ClipBody(BaseModel):
    """A clip to check, in the form's file `audio_sample`."""

    model_config = _FORM


class PromptVoiceBody(BaseModel):
    """A voice from a description."""

    model_config = _FORM

    name: str
    type: Literal["prompt"]
    prompt: _SaidText
    model: str | None = None
    script_hint: _SaidText | None = None


class ConsentBody(BaseModel):
    """A consent recording, in the form's file `recording`."""

    model_config = _FORM

    name: str
    language: str


class ConsentUpdateBody(BaseModel):
    """The new label of a recording."""

    model_config = _FORM

    name: str


def clip_report(figures: ClipFigures) -> dict[str, object]:
    """Return the measurements of a clip, and the faults that will be audible in its voice."""
    return {
        "object": "audio.clip_report",
        "duration": round(figures.duration_s, 2),
        "speech": round(figures.speech_s, 2),
        "level_dbfs": round(figures.level_dbfs, 1),
        "clipped_share": round(figures.clipped_share, 5),
        "snr_db": round(figures.snr_db, 1),
        "faults": [
            {"name": fault.name, "message": fault.message} for fault in clip_faults(figures)
        ],
    }


def stored_entry(voice: StoredVoice) -> dict[str, object]:
    """Return OpenAI's voice object, with the keys that other clients expect."""
    return {
        "id": voice.id,
        "object": "audio.voice",
        "created_at": voice.created_at,
        "name": voice.name,
        "type": voice.type,
        "prompt": voice.prompt,
        "kind": "cloned",
        "ref_text": voice.text,
        "consent": voice.consent,
        "file_size": voice.sample_bytes,
        "mime_type": voice.media_type,
    }
