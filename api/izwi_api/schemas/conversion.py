"""The form of a conversion of audio."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class ConversionForm(BaseModel):
    """The fields of a conversion, without its file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "mp3"
