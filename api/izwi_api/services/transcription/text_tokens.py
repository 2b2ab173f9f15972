"""Tokens of a text as bytes, with their log probabilities. Joined, the bytes are the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class TextToken:
    """A token of a text and its log probability.

    Attributes:
        spelling: Its UTF-8 bytes; may be part of a character.
        logprob: Natural log of its probability, by the softmax of the model's raw logits.
    """

    spelling: bytes
    logprob: float


def text_tokens(
    spellings: Sequence[bytes], logprobs: Sequence[float], joint: str
) -> list[TextToken]:
    """Pair the bytes of tokens with their log probabilities; skip tokens without bytes.

    Args:
        spellings: Bytes of each token, from `TranscriptionFrontend.spell`.
        logprobs: One per token.
        joint: Text between the previous text and this one; it is added to the first token.
    """
    pairs = zip(spellings, logprobs, strict=True)
    tokens = [TextToken(spelling, logprob) for spelling, logprob in pairs if spelling]
    if tokens and joint:
        tokens[0] = replace(tokens[0], spelling=joint.encode() + tokens[0].spelling)
    return tokens


def within(tokens: Sequence[TextToken], text: str) -> list[TextToken]:
    """Return the leading tokens that are entirely within `text`, a prefix of their text."""
    room, count = len(text.encode()), 0
    for token in tokens:
        room -= len(token.spelling)
        if room < 0:
            break
        count += 1
    return list(tokens[:count])


def trimmed(tokens: Sequence[TextToken]) -> list[TextToken]:
    """Remove trailing white space, and tokens that consist of it."""
    whole = b"".join(token.spelling for token in tokens)
    text = whole.decode(errors="surrogateescape")  # invalid bytes round-trip
    room = len(text.rstrip().encode(errors="surrogateescape"))
    kept: list[TextToken] = []
    for token in tokens:
        if room <= 0:
            break
        kept.append(replace(token, spelling=token.spelling[:room]))
        room -= len(token.spelling)
    return kept
