"""Text of a speech request: to ids in the chat template, and into pieces a checkpoint can say.

Source of the template: qwen-tts 0.1.1, inference/qwen3_tts_model.py. It tokenises a whole turn
and cuts the first 3 ids off, which are the role, so a text that begins with a line break is
joined to the role's. Here the role and the text go through the tokenizer together for that
reason, but the special tokens are put around them by id: a user's text cannot close its turn.
"""

from __future__ import annotations

import re

from izwi.errors import CheckpointError
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_tts.config import TTSConfig

_OPENING = "assistant\n"
_ROLE_IDS = 2  # of the opening; with im_start before them they are the role's three positions

# Where a piece may end, best first. A closing quote or bracket stays with its sentence.
_ENDS = (
    re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]+[”’」』）]*|\n+"),
    re.compile(r"[,;:–—]+[\"'”’)\]]*(?=\s)|[，、；：]"),
    re.compile(r"\s+"),
)


class SpeechText:
    """A checkpoint's tokenizer and the template around what is said."""

    def __init__(self, tokenizer: QwenTokenizer, config: TTSConfig):
        """Bind the two.

        Raises:
            CheckpointError: The tokenizer does not read "assistant" and a line break as two
                tokens, the first being assistant_token_id; the template cannot be cut then.
        """
        self._tokenizer = tokenizer
        self._start, self._end = config.im_start_token_id, config.im_end_token_id
        opening = tokenizer.encode(_OPENING)
        if len(opening) != _ROLE_IDS or opening[0] != config.assistant_token_id:
            raise CheckpointError(
                f"the tokenizer reads {_OPENING!r} as {opening}, expected "
                f"[{config.assistant_token_id}, (line break)]"
            )
        self._newline = opening[1]

    def role_and_text(self, text: str) -> tuple[list[int], list[int]]:
        """Ids of the role's three positions and of the text after them."""
        ids = self._tokenizer.encode(_OPENING + text)
        return [self._start, *ids[:_ROLE_IDS]], ids[_ROLE_IDS:]

    def reference(self, text: str) -> list[int]:
        """Ids of what a reference clip says."""
        return self.role_and_text(text)[1]

    def instruct(self, text: str) -> list[int]:
        """Ids of an instruction: a user's turn with its markers. None for empty text."""
        if not text:
            return []
        ids = self._tokenizer.encode(f"user\n{text}")
        return [self._start, *ids, self._end, self._newline]


def split_text(text: str, limit: int | None) -> list[str]:
    """Cut text into pieces of at most `limit` characters.

    A piece ends after a sentence where one ends within the limit, else after a clause, else after
    a word, else (no space within the limit) anywhere. Pieces lose the white space at their edges
    and nothing else, and stay in order.

    Args:
        text: Any text.
        limit: At least 1; None leaves the text whole.
    """
    rest = text.strip()
    if limit is None or len(rest) <= limit:
        return [text]
    pieces = []
    while len(rest) > limit:
        cut = _cut(rest, limit)
        pieces.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    return [*pieces, rest] if rest else pieces


def _cut(text: str, limit: int) -> int:
    """Where the first piece of `text`, which is longer than `limit`, ends."""
    window = text[: limit + 1]  # a mark on the limit counts if white space follows
    for end in _ENDS:
        cuts = [match.end() for match in end.finditer(window) if match.end() <= limit]
        if cuts:
            return cuts[-1]
    return limit
