"""Tokens of a text as bytes, with their log probabilities. Joined they are the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class TextToken:
    """A token of a text, and how likely the model thought it.

    Attributes:
        spelling: Its bytes of UTF-8, which may be a part of a character.
        logprob: Natural log of its probability, by the softmax of the model's raw logits.
    """

    spelling: bytes
    logprob: float


def text_tokens(
    spellings: Sequence[bytes], logprobs: Sequence[float], joint: str
) -> list[TextToken]:
    """Pair the bytes of tokens with their log probabilities; those without bytes are left out.

    Args:
        spellings: As `TranscriptionModel.spell` gives them.
        logprobs: As many.
        joint: What stands between the text before and this one; the first token gets it.
    """
    pairs = zip(spellings, logprobs, strict=True)
    tokens = [TextToken(spelling, logprob) for spelling, logprob in pairs if spelling]
    if tokens and joint:
        tokens[0] = replace(tokens[0], spelling=joint.encode() + tokens[0].spelling)
    return tokens


def within(tokens: Sequence[TextToken], text: str) -> list[TextToken]:
    """Take the tokens that are whole in the first part of their text."""
    room, count = len(text.encode()), 0
    for token in tokens:
        room -= len(token.spelling)
        if room < 0:
            break
        count += 1
    return list(tokens[:count])


def trimmed(tokens: Sequence[TextToken]) -> list[TextToken]:
    """Take white space off the end; a token that is nothing else goes with it."""
    whole = b"".join(token.spelling for token in tokens)
    text = whole.decode(errors="surrogateescape")  # broken bytes come back as they were
    room = len(text.rstrip().encode(errors="surrogateescape"))
    kept: list[TextToken] = []
    for token in tokens:
        if room <= 0:
            break
        kept.append(replace(token, spelling=token.spelling[:room]))
        room -= len(token.spelling)
    return kept
