"""Transcribe a file for a vendor's endpoint, with the times of its words."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from izwi.audio.resample import resampling_of
from izwi.errors import AudioTooShort, ModelNotFound
from izwi.inputs.speech import TranscriptionInput
from izwi.model.alignment import AlignedWord
from izwi_api.http.app_state import services_of
from izwi_api.services.context import Services
from izwi_api.services.transcription.align import Aligner, find_aligner
from izwi_api.services.transcription.transcribe import (
    SAMPLE_RATE,
    PieceOptions,
    Segment,
    Transcription,
    open_transcription,
)
from izwi_api.services.uploads import Upload

_MIN_AUDIO_S = 0.1


@dataclass(frozen=True, slots=True)
class Listening:
    """How to transcribe a file.

    Attributes:
        model: Name of the model.
        language: Name or code of the language; None detects it.
        context: Words to expect.
        temperature: Of the sampling.
        with_words: Find the times of words, if an alignment model knows the language.
        param: Name of the file's field, for messages.
    """

    model: str
    language: str | None = None
    context: str = ""
    temperature: float = 0.0
    with_words: bool = True
    param: str = "file"


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a transcript.

    Attributes:
        text: As it is written, with its punctuation.
        word: Its letters and digits alone.
        start_s: When it begins, in seconds from the start of the file.
        end_s: When it ends.
    """

    text: str
    word: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Heard:
    """A complete transcript.

    Attributes:
        text: All of it.
        segments: Its pieces.
        words: The words of each piece; None without an alignment model for the language.
        language_code: ISO 639 code of the first language; "" if none was detected.
        duration_s: Duration of the file in seconds.
        follows_context: Whether the words to expect had an effect.
    """

    text: str
    segments: tuple[Segment, ...]
    words: tuple[tuple[Word, ...], ...] | None
    language_code: str
    duration_s: float
    follows_context: bool


async def hear(request: Request, content: bytes, ask: Listening, upload: Upload) -> Heard:
    """Transcribe a file in its turn. Raises as POST /v1/audio/transcriptions does.

    Args:
        request: For the services.
        content: The file.
        ask: How.
        upload: The file's place among the uploads.
    """
    services = services_of(request)
    model = services.registry.transcription(ask.model)
    aligner = _aligner(services) if ask.with_words else None
    await upload.wait_for_turn()
    model.check_admission()  # before the file is decoded
    resampling = resampling_of(model.frontend)
    spool, limits = services.decoder.spool, services.settings.upload_limits
    with await spool(content, SAMPLE_RATE, limits, resampling) as audio:
        del content  # it may be as large as all other memory of this request
        if len(audio) < _MIN_AUDIO_S * SAMPLE_RATE:
            raise AudioTooShort(f"the audio is shorter than {_MIN_AUDIO_S} s", param=ask.param)
        wish = TranscriptionInput(
            audio, language=ask.language, context=ask.context, temperature=ask.temperature
        )
        options = PieceOptions(
            aligner.model if aligner else None, services.settings.detects_speech, upload
        )
        async with await open_transcription(model, wish, options) as transcription:
            await transcription.finish()
            return await _heard(transcription, aligner, model.frontend.follows_context)


async def _heard(
    transcription: Transcription,
    aligner: Aligner | None,
    follows_context: bool,
) -> Heard:
    words = None
    if aligner is not None and aligner.knows(transcription.segments):
        aligned = await aligner.align_segments(transcription.samples, transcription.segments)
        pairs = zip(transcription.segments, aligned, strict=True)
        words = tuple(_written(segment.text, of_piece) for segment, of_piece in pairs)
    return Heard(
        transcription.text,
        tuple(transcription.segments),
        words,
        next(iter(transcription.language_codes), ""),
        transcription.duration_s,
        follows_context,
    )


def _aligner(services: Services) -> Aligner | None:
    try:
        return find_aligner(services.registry)
    except ModelNotFound:
        return None


def _written(text: str, words: list[AlignedWord]) -> tuple[Word, ...]:
    """Return words as they are written: each with what follows it up to the next white space."""
    stops = [word.start for word in words[1:]] + [len(text)]
    return tuple(
        Word(text[word.start : stop].strip(), word.word, word.start_s, word.end_s)
        for word, stop in zip(words, stops, strict=True)
    )
