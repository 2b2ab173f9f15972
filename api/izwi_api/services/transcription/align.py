"""Align words with audio: those of a given text, or of a transcription.

Without HTTP: endpoints and other services align through this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast
from uuid import uuid4

from msgspec.structs import replace

from izwi.arrays import Samples
from izwi.engine_client.protocol import Answer
from izwi.errors import InvalidRequest, ModelNotFound, Overloaded
from izwi.host.threads import compute
from izwi.inputs.speech import AlignmentInput
from izwi.model.alignment import AlignedWord, AlignmentFrontend
from izwi.model.capability import Capability
from izwi.request.request import Request
from izwi_api.services.context import chunks_of
from izwi_api.services.models.served import ServedModel, ServedModels
from izwi_api.services.transcription.transcribe import SAMPLE_RATE, Segment, num_together
from izwi_api.usage.metering import Charge, seconds


@dataclass(frozen=True, slots=True)
class Aligner:
    """Aligns with a served model."""

    served: ServedModel[AlignmentFrontend]

    @property
    def name(self) -> str:
        """The model's name."""
        return self.served.name

    @property
    def model(self) -> AlignmentFrontend:
        """The model."""
        return self.served.frontend

    async def align(
        self, asks: Sequence[AlignmentInput], *, charged: bool = True
    ) -> list[list[AlignedWord]]:
        """Align texts with their audio, all in one batch.

        Args:
            asks: Audio and texts.
            charged: Charge the audio to the caller's quota.

        Returns:
            The words of each text, in order.

        Raises:
            InvalidRequest: A text has no word, or its language is unknown.
            InvalidAudio: The audio of an ask is empty.
            TooLarge: The audio or text of an ask is too long.
            Overloaded: The engine's queue is full; nothing was started.
        """
        requests = await compute(self._prepare, asks)
        heard_s = seconds(sum(len(ask.samples) for ask in asks))
        charge = Charge(heard_s=heard_s, is_free=not charged)
        with charge.unless_refused():
            # alignments are not recorded, so the engine needs no input besides the prompt
            answers = self.served.submit_all([replace(request, ask=None) for request in requests])
        aligned: list[list[AlignedWord]] = []
        async with answers:
            for ask, request, answer in zip(asks, requests, answers, strict=True):
                try:
                    words = await self._words(request, answer)
                except Overloaded:
                    rest = asks[len(aligned) :]
                    charge.refund(heard_s=seconds(sum(len(one.samples) for one in rest)))
                    raise
                aligned.append(_within(words, len(ask.samples) / SAMPLE_RATE))
        charge.settle()
        return aligned

    async def align_segments(
        self, samples: Samples, segments: Sequence[Segment]
    ) -> list[list[AlignedWord]]:
        """Align a transcription, a few segments at a time; it is not charged again.

        Args:
            samples: All transcribed samples, at 16 kHz.
            segments: Their texts, with start and end.

        Returns:
            The words of each segment: times count from the start of the audio, positions from the
            start of the segment's text. None for a segment without words.

        Raises:
            InvalidRequest: The language of a segment is unknown.
        """
        spoken = [segment for segment in segments if _has_word(segment.text)]
        places = [_place(segment) for segment in spoken]
        aligned: list[list[AlignedWord]] = []
        while left := spoken[len(aligned) :]:
            asks = await compute(_asks, samples, left[: num_together(places[len(aligned) :])])
            aligned += await self.align(asks, charged=False)
        words = iter(aligned)
        return [
            [_later(word, s.start_s) for word in next(words)] if _has_word(s.text) else []
            for s in segments
        ]

    def knows(self, segments: Sequence[Segment]) -> bool:
        """Whether the aligner supports the languages of all segments."""
        heard = {segment.language for segment in segments if segment.language}
        return heard <= set(self.model.languages)

    def _prepare(self, asks: Sequence[AlignmentInput]) -> list[Request]:
        request_id = f"alignment-{uuid4().hex}"
        return [
            self.model.prepare_alignment(f"{request_id}-{index}", self.name, ask)
            for index, ask in enumerate(asks)
        ]

    async def _words(self, request: Request, answer: Answer) -> list[AlignedWord]:
        classes: list[int] = []
        async for chunk in chunks_of(answer):
            classes += chunk.entries.ravel().tolist()  # an entry is one class
        return await asyncio.to_thread(self.model.read_alignment, request, classes)


def find_aligner(registry: ServedModels, name: str | None = None) -> Aligner:
    """Return an aligner by name, or the first that is served.

    Raises:
        ModelNotFound: No model of that name is served, or none that aligns.
        InvalidRequest: The model has another capability.
    """
    if name is None:
        models = map(registry.model, registry.names())
        able = (model for model in models if Capability.ALIGN in model.frontend.capabilities)
        name = next((model.name for model in able), None)
        if name is None:
            raise ModelNotFound("no alignment model is served here", param="model")
    model = registry.model(name)
    does = model.frontend.capabilities
    if Capability.ALIGN not in does:
        raise InvalidRequest(f"model {name!r} does {', '.join(does)}, not alignment", param="model")
    return Aligner(cast(ServedModel[AlignmentFrontend], model))


def _asks(samples: Samples, segments: Sequence[Segment]) -> list[AlignmentInput]:
    return [
        AlignmentInput(samples[slice(*_place(s))], s.text, s.language or None) for s in segments
    ]


def _place(segment: Segment) -> tuple[int, int]:
    """Return where a segment is, in samples."""
    return round(segment.start_s * SAMPLE_RATE), round(segment.end_s * SAMPLE_RATE)


def _has_word(text: str) -> bool:
    return any(character.isalnum() for character in text)


def _within(words: Sequence[AlignedWord], end_s: float) -> list[AlignedWord]:
    """Limit times to the length of the audio: a model may place words after its end."""
    end_s = round(end_s, 3)
    return [
        replace(word, start_s=min(word.start_s, end_s), end_s=min(word.end_s, end_s))
        for word in words
    ]


def _later(word: AlignedWord, seconds: float) -> AlignedWord:
    start_s, end_s = round(word.start_s + seconds, 3), round(word.end_s + seconds, 3)
    return replace(word, start_s=start_s, end_s=end_s)
