"""When a turn ends and what interrupts an answer: the settings of turn detection. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from izwi_api.realtime.words import Ending, ending_of, interrupts, is_backchannel

Eagerness = Literal["low", "medium", "high", "auto"]

_SEMANTIC_THRESHOLD = 0.5
_SEMANTIC_PREFIX_MS = 300
# Milliseconds of silence after which a turn is over, by how its words end. The last is the most
# that OpenAI's `eagerness` waits: 8, 4 and 2 s.
_WAITS_MS: dict[Eagerness, dict[Ending, int]] = {
    "low": {Ending.QUESTION: 800, Ending.FINISHED: 1200, Ending.UNKNOWN: 2500},
    "medium": {Ending.QUESTION: 400, Ending.FINISHED: 600, Ending.UNKNOWN: 1200},
    "high": {Ending.QUESTION: 250, Ending.FINISHED: 350, Ending.UNKNOWN: 700},
}
_UNFINISHED_MS: dict[Eagerness, int] = {"low": 8000, "medium": 4000, "high": 2000}


@dataclass(frozen=True, slots=True)
class ServerVad:
    """A turn ends after a fixed silence.

    Attributes:
        threshold: Speech probability from which on a frame counts as speech.
        prefix_padding_ms: Sound before the first speech that belongs to the turn.
        silence_duration_ms: Silence that ends a turn.
        idle_timeout_ms: Silence after an answer was played that triggers another; None: none.
        create_response: Answer when a turn ends.
        interrupt_response: Speech over an answer may stop it.
    """

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    idle_timeout_ms: int | None = None
    create_response: bool = True
    interrupt_response: bool = True

    def wait_ms(self, heard: str) -> int:
        """Silence after which the turn is over."""
        del heard
        return self.silence_duration_ms


@dataclass(frozen=True, slots=True)
class SemanticVad:
    """A turn ends when its words are complete: the silence waited for depends on them."""

    eagerness: Eagerness = "auto"
    create_response: bool = True
    interrupt_response: bool = True
    threshold: float = _SEMANTIC_THRESHOLD
    prefix_padding_ms: int = _SEMANTIC_PREFIX_MS
    idle_timeout_ms: int | None = None

    def wait_ms(self, heard: str) -> int:
        """Silence after which the turn is over, by what was heard of it so far."""
        eagerness: Eagerness = "medium" if self.eagerness == "auto" else self.eagerness
        ending = ending_of(heard)
        if ending is Ending.UNFINISHED:
            return _UNFINISHED_MS[eagerness]
        return _WAITS_MS[eagerness][ending]


Detection = ServerVad | SemanticVad


class Verdict(Enum):
    """What speech over an answer is."""

    OPEN = "open"  # not decided yet
    CONFIRMED = "confirmed"  # an interruption
    REFUTED = "refuted"  # a cough, a backchannel, noise


@dataclass(frozen=True, slots=True)
class Rules:
    """Durations that do not depend on the client, in milliseconds of input sound.

    Attributes:
        start_ms: Speech that begins a turn while nothing is played. A knock is shorter.
        pause_ms: Speech over an answer that pauses it.
        confirm_ms: Speech over an answer that interrupts it, where nobody hears its words.
        unclear_ms: The same, where its words are heard, and there is at most one. A cough is
            shorter, although a transcriber may take it for a word.
        backchannel_ms: The same, where the words so far are backchannels.
        least_words_ms: Speech without which words do not count: a transcriber may have heard the
            answer's own.
        words_ms: After the first speech, how long words are waited for where some are expected.
        refute_ms: Silence after which speech over an answer was no interruption.
        muted_ms: Time without any sound of the client after which a paused answer goes on.
        speculate_ms: Silence after which an answer is prepared, before the turn has ended, and at
            most half of the silence that ends it; None prepares none.
        least_commit_ms: Sound that a client may commit.
        hears_words: A transcriber hears what is said while it is said.
        answers_words: A turn is answered when its words are known, and not if there are none: it
            was music, or a cough.
    """

    start_ms: int = 160
    pause_ms: int = 40
    confirm_ms: int = 300
    unclear_ms: int = 500
    backchannel_ms: int = 1000
    least_words_ms: int = 80
    words_ms: int = 600
    refute_ms: int = 240
    muted_ms: int = 1000
    speculate_ms: int | None = 200
    least_commit_ms: int = 100
    hears_words: bool = True
    answers_words: bool = False

    def judge(self, speech_ms: int, silence_ms: int, since_ms: int, heard: str) -> Verdict:
        """Judge speech over an answer.

        Args:
            speech_ms: Speech since it began.
            silence_ms: Silence since the last speech.
            since_ms: Time since it began.
            heard: Its words so far.
        """
        if speech_ms >= self.least_words_ms and interrupts(heard):
            return Verdict.CONFIRMED
        awaits_words = self.hears_words and not heard and since_ms < self.words_ms
        limit = self.unclear_ms if self.hears_words else self.confirm_ms
        if is_backchannel(heard):
            limit = self.backchannel_ms
        if speech_ms >= limit:
            return Verdict.OPEN if awaits_words else Verdict.CONFIRMED
        return Verdict.REFUTED if silence_ms >= self.refute_ms else Verdict.OPEN
