"""How fast chat model and voice together speak, learned from the last answers. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

# Seconds of audio a second, until an answer was measured: two cores with the embedded models.
DEFAULT_RATE = 1.6
# Longest chunk until one was seen: 8 frames of 80 ms.
_LONGEST_MS = 640.0
# The slowest of so many answers counts. A slow one is forgotten after as many others.
_REMEMBERED = 8
# Chunks of an answer that are measured. Later ones may have waited for a client that plays.
MEASURED = 4
_LEAST_MEASURED = 3
# So much of each answer's audio is remembered, as long as others count on it.
_REMEMBERED_MS = 4000.0
# Answers are compared with earlier ones once there are so many.
_LEAST_REMEMBERED = 3


class AudioChunk(NamedTuple):
    """A chunk of an answer's audio.

    Attributes:
        made_ms: When the voice delivered it, on a monotonic clock.
        audio_ms: Duration of its audio.
        playable_ms: The same without silence that is cut from the start of the answer.
    """

    made_ms: float
    audio_ms: float
    playable_ms: float


AnswerStart = tuple[AudioChunk, ...]


@dataclass(slots=True)
class ProductionPace:
    """The pace of one server's answers, shared by its live sessions.

    Attributes:
        longest_ms: Longest chunk so far.
    """

    longest_ms: float = _LONGEST_MS
    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _answers: deque[AnswerStart] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    @property
    def rate(self) -> float:
        """Return the pace of the slowest recent answer, in seconds of audio a second."""
        return min(self._rates, default=DEFAULT_RATE)

    @property
    def answers(self) -> tuple[AnswerStart, ...]:
        """Return the chunks with which the recent answers began; none while they are too few."""
        return tuple(self._answers) if len(self._answers) >= _LEAST_REMEMBERED else ()

    def learn(self, chunks: Sequence[AudioChunk]) -> None:
        """Learn from the chunks of an answer, from the first on; too few are ignored."""
        self.longest_ms = max([self.longest_ms, *(chunk.audio_ms for chunk in chunks)])
        if len(chunks) >= _LEAST_MEASURED:
            self._rates.append(measured_rate(chunks[:MEASURED], DEFAULT_RATE, 0.0))
            self._answers.append(_beginning(chunks))


def _beginning(chunks: Sequence[AudioChunk]) -> AnswerStart:
    before_ms = accumulate((chunk.audio_ms for chunk in chunks), initial=0.0)
    kept = zip(chunks, before_ms, strict=False)
    return tuple(chunk for chunk, start_ms in kept if start_ms < _REMEMBERED_MS)


def measured_rate(chunks: Sequence[AudioChunk], expected: float, expected_ms: float) -> float:
    """Return the pace of an answer, in seconds of audio a second.

    Args:
        chunks: Its chunks so far, if any.
        expected: The pace that is expected.
        expected_ms: Time that this expectation counts as, besides the time between the chunks.
    """
    if len(chunks) < 2:
        return expected
    taken_ms = chunks[-1].made_ms - chunks[0].made_ms + expected_ms
    audio_ms = sum(chunk.audio_ms for chunk in chunks[1:]) + expected * expected_ms
    return audio_ms / max(taken_ms, 1.0)
