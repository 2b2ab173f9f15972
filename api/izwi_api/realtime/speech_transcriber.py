"""Transcribe a session's speech: one stretch at a time, while it is spoken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

from izwi.arrays import Float32
from izwi_api.realtime.formats import HEARD_RATE
from izwi_api.realtime.listening import Listener
from izwi_api.realtime.settings import Transcription
from izwi_api.services.context import Services

# Added to speech that has just ended: with less than this behind it, transcribers take the end of a
# word for the middle of another.
_SILENCE = np.zeros(HEARD_RATE // 5, np.float32)


class SpeechTranscriber:
    """Transcribes the stretch of speech in progress.

    A key is charged for what is transcribed, but once for speech that is transcribed again.

    Args:
        hear: Called with its transcript so far, and with the stable part of it.
        hear_all: Called with the transcript of all of it, after `hear_out`.
    """

    def __init__(
        self,
        services: Services,
        hear: Callable[[str, str], None],
        hear_all: Callable[[str], None],
    ):
        self._services, self._hear, self._hear_all = services, hear, hear_all
        self._listener: Listener | None = None
        self._ended: Listener | None = None
        self._prepared: Listener | None = None  # finished, for an answer that is only prepared
        self._fed_ms = 0  # end of the audio that was fed

    @property
    def is_listening(self) -> bool:
        """Return whether a stretch of speech is being fed."""
        return self._listener is not None

    def begin(self, setting: Transcription, samples: Float32, end_ms: int) -> None:
        """Start, or start again, with the speech up to a position: (n,) float32 at 16 kHz."""
        for listener in (self._listener, self._ended, self._prepared):
            if listener is not None:
                listener.give_back()
        self._prepared = None
        self.drop()
        self._listener = Listener(self._services, setting, self._hear)
        self._listener.feed(samples)
        self._fed_ms = end_ms

    def feed(self, samples: Float32, end_ms: int) -> None:
        """Add samples that end at a position, unless they were fed already."""
        if self._listener is not None and end_ms > self._fed_ms:
            self._listener.feed(samples)
            self._fed_ms = end_ms

    def hear_out(self) -> None:
        """Transcribe all that was fed, and then call `hear_all`, unless speech goes on before."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self._ended = listener
            listener.feed(_SILENCE)
            listener.finish().add_done_callback(lambda done: self._heard_out(listener, done))

    def finish(self) -> asyncio.Task[str] | None:
        """End the speech and return the task of its transcript; None if none is being fed."""
        listener, self._listener = self._listener, None
        self._prepared = listener
        return None if listener is None else listener.finish()

    def keep(self) -> None:
        """Charge for the speech that was finished last: its turn is over."""
        self._prepared = None

    def drop(self) -> None:
        """Stop transcribing."""
        for listener in (self._listener, self._ended):
            if listener is not None:
                listener.close()
        self._listener = self._ended = None

    def _heard_out(self, listener: Listener, transcript: asyncio.Task[str]) -> None:
        if self._ended is not listener:
            return
        self._ended = None
        if not transcript.cancelled() and transcript.exception() is None:
            self._hear_all(transcript.result())
