"""What routes work with: engine, served models, settings and voices."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import numpy as np

from izwi.arrays import Int64
from izwi.engine_client.protocol import Answer, EngineClient
from izwi.errors import EngineStopped, IzwiError
from izwi.model.frontend import AudioEntries
from izwi.request.request import Chunk, Reason
from izwi_api.services.answer_figures import AnswerFigures, TurnEvent
from izwi_api.services.decoding import Decoder, InProcess
from izwi_api.services.images import ImageDecoder
from izwi_api.services.models.served import ServedModels
from izwi_api.services.production_pace import ProductionPace
from izwi_api.services.store.answers import StoredAnswers
from izwi_api.services.store.completions import StoredCompletions
from izwi_api.services.store.responses import StoredResponses
from izwi_api.services.uploads import Uploads
from izwi_api.sessions.loop_turns import LoopTurns
from izwi_api.settings import Settings
from izwi_api.voices.references import References
from izwi_api.voices.store import VoiceStore


@dataclass(frozen=True, slots=True)
class Services:
    """What routes need.

    Attributes:
        engine: For its state and figures; requests go through a served model.
        registry: The served models.
        decoder: Decodes all files from outside.
        references: Fetches clips that are given as URLs.
        answers: Spoken answers of the last hour, by id.
        responses: Conversations of the last hour, by response id.
        completions: Stored chat completions of the last hour.
        count_prepared: Counts an answer of a live session that was prepared before its turn ended,
            and whether it was given.
        count_turn: Counts the turns and interruptions of live sessions.
        report_answer: Takes the figures of each spoken answer of a live session.
        pace: The pace at which spoken answers are made.
        uploads: The files that are read and decoded, and those that wait for it.
        images: Decodes images.
        loop_turns: When the next piece of a long message of a live session may be processed.
    """

    engine: EngineClient
    registry: ServedModels
    settings: Settings
    voices: VoiceStore
    decoder: Decoder = field(default_factory=InProcess)
    references: References = field(default_factory=References)
    answers: StoredAnswers = field(default_factory=StoredAnswers)
    responses: StoredResponses = field(default_factory=StoredResponses)
    completions: StoredCompletions = field(default_factory=StoredCompletions)
    count_prepared: Callable[[bool], None] = lambda _: None
    report_answer: Callable[[AnswerFigures], None] = lambda _: None
    count_turn: Callable[[TurnEvent], None] = lambda _: None
    pace: ProductionPace = field(default_factory=ProductionPace)
    uploads: Uploads = field(default_factory=Uploads)
    images: ImageDecoder = field(default_factory=ImageDecoder)
    loop_turns: LoopTurns = field(default_factory=LoopTurns)


# The text track, in every model that has one.
TEXT_TRACK = 0


def tokens_of(chunk: Chunk) -> list[int]:
    """Return the text tokens of a chunk, without frames that the model emits between them."""
    tokens: list[int] = chunk.of_track(TEXT_TRACK).ravel().tolist()
    return tokens


def frames_of(chunk: Chunk, audio: AudioEntries) -> Int64:
    """Return the frames of a chunk that are decoded to audio, (n, codebooks) int64.

    Args:
        chunk: Of a model that speaks.
        audio: `SpeechFrontend.audio_entries` of the model.
    """
    if chunk.tracks is None:
        return chunk.entries
    frames = chunk.of_track(audio.track)
    if not len(frames):
        return frames
    return frames[~np.isin(frames[:, 0], list(audio.silent_ids))]


async def chunks_of(answer: Answer) -> AsyncIterator[Chunk]:
    """Yield an answer's chunks up to its last.

    Raises:
        IzwiError: The request failed; an error of another kind becomes an internal one.
        EngineStopped: The engine ended the request, so the output is incomplete.
    """
    async for chunk in answer:
        if chunk.reason is Reason.ERROR:
            if isinstance(chunk.error, IzwiError):
                raise chunk.error
            raise IzwiError("the engine failed on this request") from chunk.error
        if chunk.reason is Reason.ABORTED:
            raise EngineStopped("the request was ended before it was complete")
        yield chunk
        if chunk.reason is not None:
            return
    raise EngineStopped("the engine stopped before the request was complete")
