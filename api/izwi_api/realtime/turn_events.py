"""Events that turns depend on, and the actions that follow from them. Pure values.

Times are milliseconds of input sound, but for `Tick`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from izwi_api.realtime.turn_rules import Detection


# -- events --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of input sound, up to `end_ms`; `speech` is the probability of speech in it."""

    end_ms: int
    speech: float


@dataclass(frozen=True, slots=True)
class Heard:
    """All words heard so far since speech began."""

    text: str


@dataclass(frozen=True, slots=True)
class Transcript:
    """The words of a turn that has ended; None: they could not be written down."""

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
    """Everything of a response was sent to the client."""

    number: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A response cannot be completed."""

    number: int


@dataclass(frozen=True, slots=True)
class Playback:
    """How much of a response's sound the client has played, and how much it was sent."""

    number: int
    played_ms: int
    sent_ms: int


@dataclass(frozen=True, slots=True)
class Silenced:
    """The client has stopped playing a response, after so much of it."""

    number: int
    played_ms: int


@dataclass(frozen=True, slots=True)
class Tick:
    """The time is `now_ms`, on a monotonic clock."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class Configure:
    """Turn detection changes; None is push to talk."""

    detection: Detection | None


Event = (
    Frame | Heard | Transcript | Commit | Clear | Create | Cancel
    | Generated | Failed | Playback | Silenced | Tick | Configure
)  # fmt: skip


# -- actions -------------------------------------------------------------------------------------
class Status(StrEnum):
    """How a response ended."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """A turn of the user begins with the sound at `start_ms`."""

    start_ms: int


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """The turn ends with the sound at `end_ms`."""

    end_ms: int


@dataclass(frozen=True, slots=True)
class CommitInput:
    """The sound between becomes an item of the conversation.

    `awaits_words`: its `Transcript` decides whether it is answered.
    """

    start_ms: int
    end_ms: int
    awaits_words: bool = False


@dataclass(frozen=True, slots=True)
class Speculate:
    """Prepare a response to the turn so far, and keep it back."""

    number: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Drop a prepared response."""

    number: int


@dataclass(frozen=True, slots=True)
class Respond:
    """Begin a response, or release the prepared one of this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop a response where it is, and send nothing more of it."""

    number: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with a response from the sample where it stopped."""

    number: int


@dataclass(frozen=True, slots=True)
class Finish:
    """A response ends. `reason` says why it was cancelled: turn_detected or client_cancelled."""

    number: int
    status: Status
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut a response in the history to what was played of it."""

    number: int
    played_ms: int


@dataclass(frozen=True, slots=True)
class TimedOut:
    """Nobody spoke between these times; the sound is committed and answered."""

    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """What the client asked for cannot be done now; `code` says why."""

    code: str


Action = (
    SpeechStarted | SpeechStopped | CommitInput | Speculate | Discard | Respond | Pause
    | Resume | Finish | Truncate | TimedOut | Refuse
)  # fmt: skip
