"""Transcribe audio: split it, submit several pieces at once, join their text.

Only a limited number of pieces is loaded and in flight at a time, so that an hour of audio takes no
more memory than a few minutes. Without HTTP: endpoints and commands transcribe through this module.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple
from uuid import uuid4

from msgspec import structs

from izwi.audio.decoded_audio import within_full_scale
from izwi.audio.speech_detection import no_speech_probability
from izwi.engine_client.protocol import Answer
from izwi.errors import InvalidAudio
from izwi.host.threads import compute
from izwi.inputs.speech import Transcript, TranscriptionInput
from izwi.model.alignment import AlignmentFrontend
from izwi.model.frontend import TranscriptionFrontend
from izwi.request.request import Request
from izwi_api.services.context import chunks_of, tokens_of
from izwi_api.services.generation import ChargedGeneration, Generation
from izwi_api.services.models.served import ServedModel
from izwi_api.services.transcription.text_tokens import TextToken, text_tokens, trimmed, within
from izwi_api.services.uploads import Upload
from izwi_api.usage.metering import Charge, seconds

SAMPLE_RATE = 16_000
# Pieces in flight: about as many as the engine batches well, but fewer if they are so long that
# their samples and features (115 KB a second) would take too much memory.
_MIN_AHEAD, _MAX_AHEAD = 2, 32
_MAX_AHEAD_S = 1200.0
# Decoding the whole text for each token would be quadratic, so partial text is decoded this often.
_DELTA_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class Segment:
    """The transcript of one piece of the audio.

    Attributes:
        start_s: Start of the piece in seconds.
        end_s: End of the piece in seconds.
        token_ids: Ids that the model emitted, without stop ids.
        tokens: Tokens of the text, if log probabilities were requested; else none.
        no_speech_prob: Probability of no speech, from `no_speech_probability`; 0.0 if speech
            detection is off. At 1.0 the model was not run.
        speaker: Who speaks, if speakers were told apart; else empty.
    """

    start_s: float
    end_s: float
    text: str
    language: str
    token_ids: tuple[int, ...]
    tokens: tuple[TextToken, ...] = ()
    no_speech_prob: float = 0.0
    speaker: str = ""


class Transcription(Generation):
    """A transcription in progress. Leaving its context aborts it.

    Attributes:
        samples: The audio, within full scale; closed by the caller that opened it.
        duration_s: Duration of the audio in seconds.
        segments: The completed pieces.
        text: The text so far.
        tokens: Complete tokens of the text so far, if log probabilities were requested. At the end
            their joined bytes equal `text`, except that repetitions of a stuck decoder may be
            removed from the text. A space between two pieces belongs to the token after it.
    """

    def __init__(self, model: TranscriptionFrontend, pieces: _Pieces):
        ask = pieces.ask
        self.samples = ask.samples
        self.duration_s = len(ask.samples) / SAMPLE_RATE
        self.segments: list[Segment] = []
        self.text = ""
        self.tokens: list[TextToken] = []
        self._logprobs = ask.logprobs
        self._model = model
        self._language = ask.language
        self._pieces = pieces

    @property
    def num_prompt_positions(self) -> int:
        """Prompt positions that the engine computed so far, for usage."""
        return self._pieces.num_prompt_positions

    @property
    def token_ids(self) -> list[int]:
        """Ids that the model emitted, of all pieces in order."""
        return [token for segment in self.segments for token in segment.token_ids]

    @property
    def language(self) -> str:
        """The first language that was detected; empty if none was."""
        return next((s.language for s in self.segments if s.language), "")

    @property
    def language_codes(self) -> list[str]:
        """ISO 639 codes of all detected languages; the name of a language without a code."""
        codes = self._model.language_codes
        heard = (s.language for s in self.segments if s.language)
        return list(dict.fromkeys(codes.get(name, name.lower()) for name in heard))

    async def deltas(self, *, live: bool = False) -> AsyncGenerator[str]:
        """Yield the text as it grows; the joined deltas are `text`.

        Args:
            live: Also yield within pieces, and an empty delta after a piece that adds no text.

        Raises:
            IzwiError: A piece failed.
        """
        with self._pieces.reading():
            async for piece in self._pieces.in_order():
                if piece.answer is None:
                    self.segments.append(piece.segment(Transcript("", ""), [], []))
                    if live:
                        yield ""
                    continue
                before, first = self.text, len(self.tokens)
                tokens: list[int] = []
                logprobs: list[float] = []
                last_read_s = time.monotonic()
                async for chunk in chunks_of(piece.answer):
                    tokens += tokens_of(chunk)
                    logprobs += [] if chunk.logprobs is None else chunk.logprobs.tolist()
                    now_s = time.monotonic()
                    if live and tokens and now_s - last_read_s >= _DELTA_INTERVAL_S:
                        last_read_s = now_s
                        certain = self._certain(await self._read(tokens))
                        delta = self._grow(before, certain)
                        if delta:
                            spelled = await self._spell(before, certain, tokens, logprobs)
                            self.tokens[first:] = within(spelled, self.text[len(before) :])
                            yield delta
                transcript = await self._read(tokens)
                spelled = await self._spell(before, transcript.text, tokens, logprobs)
                self.tokens[first:] = trimmed(spelled)
                self.segments.append(piece.segment(transcript, tokens, self.tokens[first:]))
                delta = self._grow(before, transcript.text)
                if delta or live:
                    yield delta

    def sources(self) -> tuple[_Pieces]:
        """Return the pieces of the audio."""
        return (self._pieces,)

    def output(self) -> AsyncGenerator[str]:
        """Yield the text, piece by piece."""
        return self.deltas()

    async def _read(self, tokens: list[int]) -> Transcript:
        return await asyncio.to_thread(self._model.read, tokens, self._language)

    async def _spell(
        self, before: str, piece: str, tokens: list[int], logprobs: list[float]
    ) -> list[TextToken]:
        """Return the tokens of a piece's text, including what joins it to the text before."""
        if not self._logprobs:
            return []
        spelled = await asyncio.to_thread(self._model.spell, tokens, self._language)
        joint = joined(before, piece).removesuffix(piece)[len(before) :]
        return text_tokens(spelled, logprobs, joint)

    def _certain(self, partial: Transcript) -> str:
        """Return the part of an unfinished piece's text that later tokens cannot change."""
        # Until the language is known, the tokens may spell its name and not the transcript.
        if not self._language and not partial.language:
            return ""
        # An incomplete character, or a space that may be stripped later, is not text yet.
        return partial.text.rstrip("\ufffd").rstrip()

    def _grow(self, before: str, piece: str) -> str:
        """Add a piece's text so far and return the new part; sent text is never retracted."""
        text = joined(before, piece)
        if not text.startswith(self.text):
            return ""
        delta = text[len(self.text) :]
        self.text = text
        return delta


class SpokenPiece(NamedTuple):
    """A part of the audio in which one speaker speaks, [start, stop) in samples at 16 kHz."""

    start: int
    stop: int
    speaker: str


@dataclass(frozen=True, slots=True)
class PieceOptions:
    """How audio is cut, and which of its pieces run.

    Attributes:
        aligner: If given, pieces are cut short enough for it.
        detects_speech: Give pieces without speech an empty text, without running the model.
        upload: The file that the audio is from; it limits the pieces in flight.
        spoken: The pieces, if speakers were told apart; the model then does not cut.
    """

    aligner: AlignmentFrontend | None = None
    detects_speech: bool = True
    upload: Upload | None = None
    spoken: Sequence[SpokenPiece] = ()


_PLAIN = PieceOptions()


async def open_transcription(
    model: ServedModel[TranscriptionFrontend],
    ask: TranscriptionInput,
    options: PieceOptions = _PLAIN,
) -> Transcription:
    """Start a transcription.

    Args:
        model: The transcription model.
        ask: The audio and the options.
        options: How it is cut, and which pieces run.

    Raises:
        InvalidAudio: The audio is empty.
        InvalidRequest: The model cannot do what was requested.
        Overloaded: The engine's queue is full; nothing was started.
    """
    model.check_admission()
    ask, places = await compute(_cut, model.frontend, ask, options)
    pieces = _Pieces(model, ask, places, options)
    await pieces.start()
    return Transcription(model.frontend, pieces)


@dataclass(frozen=True, slots=True)
class _Piece:
    """One piece of the audio and the engine's answer.

    Attributes:
        start: Index of its first sample.
        stop: Index after its last sample.
        no_speech_prob: See `Segment`.
        answer: None if the piece contains no speech.
        speaker: See `Segment`.
    """

    start: int
    stop: int
    no_speech_prob: float
    answer: Answer | None
    speaker: str = ""

    @property
    def heard_s(self) -> float:
        """Seconds that the model transcribes: none if the piece has no speech."""
        return seconds(self.stop - self.start) if self.no_speech_prob < 1.0 else 0.0

    def segment(
        self, transcript: Transcript, token_ids: list[int], tokens: list[TextToken]
    ) -> Segment:
        """Return the piece as a segment."""
        return Segment(
            self.start / SAMPLE_RATE,
            self.stop / SAMPLE_RATE,
            transcript.text,
            transcript.language,
            tuple(token_ids),
            tuple(tokens),
            self.no_speech_prob,
            self.speaker,
        )


class _Pieces(ChargedGeneration):
    """The pieces of the audio; a limited number of them is in flight.

    Attributes:
        ask: The whole audio and the options.
        num_prompt_positions: Prompt positions that the engine computed so far.
    """

    def __init__(
        self,
        model: ServedModel[TranscriptionFrontend],
        ask: TranscriptionInput,
        places: list[tuple[int, int]],
        options: PieceOptions,
    ):
        super().__init__(Charge())
        self._model = model
        self.ask, self._places = ask, places
        self._detects_speech, self._upload = options.detects_speech, options.upload
        self._speakers = [piece.speaker for piece in options.spoken]
        self.num_prompt_positions = 0
        self._id = f"transcription-{uuid4().hex}"
        self._begun: deque[_Piece] = deque()
        self._num_asked = 0

    async def start(self) -> None:
        """Submit the first pieces; raises as `open_transcription`."""
        num_first = self._most_in_flight(0)
        if self._upload is not None:
            self._upload.expect(num_together(self._places))
            self._upload.count(num_first)
        prepared = await self._prepare_each(self._places[:num_first])
        # a key without the quota for all of it is refused before the first text
        later = self._places[num_first:]
        self._charge.add(heard_s=_seconds(later) + sum(piece.heard_s for piece, _ in prepared))
        with self._charge.unless_refused():
            self._submit(prepared)

    async def in_order(self) -> AsyncGenerator[_Piece]:
        """Yield each piece in order; submit another whenever one completes."""
        for number in range(1, len(self._places) + 1):
            yield self._begun[0]
            self._begun.popleft()
            if self._upload is not None:
                self._upload.count(len(self._begun))
            while self._num_asked < number + self._most_in_flight(number):
                await self._follow(self._places[self._num_asked])
                if self._upload is not None:
                    self._upload.count(len(self._begun))

    def sources(self) -> list[Answer]:
        """Return the engine's answers for the pieces in flight."""
        return [piece.answer for piece in self._begun if piece.answer is not None]

    def refund_unread(self) -> None:
        """Refund the charge for the piece that is being read and those that follow."""
        heard_s = sum(piece.heard_s for piece in self._begun)
        self._charge.refund(heard_s=heard_s + _seconds(self._places[self._num_asked :]))

    def _most_in_flight(self, number: int) -> int:
        """Return how many pieces may be in flight from a piece on."""
        alone = num_together(self._places[number:])
        return alone if self._upload is None else self._upload.most_in_flight(alone)

    async def _follow(self, place: tuple[int, int]) -> None:
        ((piece, request),) = await self._prepare_each([place])
        if request is None:  # the model is not run
            self._charge.refund(heard_s=_seconds([place]))
        try:
            self._submit([(piece, request)])
        except BaseException:
            self._charge.refund(heard_s=piece.heard_s)
            raise

    async def _prepare_each(
        self, places: list[tuple[int, int]]
    ) -> list[tuple[_Piece, Request | None]]:
        """Prepare pieces one by one, so that other callers have their turn between them."""
        numbered = enumerate(places, self._num_asked)
        return [await compute(self._prepare, number, place) for number, place in numbered]

    def _prepare(self, number: int, place: tuple[int, int]) -> tuple[_Piece, Request | None]:
        """Return a piece without an answer, and its request; None if it has no speech."""
        start, stop = place
        samples = self.ask.samples[start:stop]
        part = structs.replace(self.ask, samples=samples)
        name = f"{self._id}-{number}"
        # also for a piece without speech, because this validates the audio and the options
        request = self._model.frontend.prepare_transcription(name, self._model.name, part)
        no_speech_prob = no_speech_probability(samples) if self._detects_speech else 0.0
        speaker = self._speakers[number] if self._speakers else ""
        piece = _Piece(start, stop, no_speech_prob, None, speaker)
        # one listener for all pieces, so that a full queue does not refuse a later piece
        again = len(self._places) <= _MAX_AHEAD  # long audio is unlikely to be sent again
        request = structs.replace(request, listener=self._id, cacheable=again)
        return piece, request if no_speech_prob < 1.0 else None

    def _submit(self, prepared: list[tuple[_Piece, Request | None]]) -> None:
        requests = [request for _, request in prepared if request is not None]
        answers = iter(self._model.submit_all(requests) if requests else ())
        for piece, request in prepared:
            answer = None if request is None else next(answers)
            if answer is not None and self.is_paused:
                answer.pause()
            self._begun.append(replace(piece, answer=answer))
        self._num_asked += len(prepared)
        self.num_prompt_positions += sum(request.prompt.num_positions for request in requests)


def num_together(places: Sequence[tuple[int, int]]) -> int:
    """Return how many of the first pieces may be in flight at the same time.

    Args:
        places: Pieces as [start, stop) in samples.
    """
    ends = accumulate(stop - start for start, stop in places[:_MAX_AHEAD])
    num_fitting = sum(end <= _MAX_AHEAD_S * SAMPLE_RATE for end in ends)
    return max(num_fitting, min(_MIN_AHEAD, len(places)))


def joined(before: str, piece: str) -> str:
    """Join two texts by a space, except in scripts that are written without spaces."""
    if not before or not piece or _is_spaceless(before[-1]) or _is_spaceless(piece[0]):
        return before + piece
    return f"{before} {piece}"


def _is_spaceless(character: str) -> bool:
    # Han, kana, CJK punctuation, full-width forms, Thai; Hangul writes with spaces.
    code = ord(character)
    return 0x3000 <= code <= 0x9FFF or 0xFF00 <= code <= 0xFFEF or 0x0E00 <= code <= 0x0E7F


def _cut(
    model: TranscriptionFrontend, ask: TranscriptionInput, options: PieceOptions
) -> tuple[TranscriptionInput, list[tuple[int, int]]]:
    """Return the audio within full scale, and its pieces as [start, stop) in samples."""
    if len(ask.samples) == 0:
        raise InvalidAudio("the audio is empty: its length is zero", param="file")
    # If a sample exceeds full scale, the whole clip is attenuated before the cut, as in the
    # reference implementation.
    samples = within_full_scale(ask.samples)
    ask = structs.replace(ask, samples=samples)
    if options.spoken:
        return ask, [(piece.start, piece.stop) for piece in options.spoken]
    aligner = options.aligner
    if aligner is None:
        return ask, model.split_audio(samples)
    return ask, [
        (whole + start, whole + stop)
        for whole, end in aligner.split_audio(samples)
        for start, stop in model.split_audio(samples[whole:end])
    ]


def _seconds(places: list[tuple[int, int]]) -> float:
    return seconds(sum(stop - start for start, stop in places))
