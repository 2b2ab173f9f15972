"""Transcribe audio while it arrives. Pure: samples and tokens in, steps and text out; no clock.

Audio is cut at silence into segments. Each chunk of 2 s starts a step that decodes the segment
again, beginning with the settled part of the previous answer. The work that a step repeats is
bounded by the segment, not by the recording: the encoder's incomplete window (at most 8 s) and the
segment's text. Features and complete windows are computed once. Prompts of one segment share a
prefix, so its keys and values are computed once too, if the prefix cache keeps them.

Source: qwen_asr 0.0.6, inference/qwen3_asr.py `streaming_transcribe` and
`finish_streaming_transcribe`. Differences, besides those in prefix.py and features.py:

* The reference has no segments: every 2 s it encodes and decodes all audio since the beginning.
* A step has whole chunks, and waits for the 2.5 ms of audio that their last frame needs after
  them. The reference mirrors the audio instead; here only the end of a segment is mirrored.
* The last step of a segment always runs; the reference skips it if no audio follows a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np

from izwi.arrays import Float32
from izwi.audio.mel import WHISPER_HOP, WHISPER_LOOKAHEAD, WHISPER_MIN_SAMPLES, WHISPER_RATE
from izwi.audio.pauses import Float64, frame_levels_db, frame_samples
from izwi.audio.split import cut_rules
from izwi.errors import InvalidRequest
from izwi.request.input_stream import PartialTranscript
from izwi.request.request import EncodeInput
from izwi_models.qwen3_asr.config import AsrConfig, AudioConfig
from izwi_models.qwen3_asr.features import SegmentFeatures
from izwi_models.qwen3_asr.prefix import (
    AnswerTokens,
    StablePrefix,
    StreamRules,
    common_prefix,
)
from izwi_models.qwen3_asr.text import TEXT_TAG, parse_answer

_MIN_CHUNK_SECONDS = 0.2  # shorter chunks would update the text faster than it can be read
# New audio may change about the last four words: five tokens of the published vocabulary, or twenty
# of a vocabulary of a thousand pieces.
_SMALL_VOCABULARY, _SMALL_UNFIXED_TOKENS = 16_384, 20


@dataclass(frozen=True, slots=True, eq=False)
class StreamStep:
    """One decoding of the segment in flight.

    Attributes:
        segment: Index of the segment in the stream.
        start: First sample of the segment in the stream.
        stop: One past the last sample of this step, in the stream.
        is_final: The segment ends here, so its text is final.
        windows: Features, (128, frames) each.
        prefix: Text that the answer begins with.
        num_again: Number of tokens of the previous answer that are not in the prefix.
        new_s: Seconds of audio since the previous answer.
    """

    segment: int
    start: int
    stop: int
    is_final: bool
    windows: tuple[EncodeInput, ...]
    prefix: str
    num_again: int
    new_s: float

    @property
    def seconds(self) -> float:
        """Seconds of audio in the segment so far."""
        return (self.stop - self.start) / WHISPER_RATE


class AsrStream:
    """One stream of audio. Call `next_step`, run the step or skip it, pass its tokens to `take`.

    Only the audio and features of one segment are kept in memory.
    """

    def __init__(
        self,
        tokens: AnswerTokens,
        config: AudioConfig,
        rules: StreamRules,
        *,
        language: str | None = None,
        context: str = "",
    ):
        self.language, self.context = language, context
        self._tokens, self._config, self._rules = tokens, config, rules
        self._limit = int(rules.segment_s * WHISPER_RATE)
        self._cuts = cut_rules(WHISPER_RATE, limit_s=rules.segment_s, search_s=rules.search_s)
        self._enough = self._cuts.enough
        self._pieces: list[Float32] = []
        self._buffered = 0  # samples in the pieces, the segment's first one first
        self._start = 0
        self._is_closed = False
        self._segment = -1
        self._levels_db: Float64 = np.zeros(0)  # of the segment's frames of 20 ms
        self._num_settled: int = 0  # samples whose text was reported as stable: no cut before them
        self._begin_segment(0)

    @property
    def room(self) -> int:
        """Number of samples that can still be used before the next step; more only wait."""
        return max(0, self._enough - self._buffered)

    def write(self, samples: Float32) -> None:
        """Add the next samples, (n,) float32 mono at 16 kHz, clipped to full scale.

        Call it before `close`, from any thread, but not during another call.
        """
        self._pieces.append(np.clip(samples, -1.0, 1.0))
        self._buffered += len(samples)

    def close(self) -> None:
        """Mark the end of the audio."""
        self._is_closed = True

    def is_due(self, more: int = 0) -> bool:
        """Return whether there would be a new step after writing `more` samples."""
        buffered = self._buffered + more
        return (
            buffered >= self._enough
            or self._num_chunks(buffered) > self._asked_chunks
            or (self._is_closed and buffered >= WHISPER_MIN_SAMPLES)
        )

    def next_step(self) -> StreamStep | None:
        """Return the step for all audio that can be decoded now; None if more audio is needed.

        After `close`, None means that the transcript is complete; less than 13 ms of audio remain
        then, which are ignored. Computes features: some milliseconds per second of new audio.
        """
        if not self.is_due():
            return None
        if self._buffered >= self._enough or self._is_closed:
            return self._last_step()
        chunks = self._num_chunks(self._buffered)
        stop = chunks * self._rules.chunk_samples
        samples = self._gathered()
        self._features.write(samples[self._features.num_samples : stop + WHISPER_LOOKAHEAD])
        self._asked_chunks = chunks
        windows = self._features.windows(stop // WHISPER_HOP)
        return self._step(stop, windows, is_final=False)

    def add_tokens(self, step: StreamStep, token_ids: Seq[int]) -> PartialTranscript:
        """Add the token ids emitted for the last step, without stop ids; return its transcript."""
        _, last = self._answer_until(step.stop - step.start)
        raw = step.prefix + self._tokens.decode(token_ids)
        answer = StablePrefix(raw, step.prefix, last.raw)
        transcript = parse_answer(answer.raw, self.language)
        heard = PartialTranscript(
            segment=step.segment,
            start_s=step.start / WHISPER_RATE,
            end_s=step.stop / WHISPER_RATE,
            is_final=step.is_final,
            language=transcript.language,
            text=transcript.text,
            stable=transcript.text,
        )
        if step.is_final:
            self._begin_segment(step.stop)
            return heard
        self._answers.append((step.stop - step.start, answer))
        # tokens before the tag may be the name of the language instead of text
        if not self._has_text(answer.raw):
            return replace(heard, text="", stable="")
        # all of the settled text, unless repetitions were collapsed
        return replace(heard, stable=common_prefix(self._settled_text(), heard.text))

    def _last_step(self) -> StreamStep:
        samples = self._gathered()
        stop = len(samples)
        if stop > self._limit:
            stop = self._cuts.first_cut(samples[: self._enough], self._num_settled)
        self._features.write(samples[self._features.num_samples : stop])
        windows = self._features.all_windows(samples[:stop])
        return self._step(stop, windows, is_final=True)

    def _step(self, length: int, windows: tuple[EncodeInput, ...], *, is_final: bool) -> StreamStep:
        rules, tokens = self._rules, self._tokens
        # text of audio after the cut belongs to the next segment
        heard, answer = self._answer_until(length)
        chunks = length // rules.chunk_samples
        if is_final:
            prefix = answer.for_end(chunks, rules, tokens)
        else:
            prefix = answer.for_chunk(chunks - 1, rules, tokens)
        return StreamStep(
            segment=self._segment,
            start=self._start,
            stop=self._start + length,
            is_final=is_final,
            windows=windows,
            prefix=prefix,
            num_again=max(0, len(tokens.encode(answer.raw)) - len(tokens.encode(prefix))),
            new_s=(length - heard) / WHISPER_RATE,
        )

    def _answer_until(self, length: int) -> tuple[int, StablePrefix]:
        """Return the last answer for at most `length` samples, after its number of samples."""
        fitting = [entry for entry in self._answers if entry[0] <= length]
        return fitting[-1] if fitting else (0, StablePrefix())

    def _settled_text(self) -> str:
        """Return the text that no later answer changes, for any later cut of the segment."""
        rules = self._rules
        heard, answer = self._answer_until(max(self._num_settled, self._earliest_cut()))
        kept = answer.for_chunk(heard // rules.chunk_samples, rules, self._tokens)
        text = parse_answer(kept, self.language).text if self._has_text(kept) else ""
        if text:
            self._num_settled = heard
        return text

    def _earliest_cut(self) -> int:
        """Return where the segment may be cut, judged by the audio so far; in samples of it."""
        known = len(self._levels_db) * frame_samples(WHISPER_RATE)
        levels_db = frame_levels_db(self._gathered()[known : self._enough], WHISPER_RATE)
        self._levels_db = np.concatenate([self._levels_db, levels_db])
        return self._cuts.earliest_cut(self._levels_db)

    def _has_text(self, raw: str) -> bool:
        return self.language is not None or TEXT_TAG in raw

    def _begin_segment(self, start: int) -> None:
        """Begin a segment at sample `start` of the stream, and drop all samples before it."""
        if start > self._start:
            rest = self._gathered()[start - self._start :].copy()
            self._pieces, self._buffered = [rest], len(rest)
        self._start = start
        self._segment += 1
        self._features = SegmentFeatures(self._config, self._limit)
        self._answers: list[tuple[int, StablePrefix]] = []
        self._asked_chunks = 0
        self._levels_db = self._levels_db[:0]
        self._num_settled = 0

    def _num_chunks(self, buffered: int) -> int:
        ready = min(buffered - WHISPER_LOOKAHEAD, self._limit)
        return max(0, ready) // self._rules.chunk_samples

    def _gathered(self) -> Float32:
        samples = np.concatenate(self._pieces)
        self._pieces = [samples]
        return samples


def stream_rules(config: AsrConfig, chunk_s: float | None) -> StreamRules:
    """Return the streaming rules of a checkpoint.

    Raises:
        InvalidRequest: The chunk is not within 0.2 s and the longest segment.
    """
    rules = StreamRules()
    segment_s = min(rules.segment_s, config.max_audio_seconds or rules.segment_s)
    if chunk_s is None:
        chunk_s = min(rules.chunk_s, segment_s)
    if not _MIN_CHUNK_SECONDS <= chunk_s <= segment_s:
        raise InvalidRequest(
            f"chunk_s must be within {_MIN_CHUNK_SECONDS} and {segment_s:g}, got {chunk_s}",
            param="chunk_s",
        )
    is_small = config.text.vocab_size < _SMALL_VOCABULARY
    return StreamRules(
        chunk_s=chunk_s,
        unfixed_tokens=_SMALL_UNFIXED_TOKENS if is_small else rules.unfixed_tokens,
        is_agreed=is_small,
        segment_s=segment_s,
        search_s=min(rules.search_s, segment_s / 8),
    )
