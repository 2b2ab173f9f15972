"""Deepgram's transcription of files."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from izwi.audio.encode import wav_header
from izwi.audio.pcm import to_s16le
from izwi.errors import InvalidRequest
from izwi.model.capability import Capability
from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import read_json, read_raw
from izwi_api.http.live_response import unless_left
from izwi_api.routes.openapi import ignored_header
from izwi_api.services.context import Services
from izwi_api.vendors.deepgram.formats import (
    CONFIDENCE,
    EXPECTED,
    LISTEN_MODELS,
    PREFIX,
    expected_words,
    input_format,
    is_true,
    language_of,
    model_info,
    new_id,
    now,
    refuse_unanswerable,
)
from izwi_api.vendors.hearing import Heard, Listening, Word, hear
from izwi_api.vendors.names import model_name

router = APIRouter()
_RATE = 8000  # of bare samples without a sample rate


@router.post(f"{PREFIX}/v1/listen", response_class=Response)
async def listen(request: Request) -> Response:
    """Transcribe a file: the body, or at the URL that a JSON body has."""
    services, query = services_of(request), request.query_params
    refuse_unanswerable(query)
    wire = input_format(query, default_rate=_RATE)
    name = model_name(services.registry, query.get("model"), Capability.TRANSCRIBE, LISTEN_MODELS)
    with await services.uploads.enter() as upload:
        with upload.client_acts():
            content = await _content(request, services)
        digest = sha256(content).hexdigest()
        if wire is not None:
            samples = wire.decode(content[: len(content) // wire.sample_bytes * wire.sample_bytes])
            pcm = to_s16le(samples)
            content = wav_header(wire.rate, len(pcm)) + pcm
        ask = Listening(name, language_of(query), expected_words(query), param="body")
        heard = await unless_left(request.receive, hear(request, content, ask, upload))
    answer = {
        "metadata": _metadata(name, digest, heard.duration_s),
        "results": _results(heard, with_utterances=is_true(query, "utterances")),
    }
    given = [name for name in EXPECTED if name in query]
    return JSONResponse(answer, headers=ignored_header([] if heard.follows_context else given))


async def _content(request: Request, services: Services) -> bytes:
    """Return the file, uploaded or fetched from a host that the operator allowed."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        return await read_raw(request, services.settings.max_upload_bytes)
    body = await read_json(request, services.settings.max_json_bytes)
    url = body.get("url")
    if not isinstance(url, str):
        raise InvalidRequest("missing required parameter: 'url'", param="url")
    return await services.references.fetch(url)


def _metadata(name: str, digest: str, duration_s: float) -> dict[str, Any]:
    model_id = new_id()
    return {
        "transaction_key": "deprecated",
        "request_id": new_id(),
        "sha256": digest,
        "created": now(),
        "duration": round(duration_s, 3),
        "channels": 1,
        "models": [model_id],
        "model_info": {model_id: model_info(name)},
    }


def _results(heard: Heard, *, with_utterances: bool) -> dict[str, Any]:
    words = [word for of_piece in heard.words or () for word in of_piece]
    alternative = {
        "transcript": heard.text,
        "confidence": CONFIDENCE,
        "words": list(map(word_json, words)),
    }
    channel: dict[str, Any] = {"alternatives": [alternative]}
    if heard.language_code:
        channel["detected_language"] = heard.language_code
    results: dict[str, Any] = {"channels": [channel]}
    if with_utterances:
        results["utterances"] = list(_utterances(heard))
    return results


def _utterances(heard: Heard) -> Iterable[dict[str, Any]]:
    for index, segment in enumerate(heard.segments):
        if segment.text.strip():
            yield {
                "start": segment.start_s,
                "end": segment.end_s,
                "confidence": CONFIDENCE,
                "channel": 0,
                "transcript": segment.text.strip(),
                "words": list(map(word_json, heard.words[index] if heard.words else ())),
                "id": new_id(),
            }


def word_json(word: Word) -> dict[str, Any]:
    """Return a word as Deepgram writes it."""
    return {
        "word": word.word.lower(),
        "punctuated_word": word.text,
        "start": word.start_s,
        "end": word.end_s,
        "confidence": CONFIDENCE,
    }
