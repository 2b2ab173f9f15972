"""Which part of an answer is settled while its audio still grows. Pure; knows no audio.

Source: qwen_asr 0.0.6, inference/qwen3_asr.py `streaming_transcribe` and
`finish_streaming_transcribe`. One difference: the settled prefix never gets shorter. In the
reference, each answer that adds no text removes five more tokens from it.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from izwi.audio.mel import WHISPER_HOP, WHISPER_RATE

_BROKEN = "\ufffd"  # represents bytes that are not a character, or not yet


@dataclass(frozen=True, slots=True)
class StreamRules:
    """When a stream decodes, and what it keeps. The defaults are the reference's.

    Attributes:
        chunk_s: Seconds of audio between two steps, a multiple of 10 ms.
        unfixed_chunks: Steps at the start of a segment that keep nothing of the previous answer.
        unfixed_tokens: Tokens at the end of an answer that the next one may change.
        is_agreed: An answer keeps only the words that the one before it had, too. The reference
            has no such rule; a small model may write words that were not said where audio ends.
        segment_s: Longest segment. A minute: every step recomputes its text, about 250 tokens,
            which costs a fraction of generating the step's own ten tokens; at the published limit
            of 20 minutes it would be twenty times as much.
        search_s: A segment without a clear pause ends where it is quietest, at most twice this
            long before its limit.
    """

    chunk_s: float = 2.0
    unfixed_chunks: int = 2
    unfixed_tokens: int = 5
    is_agreed: bool = False
    segment_s: float = 60.0
    search_s: float = 5.0

    @property
    def chunk_samples(self) -> int:
        """Samples between two steps."""
        return round(self.chunk_s * WHISPER_RATE / WHISPER_HOP) * WHISPER_HOP


class AnswerTokens(Protocol):
    """Turns an answer, language and tag included, into ids and back."""

    def encode(self, answer: str) -> list[int]:
        """Return the ids of an answer."""
        ...

    def decode(self, ids: Seq[int]) -> str:
        """Return the answer of ids; bytes that are not a character (yet) become U+FFFD."""
        ...


@dataclass(frozen=True, slots=True)
class StablePrefix:
    """The part of an answer that is settled while its audio grows.

    Attributes:
        raw: The last answer, with language and tag.
        settled: The longest prefix that was given to an answer.
        before: The answer before the last one.
    """

    raw: str = ""
    settled: str = ""
    before: str = ""

    def for_chunk(self, chunk: int, rules: StreamRules, tokens: AnswerTokens) -> str:
        """Return the prefix for the step of chunk `chunk`, counted from 0.

        The last tokens are left out, and more if needed, so that the rest is whole characters.
        """
        if chunk < rules.unfixed_chunks:
            return ""
        ids = tokens.encode(self.raw)
        end = max(0, len(ids) - rules.unfixed_tokens)
        while end and _BROKEN in (prefix := tokens.decode(ids[:end])):
            end -= 1
        return self._longer(self._agreed(prefix, rules) if end else "")

    def for_end(self, chunks: int, rules: StreamRules, tokens: AnswerTokens) -> str:
        """Return the prefix for the last step of a segment, after `chunks` whole chunks.

        As in the reference, at least one token stays, even if its character is incomplete.
        """
        if chunks < rules.unfixed_chunks:
            return ""
        ids = tokens.encode(self.raw)
        prefix = tokens.decode(ids[: max(1, len(ids) - rules.unfixed_tokens)])
        return self._longer(self._agreed(prefix, rules))

    def _agreed(self, prefix: str, rules: StreamRules) -> str:
        """Return the part of a prefix that the answer before has, too; whole words of it."""
        if not rules.is_agreed or self.before.startswith(prefix):
            return prefix
        return common_prefix(prefix, self.before).rpartition(" ")[0]

    def _longer(self, prefix: str) -> str:
        return prefix if len(prefix) >= len(self.settled) else self.settled


def common_prefix(first: str, second: str) -> str:
    """Return the longest text that both begin with."""
    pairs = enumerate(zip(first, second, strict=False))
    same = next((place for place, (a, b) in pairs if a != b), min(len(first), len(second)))
    return first[:same]
