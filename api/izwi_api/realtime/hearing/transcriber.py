"""Transcribe a session's speech: one stretch at a time, while it is spoken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

from izwi.arrays import Float32
from izwi_api.realtime.hearing.input_audio import LiveTranscriber
from izwi_api.realtime.protocol.formats import INPUT_RATE
from izwi_api.realtime.protocol.settings import Transcription
from izwi_api.services.context import Services

# Added to speech that has just ended: with less than this behind it, transcribers take the end of a
# word for the middle of another.
_SILENCE = np.zeros(INPUT_RATE // 5, np.float32)


class SpeechTranscriber:
    """Transcribes the stretch of speech in progress.

    A transcription that lags goes on after its stretch has ended. It reports its text as long as
    the turn lasts, and not as words of the turn that follows.

    A key is charged for what is transcribed, but once for speech that is transcribed again.

    Args:
        on_text: Called with a transcript of the turn so far, with the stable part of it, and
            whether it is that of all speech so far: a transcription that was started again ends
            earlier.
        on_complete: Called with the transcript of all of it, after `complete`.
    """

    def __init__(
        self,
        services: Services,
        on_text: Callable[[str, str, bool], None],
        on_complete: Callable[[str], None],
    ):
        self._services, self._on_text, self._on_complete = services, on_text, on_complete
        self._transcription: LiveTranscriber | None = None
        self._ended: LiveTranscriber | None = None
        self._prepared: LiveTranscriber | None = None  # finished, for an answer only prepared
        self._superseded: LiveTranscriber | None = None  # finished, for an answer discarded since
        self._of_turn: list[LiveTranscriber] = []  # finished or not; the last one has all of it
        self._fed_ms = 0  # end of the audio that was fed

    @property
    def is_listening(self) -> bool:
        """Return whether a stretch of speech is being fed."""
        return self._transcription is not None

    def start_transcription(self, setting: Transcription, samples: Float32, end_ms: int) -> None:
        """Start, or start again, with the speech up to a position: (n,) float32 at 16 kHz."""
        for transcription in (self._transcription, self._ended, self._prepared):
            if transcription is not None:
                transcription.refund()
        # one that was finished in a pause may go on: its words are known sooner than the new one's
        superseded, self._prepared = self._prepared, None
        of_turn = self._of_turn
        self.drop()
        self._superseded = superseded
        begun = LiveTranscriber(
            self._services, setting, lambda text, stable: self._report_text(begun, text, stable)
        )
        begun.feed(samples)
        self._transcription, self._of_turn = begun, [*of_turn, begun]
        self._fed_ms = end_ms

    def feed(self, samples: Float32, end_ms: int) -> None:
        """Add samples that end at a position, unless they were fed already."""
        if self._transcription is not None and end_ms > self._fed_ms:
            self._transcription.feed(samples)
            self._fed_ms = end_ms

    def complete(self) -> None:
        """Transcribe all that was fed, then call `on_complete`, unless speech continues before."""
        transcription, self._transcription = self._transcription, None
        if transcription is not None:
            self._ended = transcription
            transcription.feed(_SILENCE)
            transcription.finish().add_done_callback(
                lambda done: self._report_complete(transcription, done)
            )

    def finish_transcription(self) -> asyncio.Task[str] | None:
        """End the speech and return the task of its transcript; None if none is being fed."""
        if self._transcription is None:
            return None
        self.drop_prepared()
        self._prepared, self._transcription = self._transcription, None
        return self._prepared.finish()

    def transcribe(self, setting: Transcription, samples: Float32) -> asyncio.Task[str]:
        """Transcribe complete speech, (n,) float32 at 16 kHz; return the task of its transcript."""
        self.drop_prepared()
        self._prepared = LiveTranscriber(self._services, setting, lambda *_: None)
        self._prepared.feed(samples)
        return self._prepared.finish()

    def end_turn(self) -> None:
        """Charge for the speech that was finished last: its turn is over.

        The holder of the task of its transcript cancels it from now on.
        """
        self._prepared, self._of_turn = None, []

    def drop(self) -> None:
        """Stop transcribing, and drop what was finished in a turn that goes on."""
        for transcription in (self._transcription, self._ended, self._superseded):
            if transcription is not None:
                transcription.close()
        self._transcription = self._ended = self._superseded = None
        self._of_turn = []
        self.drop_prepared()

    def drop_prepared(self) -> None:
        """Drop the speech that was finished last, unless its turn is over."""
        if self._prepared is not None:
            self._prepared.close()
        self._prepared = None

    def _report_text(self, transcription: LiveTranscriber, text: str, stable: str) -> None:
        if transcription in self._of_turn:
            self._on_text(text, stable, transcription is self._of_turn[-1])

    def _report_complete(
        self, transcription: LiveTranscriber, transcript: asyncio.Task[str]
    ) -> None:
        if self._ended is not transcription:
            return
        self._ended = None
        if not transcript.cancelled() and transcript.exception() is None:
            self._on_complete(transcript.result())
