"""The forms of POST /v1/voice/verify and /v1/voice/identify."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _number(value: object) -> object:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


class IdentifyForm(BaseModel):
    """The fields beside the file: which stored voice speaks in it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    threshold: Annotated[float, BeforeValidator(_number), Field(ge=-1.0, le=1.0)] | None = None


class VerifyForm(IdentifyForm):
    """The fields beside the file: whether it and a reference are of one speaker.

    `voice` names a stored voice; `reference` is a clip as a data: URL or base64.
    """

    voice: str | None = None
    reference: str | None = None
