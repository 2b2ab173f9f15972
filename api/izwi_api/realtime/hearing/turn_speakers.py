"""Who speaks in the turns of a session that transcribes, and what each of them says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from izwi.arrays import Float32
from izwi.errors import IzwiError
from izwi_api.realtime.hearing.input_audio import LiveTranscriber
from izwi_api.realtime.protocol.formats import INPUT_RATE
from izwi_api.realtime.protocol.settings import Transcription
from izwi_api.realtime.protocol.transcript_events import SpeakerSegment
from izwi_api.schemas.known_speakers import SpeakerSetting
from izwi_api.services.context import Services
from izwi_api.services.speakers.diarize import PADDING_S, spoken_pieces
from izwi_api.services.speakers.live import LiveSpeakers
from izwi_api.services.speakers.timeline import Turn

logger = logging.getLogger(__name__)


class TurnSpeakers:
    """Names the speakers of turns.

    Args:
        services: Has the models.
        setting: How speakers are told apart.

    Attributes:
        setting: That.

    Raises:
        InvalidRequest: No served model has a speaker encoder.
    """

    def __init__(self, services: Services, setting: SpeakerSetting):
        self._services, self.setting = services, setting
        self._speakers = LiveSpeakers(services, setting)

    async def segments(
        self, transcription: Transcription, samples: Float32, transcript: asyncio.Future[str]
    ) -> list[SpeakerSegment]:
        """Return what each speaker says in a turn; none if nothing was said.

        A turn of one speaker is one segment with its transcript. The parts of several are
        transcribed once more, each by itself, which is not charged.

        Args:
            transcription: How parts of a turn are transcribed, with a model.
            samples: (n,) of the turn at 16 kHz.
            transcript: That of the turn.

        Raises:
            IzwiError: The transcription failed.
        """
        naming = asyncio.create_task(self._speakers.name_turns(samples))
        try:
            text = await transcript
            if not text:
                return []
            turns = merged(await naming)
        except IzwiError as error:
            if transcript.done() and transcript.exception() is not None:
                raise
            logger.warning("the speakers of a turn are not known: %s", error)
            turns = []
        finally:
            naming.cancel()
        if len({name for _, name in turns}) < 2:
            name = turns[0][1] if turns else ""
            return [SpeakerSegment(0.0, len(samples) / INPUT_RATE, name, text)]
        return await self._transcribed(transcription, samples, turns)

    async def _transcribed(
        self,
        transcription: Transcription,
        samples: Float32,
        turns: Sequence[tuple[Turn, str]],
    ) -> list[SpeakerSegment]:
        frontend = self._services.registry.transcription(transcription.model or "").frontend
        names = [name for _, name in turns]
        numbered = [Turn(turn.start, turn.stop, n) for n, (turn, _) in enumerate(turns)]
        pieces = spoken_pieces(frontend, samples, numbered, names, PADDING_S)
        segments = []
        for start, stop, speaker in pieces:
            text = await self._text(transcription, samples[start:stop])
            if text:
                place = start / INPUT_RATE, stop / INPUT_RATE
                segments.append(SpeakerSegment(*place, speaker, text))
        return segments

    async def _text(self, transcription: Transcription, samples: Float32) -> str:
        transcriber = LiveTranscriber(self._services, transcription, lambda *_: None)
        try:
            transcriber.feed(samples)
            text = await transcriber.finish()
            transcriber.refund()
            return text
        finally:
            transcriber.close()


def merged(turns: Sequence[tuple[Turn, str]]) -> list[tuple[Turn, str]]:
    """Join turns of one speaker that follow each other."""
    joined: list[tuple[Turn, str]] = []
    for turn, name in turns:
        if joined and joined[-1][1] == name:
            last = joined[-1][0]
            joined[-1] = Turn(last.start, max(last.stop, turn.stop), last.speaker), name
        else:
            joined.append((turn, name))
    return joined
