"""Rules for when a turn ends and what interrupts an answer: turn detection settings. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

from izwi_api.realtime.turns.endings import Ending, ending_of
from izwi_api.realtime.turns.words import is_backchannel, meant_words, stops

Eagerness = Literal["low", "medium", "high", "auto"]

_SEMANTIC_THRESHOLD = 0.5
_SEMANTIC_PREFIX_MS = 300
# Milliseconds of silence that end a turn, by how its words end. The last is the maximum wait
# of OpenAI's `eagerness`: 8, 4 and 2 s.
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
        threshold: Minimum speech probability for a frame to count as speech.
        prefix_padding_ms: Audio before the first speech that belongs to the turn.
        silence_duration_ms: Silence that ends a turn.
        idle_timeout_ms: Silence after a played answer that triggers another one; None disables it.
        create_response: Answer when a turn ends.
        interrupt_response: Let speech over an answer stop it.
    """

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    idle_timeout_ms: int | None = None
    create_response: bool = True
    interrupt_response: bool = True

    def wait_ms(self, heard: str) -> int:
        """Return the silence that ends the turn."""
        del heard
        return self.silence_duration_ms


@dataclass(frozen=True, slots=True)
class SemanticVad:
    """A turn ends after a silence whose length depends on how complete its words are."""

    eagerness: Eagerness = "auto"
    create_response: bool = True
    interrupt_response: bool = True
    threshold: float = _SEMANTIC_THRESHOLD
    prefix_padding_ms: int = _SEMANTIC_PREFIX_MS
    idle_timeout_ms: int | None = None

    def wait_ms(self, heard: str) -> int:
        """Return the silence that ends the turn, given its transcript so far."""
        eagerness: Eagerness = "medium" if self.eagerness == "auto" else self.eagerness
        ending = ending_of(heard)
        if ending is Ending.UNFINISHED:
            return _UNFINISHED_MS[eagerness]
        return _WAITS_MS[eagerness][ending]


Detection = ServerVad | SemanticVad


@dataclass(frozen=True, slots=True)
class Speech:
    """A stretch of speech, including short gaps.

    Attributes:
        onset_ms: Where it began.
        is_late: It may have begun earlier: what came before it sounds like speech, too, or a short
            sound that may have been its first word.
        speech_ms: Amount of speech in it.
        voiced_ms: Amount of speech with a pitch.
        silence_ms: Silence since the last speech.
        is_ended: Whether it was taken as ended, so that all of it is being transcribed.
        is_final: Whether the transcript of all of it has come.
    """

    onset_ms: int
    speech_ms: int = 0
    voiced_ms: int = 0
    silence_ms: int = 0
    is_ended: bool = False
    is_final: bool = False
    is_late: bool = False

    def longer(self, length_ms: int, is_voiced: bool) -> Speech:
        """Return it with more speech at its end."""
        return replace(
            self,
            speech_ms=self.speech_ms + length_ms,
            voiced_ms=self.voiced_ms + length_ms * is_voiced,
            silence_ms=0,
            is_ended=False,
            is_final=False,
        )


class Verdict(Enum):
    """A classification of speech over an answer."""

    OPEN = "open"  # not decided yet
    CONFIRMED = "confirmed"  # an interruption
    REFUTED = "refuted"  # a cough, a backchannel, noise


@dataclass(frozen=True, slots=True)
class Rules:
    """Durations that clients cannot set, in milliseconds of input audio.

    Attributes:
        late_ms: Sound like speech before speech that makes its beginning uncertain.
        late_prefix_ms: Audio before such speech that belongs to the turn, at least.
        word_ms: Least speech with a pitch in a sound that may be a first word, lost in noise.
        start_ms: Speech that starts a turn while nothing is playing. A knock is shorter.
        pause_ms: Speech over an answer that pauses it.
        confirm_ms: Speech over an answer that interrupts it, without live transcription.
        unclear_ms: The same with live transcription, while it is unclear what is said.
        unpitched_ms: The same if there was no pitch.
        backchannel_ms: The same if the words so far are backchannels: laughter goes on for longer
            than a second.
        voiced_ms: Least speech with a pitch. Coughs, breath and knocks have less, although they
            may be transcribed as words.
        least_words_ms: Minimum speech before words count, because the transcriber may have picked
            up the answer's own.
        words_ms: How long after the first speech to wait for words, with live transcription. A long
            hum has none before its end; the answer is paused meanwhile.
        complete_ms: Silence after which all speech over an answer is transcribed: the transcript
            of a word that was not heard to its end is mostly wrong.
        refute_ms: Silence that shows that speech over an answer was no interruption.
        settle_ms: The same if that transcript does not come.
        muted_ms: Time without input audio after which a paused answer resumes.
        speculate_ms: Silence after which an answer is prepared before the turn has ended, at most
            half of the silence that ends it; None disables this.
        least_commit_ms: Minimum audio that a client may commit.
        hears_words: Whether speech is transcribed live.
        answers_words: Answer a turn only when its words are known, and not at all if it has none
            (music, a cough).
    """

    late_ms: int = 200
    late_prefix_ms: int = 900
    word_ms: int = 40
    start_ms: int = 160
    pause_ms: int = 40
    confirm_ms: int = 300
    unclear_ms: int = 500
    unpitched_ms: int = 1000
    backchannel_ms: int = 2000
    voiced_ms: int = 80
    least_words_ms: int = 80
    words_ms: int = 1000
    complete_ms: int = 120
    refute_ms: int = 240
    settle_ms: int = 640
    muted_ms: int = 1000
    speculate_ms: int | None = 200
    least_commit_ms: int = 100
    hears_words: bool = True
    answers_words: bool = False

    def hidden_ms(self, before_ms: int, length_ms: int, is_hidden: bool) -> int:
        """Return the amount of hidden speech after another frame."""
        if is_hidden:
            return min(before_ms + length_ms, 2 * self.late_ms)
        return max(0, before_ms - length_ms)

    def turn_start_ms(self, speech: Speech, prefix_padding_ms: int) -> int:
        """Return where the turn of some speech starts: earlier if its beginning is uncertain."""
        prefix_ms = prefix_padding_ms
        if speech.is_late:
            prefix_ms = max(prefix_ms, self.late_prefix_ms)
        return speech.onset_ms - prefix_ms

    def needs_complete_transcript(self, speech: Speech) -> bool:
        """Return whether to transcribe all of the speech over an answer now."""
        is_over = speech.silence_ms >= self.complete_ms and not speech.is_ended
        return self.hears_words and is_over and speech.speech_ms >= self.least_words_ms

    def judge(self, speech: Speech, since_ms: int, heard: str) -> Verdict:
        """Classify speech over an answer.

        Args:
            speech: The speech so far.
            since_ms: Time since it began.
            heard: Its transcript so far.
        """
        may_have_words = speech.speech_ms >= self.least_words_ms
        if may_have_words and (stops(heard) or self._is_said(speech, heard)):
            return Verdict.CONFIRMED
        awaits_words = self.hears_words and not heard and since_ms < self.words_ms
        if speech.speech_ms >= self._limit_ms(speech, heard):
            return Verdict.OPEN if awaits_words else Verdict.CONFIRMED
        may_have_words &= self.hears_words and not speech.is_final
        last_ms = self.settle_ms if may_have_words else self.refute_ms
        return Verdict.REFUTED if speech.silence_ms >= last_ms else Verdict.OPEN

    def _limit_ms(self, speech: Speech, heard: str) -> int:
        """Return the amount of speech that interrupts, whatever its words."""
        if is_backchannel(heard):
            return self.backchannel_ms
        if speech.voiced_ms < self.voiced_ms:
            return self.unpitched_ms
        return self.unclear_ms if self.hears_words else self.confirm_ms

    def _is_said(self, speech: Speech, heard: str) -> bool:
        """Return whether words were said that want the turn.

        Two are enough while the user speaks. What was heard of a short utterance when it ends is
        replaced by its final transcript, in which one is enough.
        """
        if speech.voiced_ms < self.voiced_ms:
            return False
        num_meant = len(meant_words(heard))
        if speech.is_final or speech.silence_ms >= self.settle_ms:
            return num_meant >= 2 or (num_meant == 1 and not is_backchannel(heard))
        return speech.silence_ms == 0 and num_meant >= 2
