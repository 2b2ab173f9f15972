"""The form of POST /v1/audio/translations."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from izwi_api.schemas.form import Form


def _number(value: object) -> object:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


class TranslationForm(BaseModel):
    """The fields of a translation request, without its file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: str
    prompt: str = Field(default="", max_length=4096)
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    temperature: Annotated[float, BeforeValidator(_number), Field(ge=0.0, le=1.0)] = 0.0


def parse_form(form: Form) -> TranslationForm:
    """Parse a form's fields; an empty one selects the default.

    Raises:
        ValidationError: A field is unknown, missing or has a wrong value.
        InvalidRequest: A field was given twice.
    """
    return TranslationForm.model_validate(form.values(empty="model"))
