"""The form of POST /v1/audio/align, and its response in every format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from izwi.model.alignment import AlignedWord
from izwi_api.schemas.form import Form
from izwi_api.schemas.languages import LanguageName


class AlignmentForm(BaseModel):
    """The fields of an alignment request, without its file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    text: str
    model: str | None = None
    language: LanguageName | None = None
    response_format: Literal["json", "srt", "vtt"] = "json"


def parse_form(form: Form) -> AlignmentForm:
    """Parse a form's fields.

    Raises:
        ValidationError: A field is unknown, missing or has a wrong value.
        InvalidRequest: A field was given twice.
    """
    # the service rejects an empty text
    return AlignmentForm.model_validate(form.values(empty="text"))


def alignment_json(
    fields: AlignmentForm, words: Sequence[AlignedWord], duration_s: float
) -> dict[str, object]:
    """Return the response, with times in seconds and text positions in characters."""
    return {
        "task": "align",
        "language": fields.language,
        "duration": duration_s,
        "text": fields.text,
        "words": [
            word_json(word) | {"text_start": word.start, "text_end": word.stop} for word in words
        ],
        "usage": {"type": "duration", "seconds": duration_s},
    }


def word_json(word: AlignedWord) -> dict[str, object]:
    """Return a word in the format of transcriptions."""
    return {"word": word.word, "start": word.start_s, "end": word.end_s}
