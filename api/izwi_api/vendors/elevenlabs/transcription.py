"""ElevenLabs' speech-to-text: transcribe a file, with the times of its words."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from uuid import uuid4

from fastapi import APIRouter, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from izwi.audio.encode import wav_header
from izwi.errors import InvalidRequest
from izwi.model.capability import Capability
from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import read_form
from izwi_api.http.live_response import unless_left
from izwi_api.routes.openapi import ignored_header
from izwi_api.schemas.form import Form
from izwi_api.schemas.languages import LanguageName
from izwi_api.services.context import Services
from izwi_api.vendors.elevenlabs.formats import PREFIX
from izwi_api.vendors.elevenlabs.languages import long_code, short_code
from izwi_api.vendors.hearing import Heard, Listening, Word, hear
from izwi_api.vendors.names import model_name

router = APIRouter()
_MODELS = re.compile(r"scribe_[a-z0-9_]+")
_PCM_RATE = 16_000


def _float(value: object) -> object:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


class SpeechToText(BaseModel):
    """The form; fields that have no effect here are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model_id: str
    language_code: LanguageName | None = None
    timestamps_granularity: Literal["none", "word", "character"] = "word"
    file_format: Literal["pcm_s16le_16", "other"] = "other"
    temperature: Annotated[float, BeforeValidator(_float), Field(ge=0.0, le=2.0)] = 0.0
    source_url: str | None = None
    cloud_storage_url: str | None = None


@router.post(f"{PREFIX}/v1/speech-to-text", response_class=Response)
async def convert(request: Request) -> Response:
    """Transcribe a file."""
    services = services_of(request)
    with await services.uploads.enter() as upload:
        with upload.client_acts():
            form = await read_form(request, services.settings.max_upload_bytes)
        _check_answerable(form)
        single = {name: values[-1] for name, values in form.fields.items() if values[-1]}
        fields = SpeechToText.model_validate(single)
        content = await _content(services, form, fields)
        ask = Listening(
            model=model_name(services.registry, fields.model_id, Capability.TRANSCRIBE, _MODELS),
            language=short_code(fields.language_code),
            context=", ".join(form.fields.get("keyterms", ())),
            temperature=min(1.0, fields.temperature),
            with_words=fields.timestamps_granularity != "none",
        )
        heard = await unless_left(request.receive, hear(request, content, ask, upload))
    with_characters = fields.timestamps_granularity == "character"
    is_ignored = bool(ask.context) and not heard.follows_context
    headers = ignored_header(["keyterms"] if is_ignored else [])
    return JSONResponse(_answer(heard, with_characters=with_characters), headers=headers)


def _check_answerable(form: Form) -> None:
    """Refuse what would be answered elsewhere, or in another form. Raises InvalidRequest."""
    for name, why in (
        ("webhook", "no webhook is called: leave it out, and the response has the transcript"),
        ("use_multi_channel", "channels are mixed before they are transcribed"),
    ):
        if form.fields.get(name, [""])[-1].lower() == "true":
            raise InvalidRequest(why, param=name)


async def _content(services: Services, form: Form, fields: SpeechToText) -> bytes:
    """Return the file, uploaded or fetched from a host that the operator allowed."""
    address = fields.source_url or fields.cloud_storage_url
    if address is not None:
        return await services.references.fetch(address)
    content = form.pop_file("file")
    if fields.file_format == "pcm_s16le_16":
        return wav_header(_PCM_RATE, len(content)) + content
    return content


def _answer(heard: Heard, *, with_characters: bool) -> dict[str, object]:
    return {
        "language_code": long_code(heard.language_code),
        "language_probability": 1.0 if heard.language_code else 0.0,
        "text": heard.text,
        "words": _words(heard, with_characters=with_characters),
        "transcription_id": uuid4().hex,
        "audio_duration_secs": round(heard.duration_s, 3),
    }


def _words(heard: Heard, *, with_characters: bool) -> list[dict[str, object]]:
    """Return words, and the spaces between them."""
    entries: list[dict[str, object]] = []
    said = [word for of_piece in heard.words or () for word in of_piece]
    for before, word in zip([None, *said], said, strict=False):
        if before is not None:
            space = {"text": " ", "start": before.end_s, "end": word.start_s, "type": "spacing"}
            entries.append({**space, "speaker_id": None, "logprob": 0.0})
        entry: dict[str, object] = {
            "text": word.text,
            "start": word.start_s,
            "end": word.end_s,
            "type": "word",
            "speaker_id": None,
            "logprob": 0.0,
        }
        if with_characters:
            entry["characters"] = _characters(word)
        entries.append(entry)
    return entries


def _characters(word: Word) -> list[dict[str, object]]:
    """Share a word's time among its characters in equal parts."""
    step_s = (word.end_s - word.start_s) / max(1, len(word.text))
    return [
        {
            "text": character,
            "start": round(word.start_s + index * step_s, 3),
            "end": round(word.start_s + (index + 1) * step_s, 3),
        }
        for index, character in enumerate(word.text)
    ]
