"""POST /v1/audio/transcriptions: transcribe a file, whole or streamed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from itertools import chain

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from izwi.arrays import Samples
from izwi.audio.resample import resampling_of
from izwi.audio.speech_regions import RegionRules
from izwi.errors import AudioTooShort, InvalidRequest, IzwiError, ModelNotFound
from izwi.host.threads import compute
from izwi.inputs.speech import TranscriptionInput
from izwi.model.alignment import AlignedWord
from izwi.model.frontend import TranscriptionFrontend
from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import read_form
from izwi_api.http.errors import error_line
from izwi_api.http.live_response import live_response, unless_left
from izwi_api.http.sse import MEDIA_TYPE, event
from izwi_api.routes.openapi import answers, form_body, ignored_header
from izwi_api.routes.plain_route import PlainRoute
from izwi_api.schemas.form import Form
from izwi_api.schemas.transcription import ServerVad, TranscriptionForm, parse_form
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModel
from izwi_api.services.speakers.diarize import (
    PADDING_S,
    THRESHOLD,
    DiarizationOptions,
    diarize,
    spoken_pieces,
)
from izwi_api.services.speakers.encoder import SpeakerEncoder
from izwi_api.services.speakers.live import known_speakers
from izwi_api.services.transcription.align import Aligner, find_aligner
from izwi_api.services.transcription.formats import (
    by_speaker,
    diarized_json,
    diarized_segment,
    extras_json,
    logprobs_json,
    segment_id,
    srt,
    usage_of,
    verbose_json,
    vtt,
)
from izwi_api.services.transcription.subtitles import cut_segments
from izwi_api.services.transcription.transcribe import (
    SAMPLE_RATE,
    PieceOptions,
    SpokenPiece,
    Transcription,
    open_transcription,
)
from izwi_api.services.uploads import Upload

router = APIRouter(route_class=PlainRoute)

# The same as OpenAI's: no word is shorter.
_MIN_AUDIO_S = 0.1
# Four references of 10 s as WAV in base64, and all other fields.
_MAX_TEXT_BYTES = 12 << 20
_STREAMED = ("json", "verbose_json", "diarized_json")


@router.post(
    "/v1/audio/transcriptions",
    openapi_extra=form_body(TranscriptionForm, "file"),
    response_class=Response,
    responses=answers(
        *("application/json", "text/plain", "application/x-subrip", "text/vtt"),
        MEDIA_TYPE,
        names_ignored=True,
    ),
)
async def create_transcription(request: Request) -> Response:
    """Transcribe a file."""
    services = services_of(request)
    with ExitStack() as resources:
        upload = resources.enter_context(await services.uploads.enter())
        with upload.client_acts():
            form = await read_form(
                request, services.settings.max_upload_bytes, max_text_bytes=_MAX_TEXT_BYTES
            )
        # An unknown model is reported before anything that depends on the model or the format.
        models = [services.registry.transcription(name) for name in form.fields.get("model", ())]
        fields = parse_form(form)  # which allows exactly one
        if fields.stream and fields.response_format not in _STREAMED:
            message = f"stream needs response_format {', '.join(_STREAMED)}"
            raise InvalidRequest(message, param="stream")
        answer = _answer(services, form, fields, models[0], upload, resources)
        return await unless_left(request.receive, answer)


async def _answer(
    services: Services,
    form: Form,
    fields: TranscriptionForm,
    model: ServedModel[TranscriptionFrontend],
    upload: Upload,
    resources: ExitStack,
) -> Response:
    """Transcribe a file; `resources` is closed after the answer, also if that is a stream."""
    form.file("file")  # a missing one is reported first
    aligner = _aligner(services, fields)
    encoder = SpeakerEncoder(services.registry, "response_format") if fields.with_speakers else None
    opening = _opened(services, form, fields, model, _Beside(aligner, encoder, upload))
    headers = ignored_header(fields.ignored(follows_context=model.frontend.follows_context))
    if fields.stream:
        events = _opened_events(opening, fields, aligner, upload, resources.pop_all())
        return await live_response(events, MEDIA_TYPE, headers)
    async with opening as transcription:
        await transcription.finish()
        words = await _words(aligner, transcription, fields) if aligner else None
        response = _whole(transcription, fields, words)
    response.headers.update(headers)
    return response


@dataclass(frozen=True, slots=True)
class _Beside:
    """What a transcription uses beside its model."""

    aligner: Aligner | None
    encoder: SpeakerEncoder | None
    upload: Upload


async def _spoken(
    services: Services,
    encoder: SpeakerEncoder,
    audio: Samples,
    fields: TranscriptionForm,
    frontend: TranscriptionFrontend,
) -> Sequence[SpokenPiece]:
    """Return the parts of the audio by speaker; none without speech."""
    known = await known_speakers(
        services, fields.known_speaker_names, fields.known_speaker_references
    )
    vad = fields.chunking_strategy
    options = DiarizationOptions(
        known,
        THRESHOLD if fields.speaker_threshold is None else fields.speaker_threshold,
        RegionRules(vad.threshold, vad.silence_duration_ms / 1000)
        if isinstance(vad, ServerVad)
        else RegionRules(),
        vad.prefix_padding_ms / 1000 if isinstance(vad, ServerVad) else PADDING_S,
    )
    turns, names = await diarize(encoder, audio, options)
    return await compute(spoken_pieces, frontend, audio, turns, names, options.padding_s)


@asynccontextmanager
async def _opened(
    services: Services,
    form: Form,
    fields: TranscriptionForm,
    model: ServedModel[TranscriptionFrontend],
    beside: _Beside,
) -> AsyncGenerator[Transcription]:
    """Decode a file in its turn and start its transcription; both end with the context."""
    content, aligner, upload = form.pop_file("file"), beside.aligner, beside.upload
    limits, spool = services.settings.upload_limits, services.decoder.spool
    await upload.wait_for_turn()
    model.check_admission()  # before the file is decoded
    with await spool(content, SAMPLE_RATE, limits, resampling_of(model.frontend)) as audio:
        del content  # it may be as large as all other memory of this request
        if len(audio) < _MIN_AUDIO_S * SAMPLE_RATE:
            raise AudioTooShort(f"the audio is shorter than {_MIN_AUDIO_S} s", param="file")
        ask = TranscriptionInput(
            audio,
            language=fields.forced_language,
            context=fields.context,
            temperature=fields.temperature,
            max_new_tokens=fields.max_new_tokens,
            logprobs=fields.with_logprobs,
        )
        spoken: Sequence[SpokenPiece] = ()
        if beside.encoder is not None:
            spoken = await _spoken(services, beside.encoder, audio, fields, model.frontend)
        options = PieceOptions(
            aligner.model if aligner else None,
            services.settings.detects_speech and fields.vad_filter,
            upload,
            spoken,
        )
        async with await open_transcription(model, ask, options) as transcription:
            yield transcription


def _aligner(services: Services, fields: TranscriptionForm) -> Aligner | None:
    """Return the aligner: required for word times, optional for subtitles."""
    wants_times = fields.with_words or fields.with_cues or fields.is_subtitle
    if not wants_times or fields.with_speakers:  # turns are short, so their words are estimated
        return None
    try:
        return find_aligner(services.registry)
    except ModelNotFound as error:
        if not fields.with_words:
            return None
        raise InvalidRequest(
            "word times need an alignment model beside the transcriber, and none is served",
            param="timestamp_granularities",
        ) from error


async def _words(
    aligner: Aligner, transcription: Transcription, fields: TranscriptionForm
) -> list[list[AlignedWord]] | None:
    """Return the words of each segment; None for subtitles in an unsupported language."""
    if not aligner.knows(transcription.segments):
        if not fields.with_words:
            return None
        raise InvalidRequest(
            f"the speech is {transcription.language}, but the alignment model "
            f"{aligner.name!r} knows only {', '.join(aligner.model.languages)}",
            param="timestamp_granularities",
        )
    return await aligner.align_segments(transcription.samples, transcription.segments)


def _whole(
    transcription: Transcription,
    fields: TranscriptionForm,
    words: list[list[AlignedWord]] | None,
) -> Response:
    match fields.response_format:
        case "text":
            text = by_speaker(transcription.segments) if fields.speakers else transcription.text
            return PlainTextResponse(text)
        case "diarized_json":
            return JSONResponse(diarized_json(transcription))
        case "srt":
            cues = cut_segments(transcription.segments, words)
            return Response(srt(cues), media_type="application/x-subrip")
        case "vtt":
            cues = cut_segments(transcription.segments, words)
            return Response(vtt(cues), media_type="text/vtt")
        case "verbose_json":
            return JSONResponse(_verbose(transcription, fields, words))
        case "json":
            answer = {"text": transcription.text, "usage": usage_of(transcription)}
            return JSONResponse(answer | extras_json(transcription, fields))


def _verbose(
    transcription: Transcription,
    fields: TranscriptionForm,
    words: list[list[AlignedWord]] | None,
) -> dict[str, object]:
    cues = cut_segments(transcription.segments, words) if fields.with_cues else ()
    is_listed = words is not None and fields.with_words
    said = chain.from_iterable(words or ()) if is_listed else None
    return verbose_json(transcription, fields, said, cues)


class _StreamEvents:
    """What was sent of a streamed transcription."""

    def __init__(self, transcription: Transcription, fields: TranscriptionForm):
        self._transcription, self._fields = transcription, fields
        self._num_tokens = self._num_segments = 0

    def grown(self, delta: str) -> bytes:
        """Return the event for new text."""
        grown: dict[str, object] = {"type": "transcript.text.delta", "delta": delta}
        if self._fields.response_format == "diarized_json":
            grown["segment_id"] = segment_id(self._num_segments)
        if self._fields.with_logprobs:
            grown["logprobs"] = logprobs_json(self._transcription.tokens[self._num_tokens :])
            self._num_tokens = len(self._transcription.tokens)
        return event(grown)

    def ended(self) -> bytes:
        """Return the events of segments that have ended since, if segments were requested."""
        if self._fields.response_format not in ("verbose_json", "diarized_json"):
            return b""
        first, self._num_segments = self._num_segments, len(self._transcription.segments)
        # a key of OpenAI's that is empty unless speakers are told apart
        duration = {"duration": self._transcription.duration_s}
        shows_empty = self._fields.response_format == "verbose_json"
        return b"".join(
            event(diarized_segment(segment, first + place) | (duration if shows_empty else {}))
            for place, segment in enumerate(self._transcription.segments[first:])
            if segment.text or shows_empty
        )

    def rest(self) -> bytes:
        """Return the text not sent yet: a token that was incomplete before is complete now."""
        late = self._num_tokens < len(self._transcription.tokens) and self._fields.with_logprobs
        return (self.grown("") if late else b"") + self.ended()

    def done(self, words: list[list[AlignedWord]] | None) -> bytes:
        """Return the last event."""
        transcription, fields = self._transcription, self._fields
        last: dict[str, object] = {"type": "transcript.text.done", "text": transcription.text}
        if fields.response_format == "verbose_json":
            last |= _verbose(transcription, fields, words)
        last["usage"] = usage_of(transcription)
        return event(last | extras_json(transcription, fields))


async def _opened_events(
    opening: AbstractAsyncContextManager[Transcription],
    fields: TranscriptionForm,
    aligner: Aligner | None,
    upload: Upload,
    resources: ExitStack,
) -> AsyncGenerator[bytes]:
    """Yield the events of a transcription; `resources` is closed after the last one."""
    with resources:
        async with (
            opening as transcription,
            aclosing(_events(transcription, fields, aligner, upload)) as events,
        ):
            async for one in events:
                yield one


async def _events(
    transcription: Transcription,
    fields: TranscriptionForm,
    aligner: Aligner | None,
    upload: Upload,
) -> AsyncGenerator[bytes]:
    telling, begun = _StreamEvents(transcription, fields), False
    try:
        async with aclosing(transcription.deltas(live=True)) as deltas:
            async for delta in deltas:
                events = (telling.grown(delta) if delta else b"") + telling.ended()
                if events:
                    with upload.client_acts():
                        yield events
                    upload.go_on()
                    begun = True
        words = await _words(aligner, transcription, fields) if aligner else None
    except IzwiError as error:
        # Before the first event the error can still be an HTTP status.
        if not begun:
            raise
        yield error_line(error)
        return
    yield telling.rest() + telling.done(words)
