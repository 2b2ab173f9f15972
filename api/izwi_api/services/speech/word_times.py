"""Compute word times of speech while it is synthesised. Without HTTP.

Each piece of text is aligned with its audio as soon as the audio is complete, while the next piece
is synthesised. The audio is aligned at its original speed; times are then scaled to the delivered
speed. Audio that is too long for the aligner is cut in silence, and its text in proportion to the
speech before the cut. If a piece cannot be aligned, it has no words and the speech continues.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from izwi.arrays import Float32
from izwi.audio.resample import resample
from izwi.engine_client.protocol import Abortable
from izwi.errors import InvalidAudio, InvalidRequest, ModelNotFound
from izwi.host.threads import compute
from izwi.inputs.speech import AlignmentInput
from izwi.model.alignment import AlignedWord, AlignmentFrontend
from izwi.request.request import Chunk
from izwi_api.services.models.served import ServedModels
from izwi_api.services.speech.synthesis import Speech
from izwi_api.services.speech.text_shares import cut_text, spoken_shares
from izwi_api.services.transcription.align import Aligner, find_aligner
from izwi_api.services.transcription.transcribe import SAMPLE_RATE

logger = logging.getLogger(__name__)

PARAM = "word_timestamps"
# Values of a speech model's language option that do not name a language.
_ANY_LANGUAGE = frozenset({"", "auto"})


class TimedSpeech(Abortable):
    """Speech with the times of its words. Leaving its context aborts it.

    Args:
        speech: The speech; none of it has been read yet.
        aligner: Computes the word times.
        language: Language of the text; None if unknown.
        speed: Playback speed of the delivered audio.

    Attributes:
        sample_rate: Of the audio in Hz, before its speed is changed.
    """

    def __init__(self, speech: Speech, aligner: Aligner, language: str | None, speed: float):
        self.sample_rate = speech.sample_rate
        self._speech, self._aligner = speech, aligner
        self._language, self._speed = language, speed
        self._texts = deque(speech.texts)
        self._heard: list[Float32] = []  # of the current piece
        self._num_samples = 0  # of the pieces before it
        self._alignments: deque[asyncio.Task[list[AlignedWord]]] = deque()

    @property
    def num_prompt_positions(self) -> int:
        """Prompt positions that the engine computed, for usage."""
        return self._speech.num_prompt_positions

    @property
    def num_frames(self) -> int:
        """Frames generated so far."""
        return self._speech.num_frames

    async def output(self) -> AsyncGenerator[Chunk]:
        """Yield the chunks of the speech."""
        async with aclosing(self._speech.output()) as chunks:
            async for chunk in chunks:
                if chunk.pcm is not None:
                    self._heard.append(chunk.pcm)
                if chunk.reason is not None:
                    self._align_piece()
                yield chunk

    def known(self) -> list[AlignedWord]:
        """Take the words that were aligned since the last call, in the order of the text.

        A piece that could not be aligned has no words; the reason is logged.
        """
        words: list[AlignedWord] = []
        while self._alignments and self._alignments[0].done():
            words += self._alignments.popleft().result()
        return words

    async def rest(self) -> list[AlignedWord]:
        """Wait for the remaining words and take them, like `known`."""
        if self._alignments:
            await asyncio.wait(self._alignments)
        return self.known()

    def abort(self) -> None:
        """Stop the speech and the alignments that still run."""
        self._speech.abort()
        for alignment in self._alignments:
            alignment.cancel()

    def _align_piece(self) -> None:
        text, heard = self._texts.popleft(), self._heard
        start_s = self._num_samples / self.sample_rate
        self._num_samples += sum(pcm.size for pcm in heard)
        self._heard = []
        if heard and _has_word(text):
            work = self._aligned(text, heard, start_s)
            self._alignments.append(asyncio.create_task(work))

    async def _aligned(self, text: str, heard: list[Float32], start_s: float) -> list[AlignedWord]:
        try:
            parts = await compute(_cut, self._aligner.model, text, heard, self.sample_rate)
            asks = [AlignmentInput(part.samples, part.text, self._language) for part in parts]
            # The caller was charged for the text already; alignment is free.
            aligned = await self._aligner.align(asks, charged=False) if asks else []
        except InvalidAudio:  # too short for a word
            return []
        except Exception:
            # a full queue, or a bug: the speech must continue without word times
            logger.warning("a piece of speech has no words", exc_info=True)
            return []

        def delivered(part: _Part, time_s: float) -> float:
            within_s = part.start_s + min(time_s, len(part.samples) / SAMPLE_RATE)
            return round((start_s + within_s) / self._speed, 3)

        return [
            replace(
                word,
                start_s=delivered(part, word.start_s),
                end_s=delivered(part, word.end_s),
                start=part.start + word.start,
                stop=part.start + word.stop,
            )
            for part, words in zip(parts, aligned, strict=True)
            for word in words
        ]


def find_word_aligner(registry: ServedModels, language: str | None) -> tuple[Aligner, str | None]:
    """Return the aligner for speech in a language, and the language to pass to it.

    Raises:
        InvalidRequest: No alignment model is served, or it does not support the language.
    """
    try:
        aligner = find_aligner(registry)
    except ModelNotFound as error:
        raise InvalidRequest(
            "word times need an alignment model beside the speech model, and none is served",
            param=PARAM,
        ) from error
    if language is None or language.casefold() in _ANY_LANGUAGE:
        return aligner, None
    known = {name.casefold(): name for name in aligner.model.languages}
    if language.casefold() not in known:
        raise InvalidRequest(
            f"the alignment model {aligner.name!r} knows "
            f"{', '.join(aligner.model.languages)}, but not {language!r}",
            param=PARAM,
        )
    return aligner, known[language.casefold()]


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Part of a piece of speech.

    Attributes:
        samples: (n,) float32 mono at 16 kHz.
        start_s: Start in the piece, in seconds.
        text: The text of the samples.
        start: Start of `text` in the piece's text, in characters.
    """

    samples: Float32
    start_s: float
    text: str
    start: int


def _cut(model: AlignmentFrontend, text: str, heard: list[Float32], rate: int) -> list[_Part]:
    """Cut a piece of speech to parts that the aligner accepts; skip parts without words."""
    samples = resample(np.concatenate(heard), rate, SAMPLE_RATE)
    places = model.split_audio(samples)
    shares = spoken_shares(samples, SAMPLE_RATE, [stop for _, stop in places[:-1]])
    return [
        _Part(samples[begin:end], begin / SAMPLE_RATE, text[start:stop], start)
        for (begin, end), (start, stop) in zip(places, cut_text(text, shares), strict=True)
        if _has_word(text[start:stop])
    ]


def _has_word(text: str) -> bool:
    return any(map(str.isalnum, text))
