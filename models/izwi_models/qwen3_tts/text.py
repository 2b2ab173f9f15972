"""Encode the text of a speech request in the chat template.

Source of the template: qwen-tts 0.1.1, inference/qwen3_tts_model.py. It tokenizes a whole turn and
cuts it by counting ids. So a line break at the start of the text may share a token with the role's,
and a tokenizer of single bytes leaves most of the role in the text. Here the turn is cut in the
same places, but special tokens are inserted by id, so that a user's text cannot close its turn.
"""

from __future__ import annotations

from izwi_models.qwen3.tokenizer import IncrementalTokenizer, QwenTokenizer

_START, _END = "<|im_start|>", "<|im_end|>"
# Number of ids at the edges of a turn that are not its text.
ROLE_IDS, _CLOSING_IDS, _REFERENCE_CLOSING_IDS = 3, 5, 2


class SpeechText:
    """A checkpoint's tokenizer with the template around the text."""

    def __init__(self, tokenizer: QwenTokenizer):
        """Bind a checkpoint's tokenizer.

        Raises:
            CheckpointError: It lacks a token of the template.
        """
        self._tokenizer = tokenizer
        self._start, self._end = tokenizer.id_of(_START), tokenizer.id_of(_END)

    def role_and_text(self, text: str) -> tuple[list[int], list[int]]:
        """Return the ids of the role's three positions, and those of the text after them."""
        turn = self.open_turn()
        ids = [*turn.write(text), *turn.close()]
        return turn.role, ids

    def open_turn(self) -> OpenTurn:
        """Return a turn whose text is still to be written."""
        closing = [self._end, *self._tokenizer.encode("\n"), *self._opening("assistant", "")]
        # a tokenizer of single bytes leaves some of the closing in the text
        last = closing[: len(closing) - _CLOSING_IDS]
        return OpenTurn(IncrementalTokenizer(self._tokenizer), self._start, last)

    def reference(self, text: str) -> list[int]:
        """Return the ids of a reference clip's text."""
        return self._turn("assistant", text)[ROLE_IDS:-_REFERENCE_CLOSING_IDS]

    def instruct(self, text: str) -> list[int]:
        """Return the ids of an instruction, a user's turn with its markers; [] for empty text."""
        return self._turn("user", text) if text else []

    def _opening(self, role: str, text: str) -> list[int]:
        return [self._start, *self._tokenizer.encode(f"{role}\n{text}")]

    def _turn(self, role: str, text: str) -> list[int]:
        return [*self._opening(role, text), self._end, *self._tokenizer.encode("\n")]


class OpenTurn:
    """The assistant's turn while its text is written. Ids that were returned never change.

    Attributes:
        role: Ids of the role's three positions, complete once the text has an id.
    """

    def __init__(self, tokenizer: IncrementalTokenizer, start: int, last: list[int]):
        """Begin with the id `start`; the ids `last` follow the text."""
        self.role = [start]
        self._tokenizer, self._last = tokenizer, last
        self._append_ids(tokenizer.write("assistant\n"))

    def write(self, text: str, *, word_ends: bool = False) -> list[int]:
        """Add text; return its ids that are now settled.

        See `IncrementalTokenizer.write` for `word_ends`.
        """
        return self._append_ids(self._tokenizer.write(text, word_ends=word_ends))

    def close(self) -> list[int]:
        """Return the ids of the rest."""
        return self._append_ids(self._tokenizer.close()) + self._last

    def _append_ids(self, ids: list[int]) -> list[int]:
        missing = ROLE_IDS - len(self.role)
        self.role += ids[:missing]
        return ids[missing:]
