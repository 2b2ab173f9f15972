"""The state of the turn state machine, `turns.py`. Pure values.

Times are milliseconds of input audio, except in `Tick`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from izwi_api.realtime.turns.rules import Detection, Rules, ServerVad, Speech


@dataclass(frozen=True, slots=True)
class AnswerState:
    """The last response: in progress until it is `done`, audible while it is playing."""

    number: int
    done: bool = False
    paused: bool = False
    played_ms: int = 0
    sent_ms: int = 0

    @property
    def is_audible(self) -> bool:
        """Return whether it is playing, so that speech now would overlap it."""
        return not self.done or self.played_ms < self.sent_ms


@dataclass(frozen=True, slots=True)
class State:
    """The state of the machine.

    Attributes:
        now_ms: End of the input audio.
        hidden_ms: Sound like speech that was taken for background, less the silence since.
        short_ms: Start of the last sound with a pitch that was too short to begin a turn.
        buffer_ms: Start of the uncommitted audio.
        speech: The stretch of speech in progress.
        turn_ms: Start of the user's announced turn, or None.
        heard: Transcript since speech began.
        answer: The last response, while it is in progress or audible.
        silenced: Number of the last response, if it ended because the client stopped playing it.
        speculation: Number of the prepared response.
        answer_due: A turn ended while a response was in progress.
        was_stop: The last turn that was answered only told an answer to stop.
        num_untranscribed: Turns that ended and whose transcript is pending.
        frame_clock_ms: When the last frame arrived, on the clock of `Tick`.
        idle_ms: When playback of the last answer ended, on that clock.
        next_number: Number of the next response.
    """

    detection: Detection | None = field(default_factory=ServerVad)
    rules: Rules = field(default_factory=Rules)
    now_ms: int = 0
    hidden_ms: int = 0
    short_ms: int | None = None
    buffer_ms: int = 0
    speech: Speech | None = None
    turn_ms: int | None = None
    heard: str = ""
    answer: AnswerState | None = None
    silenced: int | None = None
    speculation: int | None = None
    answer_due: bool = False
    was_stop: bool = False
    num_untranscribed: int = 0
    clock_ms: int = 0
    frame_clock_ms: int = 0
    idle_ms: int | None = None
    idle_from_ms: int = 0
    next_number: int = 0
