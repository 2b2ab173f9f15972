"""The bodies of POST /v1/videos and /v1/videos/generations. An unknown key is an error."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from izwi_api.schemas.chat_messages import Strict
from izwi_api.schemas.form import Form
from izwi_api.schemas.images import MAX_SEED, MAX_STEPS

MAX_SECONDS = 20
MAX_FRAMES_PER_S = 60
_NUMBERS = ("seed", "steps", "frames_per_s")


class VideoBody(Strict):
    """A video to draw."""

    prompt: str = Field(min_length=1, max_length=32_000)
    model: str | None = None
    seconds: str = "4"
    size: str = "auto"

    # Not OpenAI's.
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    steps: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    frames_per_s: int | None = Field(default=None, ge=1, le=MAX_FRAMES_PER_S)

    @field_validator("seconds", mode="before")
    @classmethod
    def _text_of(cls, value: object) -> object:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("seconds")
    @classmethod
    def _is_whole(cls, value: str) -> str:
        if not (value.isascii() and value.isdecimal() and 1 <= int(value[:4]) <= MAX_SECONDS):
            raise ValueError(f"must be a whole number from 1 to {MAX_SECONDS}")
        return str(int(value))


class VideoGenerationBody(VideoBody):
    """A video that the answer has."""

    n: Literal[1] = 1
    response_format: Literal["b64_json", "url"] = "b64_json"


def parse_video(form: Form) -> VideoBody:
    """Read the fields of a form. Raises pydantic's ValidationError, InvalidRequest."""
    values: dict[str, Any] = form.values()
    for name in _NUMBERS:
        text = values.get(name, "")
        if text.isdecimal() and len(text) < 20:
            values[name] = int(text)
    return VideoBody.model_validate(values)
