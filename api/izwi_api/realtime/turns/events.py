"""Events and actions of the turn state machine. Pure values.

Times are milliseconds of input audio, except in `Tick`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from izwi_api.realtime.turns.rules import Detection


# -- events --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of input audio that ends at `end_ms`.

    `speech` is its speech probability, and `is_voiced` whether it has a pitch, as vowels do.
    `is_hidden`: it sounds like speech, and was taken for background.
    """

    end_ms: int
    speech: float
    is_voiced: bool = True
    is_hidden: bool = False


@dataclass(frozen=True, slots=True)
class LiveTranscript:
    """The transcript since speech began.

    `is_final`: it covers all of the speech, as requested by `CompleteTranscript`.
    """

    text: str
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class Transcript:
    """The transcript of a turn that has ended; None if transcription failed."""

    text: str | None


@dataclass(frozen=True, slots=True)
class Commit:
    """The client commits the input buffer, which ends at `end_ms`."""

    end_ms: int


@dataclass(frozen=True, slots=True)
class Clear:
    """The client clears the input buffer, which ends at `end_ms`."""

    end_ms: int


@dataclass(frozen=True, slots=True)
class Create:
    """The client asks for a response."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """The client cancels the response in progress, or the one given."""

    number: int | None = None


@dataclass(frozen=True, slots=True)
class Generated:
    """A response was sent completely."""

    number: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A response failed."""

    number: int


@dataclass(frozen=True, slots=True)
class Playback:
    """How much of a response's audio the client has played, and how much was sent."""

    number: int
    played_ms: int
    sent_ms: int


@dataclass(frozen=True, slots=True)
class PlaybackStopped:
    """The client stopped playing a response at this position."""

    number: int
    played_ms: int


@dataclass(frozen=True, slots=True)
class Tick:
    """The time is `now_ms`, on a monotonic clock."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class Configure:
    """Turn detection settings change; None means push to talk."""

    detection: Detection | None


Event = (
    Frame | LiveTranscript | Transcript | Commit | Clear | Create | Cancel
    | Generated | Failed | Playback | PlaybackStopped | Tick | Configure
)  # fmt: skip


# -- actions -------------------------------------------------------------------------------------
class Status(StrEnum):
    """How a response ended."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """A turn of the user starts at `start_ms`."""

    start_ms: int


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """The turn ends at `end_ms`, after a silence."""

    end_ms: int
    silence_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class CommitInput:
    """The audio in this range becomes an item of the conversation.

    `awaits_words`: whether it is answered depends on its `Transcript`.
    """

    start_ms: int
    end_ms: int
    awaits_words: bool = False


@dataclass(frozen=True, slots=True)
class CompleteTranscript:
    """Speech over an answer has ended: transcribe all of it.

    A `LiveTranscript` with `is_final` follows.
    """


@dataclass(frozen=True, slots=True)
class Speculate:
    """Prepare a response to the turn so far, without sending it."""

    number: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Discard a prepared response."""

    number: int


@dataclass(frozen=True, slots=True)
class Respond:
    """Start a response, or release the prepared one with this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause a response and send nothing more of it."""

    number: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Resume a response at the sample where it stopped."""

    number: int


@dataclass(frozen=True, slots=True)
class Finish:
    """A response ends. `reason` says why it was cancelled: turn_detected or client_cancelled."""

    number: int
    status: Status
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate a response in the history to the part that was played."""

    number: int
    played_ms: int


@dataclass(frozen=True, slots=True)
class TimedOut:
    """No speech in this range (idle timeout); the audio is committed and answered."""

    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Refuse a client's request; `code` says why."""

    code: str


Action = (
    SpeechStarted | SpeechStopped | CommitInput | CompleteTranscript | Speculate | Discard
    | Respond | Pause | Resume | Finish | Truncate | TimedOut | Refuse
)  # fmt: skip
