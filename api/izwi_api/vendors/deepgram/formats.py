"""What Deepgram's endpoints share: names of models, voices, languages and audio formats."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from uuid import uuid4

from starlette.datastructures import QueryParams

from izwi.errors import InvalidRequest
from izwi_api.realtime.protocol.formats import WireFormat
from izwi_api.services.context import Services
from izwi_api.services.voices.encoding import speech_models
from izwi_api.settings import OPENAI_VOICES

PREFIX = "/deepgram"
# nova-3, nova-2-phonecall, enhanced, base-general, whisper-large, flux-general-en
LISTEN_MODELS = re.compile(r"(nova|enhanced|base|whisper|flux)(-[a-z0-9-]+)?")
# aura-asteria-en, aura-2-thalia-en: model, voice and language in one name
SPEAK_MODELS = re.compile(r"aura-(?:2-)?(?P<voice>[a-z0-9]+)-[a-z]{2}")
_LEAST_RATE, _MOST_RATE = 8000, 48_000
# Figures that no model here measures.
CONFIDENCE = 1.0


def parse_rate(query: Mapping[str, str], default: int) -> int:
    """Return the sample rate of a query in Hz. Raises InvalidRequest."""
    text = query.get("sample_rate", str(default))
    if not text.isdecimal() or not _LEAST_RATE <= int(text[:9]) <= _MOST_RATE:
        raise InvalidRequest(
            f"sample_rate must be from {_LEAST_RATE} to {_MOST_RATE}, got {text[:64]!r}",
            param="sample_rate",
        )
    return int(text)


def input_format(query: Mapping[str, str], *, default_rate: int) -> WireFormat | None:
    """Return the format of bare samples; None for a file whose header says it.

    Raises:
        InvalidRequest: The encoding or the rate is not supported.
    """
    encoding = query.get("encoding")
    if encoding is None:
        return None
    if encoding == "linear16":
        return WireFormat(encoding, parse_rate(query, default_rate), 2)
    if encoding == "mulaw":
        return WireFormat(encoding, parse_rate(query, default_rate), 1, "mu")
    if encoding == "alaw":
        return WireFormat(encoding, parse_rate(query, default_rate), 1, "a")
    raise InvalidRequest(
        f"encoding must be linear16, mulaw or alaw, got {encoding[:64]!r}", param="encoding"
    )


def language_of(query: Mapping[str, str]) -> str | None:
    """Return the language to assume, without its region; None if it is detected."""
    language = query.get("language", "")
    if is_true(query, "detect_language") or language.lower() in ("", "multi"):
        return None
    return language.partition("-")[0]


# Parameters with words to expect.
EXPECTED = ("keyterm", "keywords")


def expected_words(query: QueryParams) -> str:
    """Return the words to expect, without their weights."""
    weighted = query.getlist("keywords")
    words = [word.rpartition(":")[0] or word for word in weighted]
    return ", ".join([*query.getlist("keyterm"), *words])


def is_true(query: Mapping[str, str], name: str) -> bool:
    """Return whether a switch of a query is on."""
    return query.get(name, "").lower() == "true"


def refuse_unanswerable(query: Mapping[str, str]) -> None:
    """Refuse what would be answered elsewhere, or in another form. Raises InvalidRequest."""
    if "callback" in query:
        message = "nothing is called back: leave callback out, and the response has the result"
        raise InvalidRequest(message, param="callback")
    if is_true(query, "multichannel"):
        message = "channels are mixed before they are transcribed"
        raise InvalidRequest(message, param="multichannel")


def voice_of(services: Services, name: str) -> str | None:
    """Return the voice for the name of a model, such as aura-2-thalia-en.

    That is the voice here with this name, or the one that the operator's alias names, by the whole
    name or by its part "thalia". Otherwise the first voice; None for a model without any.
    """
    match = SPEAK_MODELS.fullmatch(name)
    candidates = [name] if match is None else [name, match["voice"]]
    known = set(services.settings.voice_aliases)
    models = speech_models(services)
    known |= {speaker.lower() for model in models for speaker in model.frontend.speakers}
    known |= {voice.name.lower() for voice in services.voices.voices()}
    for candidate in candidates:
        if candidate.lower() in known:
            return candidate
    has_speakers = any(model.frontend.speakers for model in models)
    return OPENAI_VOICES[0] if has_speakers else None


def model_info(name: str) -> dict[str, str]:
    """Return what Deepgram says of a model."""
    return {"name": name, "version": "izwi", "arch": name}


def closing_metadata(request_id: str, duration_s: float, model: str) -> str:
    """Return the last message of a live transcription."""
    return json.dumps(
        {
            "type": "Metadata",
            "transaction_key": "deprecated",
            "request_id": request_id,
            "sha256": "",
            "created": now(),
            "duration": round(duration_s, 3),
            "channels": 1,
            "models": [model],
            "model_info": {model: model_info(model)},
        }
    )


def now() -> str:
    """Return the time as Deepgram writes it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def new_id() -> str:
    """Return a new id of a request."""
    return str(uuid4())
