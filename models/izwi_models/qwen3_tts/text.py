"""Text of a speech request: to ids in the chat template, and into pieces a checkpoint can say.

Source of the template: qwen-tts 0.1.1, inference/qwen3_tts_model.py. It tokenises a whole turn
and cuts it by counting ids, whatever they stand for: a text that begins with a line break is joined
to the role's, and a tokenizer of bytes alone leaves most of the role in the text. Here the turn is
cut in the same places, but the special tokens go in by id: a user's text cannot close its turn.
"""

from __future__ import annotations

import re

from izwi_models.qwen3.tokenizer import QwenTokenizer

_START, _END = "<|im_start|>", "<|im_end|>"
# Ids at the edges of a turn that are not its text.
_ROLE_IDS, _CLOSING_IDS, _REFERENCE_CLOSING_IDS = 3, 5, 2

# Where a piece may end, best first. A closing quote or bracket stays with its sentence.
_ENDS = (
    re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]+[”’」』）]*|\n+"),
    re.compile(r"[,;:–—]+[\"'”’)\]]*(?=\s)|[，、；：]"),
    re.compile(r"\s+"),
)


class SpeechText:
    """A checkpoint's tokenizer and the template around what is said."""

    def __init__(self, tokenizer: QwenTokenizer):
        """Bind a checkpoint's tokenizer.

        Raises:
            CheckpointError: It lacks a token of the template.
        """
        self._tokenizer = tokenizer
        self._start, self._end = tokenizer.id_of(_START), tokenizer.id_of(_END)

    def role_and_text(self, text: str) -> tuple[list[int], list[int]]:
        """Ids of the role's three positions and of the text after them."""
        ids = self._turn("assistant", text) + self._opening("assistant", "")
        return ids[:_ROLE_IDS], ids[_ROLE_IDS:-_CLOSING_IDS]

    def reference(self, text: str) -> list[int]:
        """Ids of what a reference clip says."""
        return self._turn("assistant", text)[_ROLE_IDS:-_REFERENCE_CLOSING_IDS]

    def instruct(self, text: str) -> list[int]:
        """Ids of an instruction: a user's turn with its markers. None for empty text."""
        return self._turn("user", text) if text else []

    def _opening(self, role: str, text: str) -> list[int]:
        return [self._start, *self._tokenizer.encode(f"{role}\n{text}")]

    def _turn(self, role: str, text: str) -> list[int]:
        return [*self._opening(role, text), self._end, *self._tokenizer.encode("\n")]


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
