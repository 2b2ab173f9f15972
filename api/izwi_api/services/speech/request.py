"""What a request for speech asks of its model: text, voice and sampling."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from izwi.errors import InvalidRequest
from izwi.inputs.speech import ReferenceClip, SpeechInput, TextMode, VoicePrompt
from izwi.model.frontend import SpeechFrontend
from izwi_api.schemas.speech import SpeechBody
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModel
from izwi_api.services.speech.spoken_text import Pause, Rate, SpokenPart
from izwi_api.services.voices.base64_audio import decode_base64_audio
from izwi_api.services.voices.names import resolve_voice
from izwi_api.settings import Settings
from izwi_api.voices.reference_hosts import is_address
from izwi_api.voices.store import REFERENCE_RATE

Voice = str | VoicePrompt | ReferenceClip | None
# What is read as SSML. `<speaker>` and any other text with `<` is text.
_SSML = re.compile(r"[ \t\r\n]*<speak(?![\w:.-])")
# More white space before a text that arrives in pieces makes it no SSML: it is read at once.
_MOST_SPACE = 64


def check_texts(body: SpeechBody, settings: Settings) -> None:
    """Check that the texts are not too long, and that one is not empty. Raises InvalidRequest."""
    for name, text in (
        ("input", body.input),
        ("instructions", body.instructions),
        ("ref_text", body.ref_text),
    ):
        if text is not None and len(text) > settings.max_input_chars:
            raise InvalidRequest(
                f"{name} has {len(text)} characters; at most "
                f"{settings.max_input_chars} are allowed",
                param=name,
            )
    if not body.input.strip():
        raise InvalidRequest("input has no text", param="input")


def is_ssml(text: str) -> bool:
    """Return whether a text is read as SSML."""
    return _SSML.match(text) is not None


def may_become_ssml(text: str) -> bool:
    """Return whether more text decides whether a text that begins like this is SSML.

    It is decided with the character after `<speak`, and after a long run of white space.
    """
    begun = text.lstrip(" \t\r\n")
    return len(text) <= _MOST_SPACE and "<speak".startswith(begun)


def ignored_fields(model: SpeechFrontend, body: SpeechBody) -> list[str]:
    """Return the fields of a request that its model cannot follow."""
    is_asked = bool((body.instructions or "").strip())
    return ["instructions"] if is_asked and not model.follows_instructions else []


def speech_input(body: SpeechBody, voice: str | VoicePrompt | ReferenceClip | None) -> SpeechInput:
    """Return the model's input for a request."""
    return SpeechInput(
        text=body.input,
        voice=voice,
        language=body.language,
        instruct=body.instructions,
        text_mode=TextMode(body.text_mode) if body.text_mode else None,
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        seed=body.seed,
        max_new_tokens=body.max_new_tokens,
        pronunciations=body.pronunciations,
    )


async def asked_speech(
    services: Services, model: ServedModel[SpeechFrontend], body: SpeechBody
) -> list[SpokenPart]:
    """Return what a request says, in order: several parts if its text is SSML.

    Raises:
        InvalidRequest: The SSML is refused, a voice does not exist, or the model cannot clone.
    """
    if not is_ssml(body.input):
        return [speech_input(body, await find_voice(services, model, body))]

    async def own_voice() -> Voice:
        return await find_voice(services, model, body)

    return await ssml_speech(services, model, speech_input(body, None), own_voice)


async def ssml_speech(
    services: Services,
    model: ServedModel[SpeechFrontend],
    ask: SpeechInput,
    own_voice: Callable[[], Awaitable[Voice]],
) -> list[SpokenPart]:
    """Return what an SSML document says, in order.

    Args:
        services: Voices.
        model: The speech model.
        ask: The document as `text`, and how to speak it; its voice is not used.
        own_voice: Returns the voice of text outside of <voice>.

    Raises:
        InvalidRequest: The SSML is refused, or a voice does not exist.
    """
    from izwi_api.services.speech.ssml import VoicedText, parse_ssml

    parts = parse_ssml(ask.text)
    voices: dict[str | None, Voice] = {}
    for part in parts:
        if isinstance(part, VoicedText) and part.voice not in voices:
            name = part.voice
            voices[name] = (
                await own_voice() if name is None else await _named_voice(services, model, name)
            )
    asked: list[SpokenPart] = []
    rate = 1.0
    for part in parts:
        if isinstance(part, Pause):
            asked.append(part)
            continue
        if part.rate != rate:
            rate = part.rate
            asked.append(Rate(rate))
        asked.append(replace(ask, text=part.text, voice=voices[part.voice]))
    return asked


async def _named_voice(services: Services, model: ServedModel[SpeechFrontend], name: str) -> Voice:
    """Return a voice that SSML names."""
    try:
        return await resolve_voice(services, model, name)
    except InvalidRequest as error:
        raise type(error)(str(error), param="input") from error


async def find_voice(
    services: Services, model: ServedModel[SpeechFrontend], body: SpeechBody
) -> str | VoicePrompt | ReferenceClip | None:
    """Return the voice that a request names or contains.

    Raises:
        InvalidRequest: The voice does not exist, or the model cannot clone.
    """
    if body.ref_audio is not None:
        if not model.frontend.can_clone:
            raise InvalidRequest(
                f"model {body.model!r} cannot follow a reference clip", param="ref_audio"
            )
        return await _reference_clip(body, services)
    if body.ref_text is not None or body.x_vector_only:
        name = "ref_text" if body.ref_text is not None else "x_vector_only"
        raise InvalidRequest(f"{name} needs ref_audio", param=name)
    if body.voice is not None:
        return await resolve_voice(services, model, body.voice)
    if model.frontend.speakers:
        raise InvalidRequest("missing required parameter: 'voice'", param="voice")
    return None


async def _reference_clip(body: SpeechBody, services: Services) -> ReferenceClip:
    assert body.ref_audio is not None
    if not body.x_vector_only and not (body.ref_text or "").strip():
        raise InvalidRequest(
            "ref_text must be what ref_audio says; or set x_vector_only", param="ref_text"
        )
    settings = services.settings
    if is_address(body.ref_audio):
        content = await services.references.fetch(body.ref_audio)
    else:
        limit_bytes = settings.max_reference_bytes
        content = await asyncio.to_thread(
            decode_base64_audio, body.ref_audio, limit_bytes, "ref_audio"
        )
    try:
        samples = await services.decoder.decode(content, REFERENCE_RATE, settings.reference_limits)
    except InvalidRequest as error:
        raise type(error)(str(error), param="ref_audio") from error
    return ReferenceClip(samples, None if body.x_vector_only else body.ref_text)
