"""Transcribe audio: split it, submit many pieces at once, join their text.

Of a long sound only so many pieces are read and in work at a time, so that an hour takes no more
memory than some minutes. Knows no HTTP: the web and the command line both transcribe through here.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from uuid import uuid4

from msgspec import structs

from izwi.alignment import AlignmentModel
from izwi.audio.sound import within_full_scale
from izwi.audio.speech_detection import no_speech_probability
from izwi.engine_client import EngineClient, OutputStream
from izwi.errors import InvalidAudio
from izwi.inputs import Transcript, TranscriptionInput
from izwi.model import TranscriptionModel
from izwi.request import Request
from izwi.threads import compute
from izwi_api.http.usage import current_usage
from izwi_api.services.context import Registry, chunks_of, tokens_of
from izwi_api.services.text_tokens import TextToken, text_tokens, trimmed, within

SAMPLE_RATE = 16_000
# Pieces in work: about as many as the engine runs well together, unless they are so long that
# their samples and features (115 KB a second) would be what counts.
_MIN_AHEAD, _MAX_AHEAD = 2, 32
_MAX_AHEAD_S = 1200.0
# Reading the whole text anew for each token is quadratic, so partial text is read this often.
_DELTA_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class Segment:
    """What was said in one piece of the sound.

    Attributes:
        start_s: Where the piece begins, in seconds.
        end_s: Where it ends.
        token_ids: What the model emitted, stop ids left out.
        tokens: Of the text, where log probabilities were asked for; else none.
        no_speech_prob: How likely it is that nobody speaks, as `no_speech_probability`; 0.0 where
            speech detection is off. At 1.0 the model was not asked.
    """

    start_s: float
    end_s: float
    text: str
    language: str
    token_ids: tuple[int, ...]
    tokens: tuple[TextToken, ...] = ()
    no_speech_prob: float = 0.0


class Transcription:
    """A text while it is written. Call `abort` to stop early.

    Attributes:
        samples: The audio, within full scale; closed by the caller that opened it.
        duration_s: Of the sound.
        segments: The pieces that are done.
        text: All of it so far.
        tokens: Of that text, as far as they are whole, where log probabilities were asked for. In
            the end their bytes joined are `text`, but for repeats of a stuck decoder, which a
            text may have fewer of. A space between two pieces belongs to the token after it.
    """

    def __init__(
        self,
        model: TranscriptionModel,
        pieces: _Pieces,
    ):
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
        """What the engine read so far, for the bill."""
        return self._pieces.num_prompt_positions

    @property
    def token_ids(self) -> list[int]:
        """What the model emitted, all pieces in order."""
        return [token for segment in self.segments for token in segment.token_ids]

    @property
    def language(self) -> str:
        """The first language that was heard, empty if none was."""
        return next((s.language for s in self.segments if s.language), "")

    @property
    def language_codes(self) -> list[str]:
        """ISO 639 codes of all that were heard; of one without a code its name."""
        codes = self._model.language_codes
        heard = (s.language for s in self.segments if s.language)
        return list(dict.fromkeys(codes.get(name, name.lower()) for name in heard))

    async def deltas(self, *, live: bool = False) -> AsyncGenerator[str]:
        """Yield the text as it grows; the deltas joined are `text`.

        Args:
            live: Yield within pieces too, and an empty delta at the end of a piece that adds none.

        Raises:
            IzwiError: A piece failed.
        """
        try:
            async for piece in self._pieces.in_order():
                if piece.stream is None:
                    self.segments.append(piece.segment(Transcript("", ""), [], []))
                    if live:
                        yield ""
                    continue
                before, first = self.text, len(self.tokens)
                tokens: list[int] = []
                logprobs: list[float] = []
                last_read_s = time.monotonic()
                async for chunk in chunks_of(piece.stream):
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
        finally:
            self.abort()

    async def finish(self) -> None:
        """Wait until all of it is written."""
        async for _ in self.deltas():
            pass

    def abort(self) -> None:
        """Stop every piece that still runs."""
        self._pieces.abort()

    async def _read(self, tokens: list[int]) -> Transcript:
        return await asyncio.to_thread(self._model.read, tokens, self._language)

    async def _spell(
        self, before: str, piece: str, tokens: list[int], logprobs: list[float]
    ) -> list[TextToken]:
        """Tokens of a piece's text, led by what joins it to the text before."""
        if not self._logprobs:
            return []
        spelled = await asyncio.to_thread(self._model.spell, tokens, self._language)
        joint = joined(before, piece).removesuffix(piece)[len(before) :]
        return text_tokens(spelled, logprobs, joint)

    def _certain(self, partial: Transcript) -> str:
        """Return the part of an unfinished piece's text that more tokens will not change."""
        # Until the language is known the tokens may be spelling it, and not what was said.
        if not self._language and not partial.language:
            return ""
        # Half a character, or a space that may be stripped later, is not text yet.
        return partial.text.rstrip("\ufffd").rstrip()

    def _grow(self, before: str, piece: str) -> str:
        """Take a piece's text so far and return what is new; what was sent is never taken back."""
        text = joined(before, piece)
        if not text.startswith(self.text):
            return ""
        delta = text[len(self.text) :]
        self.text = text
        return delta


async def open_transcription(
    engine: EngineClient,
    registry: Registry,
    model_name: str,
    ask: TranscriptionInput,
    *,
    aligner: AlignmentModel | None = None,
    detects_speech: bool = True,
) -> Transcription:
    """Start to write down a sound.

    Args:
        engine: Runs it.
        registry: Has the model.
        model_name: Which.
        ask: The sound, and how.
        aligner: The pieces are cut so that it takes them too.
        detects_speech: Pieces without speech have empty text, and the model is not asked.

    Raises:
        ModelNotFound: No such model.
        InvalidAudio: There is no sound.
        InvalidRequest: What was asked cannot be done.
        Overloaded: The engine's queue is full; nothing was started.
    """
    model = registry.transcription(model_name)
    ask, places = await compute(_cut, model, ask, aligner)
    pieces = _Pieces(engine, model, model_name, ask, places, detects_speech)
    await pieces.start()
    return Transcription(model, pieces)


@dataclass(frozen=True, slots=True)
class _Piece:
    """One piece of a sound, and what the engine writes about it.

    Attributes:
        start: Its first sample.
        stop: The first sample behind it.
        no_speech_prob: See `Segment`.
        stream: None where it holds no speech.
    """

    start: int
    stop: int
    no_speech_prob: float
    stream: OutputStream | None

    def segment(
        self, transcript: Transcript, token_ids: list[int], tokens: list[TextToken]
    ) -> Segment:
        """What was said in it."""
        return Segment(
            self.start / SAMPLE_RATE,
            self.stop / SAMPLE_RATE,
            transcript.text,
            transcript.language,
            tuple(token_ids),
            tuple(tokens),
            self.no_speech_prob,
        )


class _Pieces:
    """The pieces of a sound, the first of which are in work.

    Attributes:
        ask: The whole sound, and how.
        num_prompt_positions: What the engine read so far.
    """

    def __init__(
        self,
        engine: EngineClient,
        model: TranscriptionModel,
        model_name: str,
        ask: TranscriptionInput,
        places: list[tuple[int, int]],
        detects_speech: bool,
    ):
        self._engine, self._model, self._model_name = engine, model, model_name
        self.ask, self._places, self._detects_speech = ask, places, detects_speech
        self.num_prompt_positions = 0
        self._id = f"transcription-{uuid4().hex}"
        self._begun: deque[_Piece] = deque()
        self._num_asked = 0
        usage = current_usage.get()
        self._usage = None if usage is None or usage.counts_itself else usage

    async def start(self) -> None:
        """Ask for the first pieces; raises as `open_transcription`."""
        num_first = num_together(self._places)
        prepared = await compute(self._prepare, self._places[:num_first])
        later = self._places[num_first:]
        # a key without the quota for all of it is refused before the first text
        self._charge(later)
        try:
            self._submit(prepared)
        except BaseException:
            self._give_back(later)
            raise

    async def in_order(self) -> AsyncGenerator[_Piece]:
        """Yield each piece; when it is done another one follows."""
        for number in range(1, len(self._places) + 1):
            yield self._begun[0]
            self._begun.popleft()
            while self._num_asked < number + num_together(self._places[number:]):
                await self._follow(self._places[self._num_asked])

    def abort(self) -> None:
        """Stop what still runs."""
        for piece in self._begun:
            if piece.stream is not None:
                piece.stream.abort()

    async def _follow(self, place: tuple[int, int]) -> None:
        prepared = await compute(self._prepare, [place])
        self._give_back([place])  # the engine charges for what it takes
        self._submit(prepared)

    def _charge(self, places: list[tuple[int, int]]) -> None:
        if self._usage is not None and places:
            self._usage.charge(heard_s=_seconds(places))

    def _give_back(self, places: list[tuple[int, int]]) -> None:
        if self._usage is not None and places:
            self._usage.give_back(heard_s=_seconds(places))

    def _prepare(self, places: list[tuple[int, int]]) -> list[tuple[_Piece, Request | None]]:
        """Pieces without streams, and what the engine is asked about each, if it holds speech."""
        prepared: list[tuple[_Piece, Request | None]] = []
        for number, (start, stop) in enumerate(places, self._num_asked):
            samples = self.ask.samples[start:stop]
            part = structs.replace(self.ask, samples=samples)
            name = f"{self._id}-{number}"
            # first, also for a piece without speech: this says what is wrong with sound or request
            request = self._model.prepare_transcription(name, self._model_name, part)
            no_speech_prob = no_speech_probability(samples) if self._detects_speech else 0.0
            piece = _Piece(start, stop, no_speech_prob, None)
            # of one listener, who is not refused in the middle where the queue is full
            again = len(self._places) <= _MAX_AHEAD  # an hour of audio is not sent twice
            request = structs.replace(request, listener=self._id, cacheable=again)
            prepared.append((piece, request if no_speech_prob < 1.0 else None))
        return prepared

    def _submit(self, prepared: list[tuple[_Piece, Request | None]]) -> None:
        requests = [request for _, request in prepared if request is not None]
        streams = iter(self._engine.submit_all(requests) if requests else ())
        for piece, request in prepared:
            stream = None if request is None else next(streams)
            self._begun.append(replace(piece, stream=stream))
        self._num_asked += len(prepared)
        self.num_prompt_positions += sum(request.prompt.num_positions for request in requests)


def num_together(places: Sequence[tuple[int, int]]) -> int:
    """How many pieces, from the first on, may be in work at the same time.

    Args:
        places: Where they are, [start, stop) in samples.
    """
    ends = accumulate(stop - start for start, stop in places[:_MAX_AHEAD])
    num_fitting = sum(end <= _MAX_AHEAD_S * SAMPLE_RATE for end in ends)
    return max(num_fitting, min(_MIN_AHEAD, len(places)))


def joined(before: str, piece: str) -> str:
    """Put a space between two texts, except in scripts that write without."""
    if not before or not piece or _is_spaceless(before[-1]) or _is_spaceless(piece[0]):
        return before + piece
    return f"{before} {piece}"


def _is_spaceless(character: str) -> bool:
    # Han, kana, CJK punctuation, full-width forms, Thai; Hangul writes with spaces.
    code = ord(character)
    return 0x3000 <= code <= 0x9FFF or 0xFF00 <= code <= 0xFFEF or 0x0E00 <= code <= 0x0E7F


def _cut(
    model: TranscriptionModel, ask: TranscriptionInput, aligner: AlignmentModel | None
) -> tuple[TranscriptionInput, list[tuple[int, int]]]:
    """The sound within full scale, and where its pieces are, in samples."""
    if len(ask.samples) == 0:
        raise InvalidAudio("the audio is empty: its length is zero", param="file")
    # Over full scale the whole clip is turned down, as the reference does before it cuts.
    samples = within_full_scale(ask.samples)
    ask = structs.replace(ask, samples=samples)
    if aligner is None:
        return ask, model.split_audio(samples)
    return ask, [
        (whole + start, whole + stop)
        for whole, end in aligner.split_audio(samples)
        for start, stop in model.split_audio(samples[whole:end])
    ]


def _seconds(places: list[tuple[int, int]]) -> float:
    return sum(stop - start for start, stop in places) / SAMPLE_RATE
