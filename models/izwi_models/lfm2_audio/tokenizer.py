"""The tokenizer of LFM2: its tokenizer.json, read with the library that wrote it.

A user's text is never parsed for control tokens: `<|im_end|>` typed by a user is text. Prompts put
control tokens in by id.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from izwi.errors import CheckpointError
from izwi.inputs.chat import AnswerText
from izwi_models.qwen3.tokenizer import LETTER_BYTES


class LFM2Tokenizer:
    """Turns text into ids and back."""

    def __init__(self, folder: Path):
        """Read `folder`/tokenizer.json.

        Raises:
            CheckpointError: The file is missing or is not a tokenizer.
        """
        self._path = folder / "tokenizer.json"
        if not self._path.is_file():
            raise CheckpointError(f"{self._path} is missing")
        try:
            self._tokenizer = Tokenizer.from_file(str(self._path))
        except Exception as error:  # the library raises no narrower exception
            reason = str(error).partition("\n")[0]
            raise CheckpointError(f"{self._path} is not a tokenizer: {reason}") from error
        self._tokenizer.encode_special_tokens = True  # those in a text are encoded as plain text
        added: dict[int, AddedToken] = self._tokenizer.get_added_tokens_decoder()
        self._added = added
        names = sorted((token.content for token in added.values()), key=len, reverse=True)
        self._controls = re.compile("|".join(map(re.escape, names)) or r"(?!)")

    @property
    def vocab_size(self) -> int:
        """Return the number of ids, including those of control tokens."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def id_of(self, control: str) -> int:
        """Id of a control token.

        Raises:
            CheckpointError: The checkpoint has no such token.
        """
        index = self._tokenizer.token_to_id(control)
        if index is None:
            raise CheckpointError(f"{self._path}: there is no token {control!r}")
        return int(index)

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; control tokens in it are spelled out as text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_controls(self, text: str) -> list[int]:
        """Ids of text in which control tokens are meant as such."""
        ids: list[int] = []
        at = 0
        for control in self._controls.finditer(text):
            ids += [*self.encode(text[at : control.start()]), self.id_of(control.group())]
            at = control.end()
        return ids + self.encode(text[at:])

    @property
    def control_ids(self) -> list[int]:
        """Ids of control tokens, ascending."""
        return sorted(index for index, token in self._added.items() if token.special)

    def name(self, index: int) -> bytes:
        """Return the bytes of one token; for a control token its name."""
        added = self._added.get(index)
        return self.spell(index) if added is None else added.content.encode()

    def spell(self, index: int) -> bytes:
        """Return the bytes of one token; empty for a control token or an unknown id."""
        added = self._added.get(index)
        if added is not None:
            return b"" if added.special else added.content.encode()
        letters = self._tokenizer.id_to_token(index) or ""
        if all(letter in LETTER_BYTES for letter in letters):
            return bytes(LETTER_BYTES[letter] for letter in letters)
        return letters.encode()

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids without control tokens; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.spell, ids)).decode("utf-8", "replace")


class TextReader:
    """Reads an answer's text while it is generated. Implements `izwi.inputs.chat.AnswerReader`."""

    num_reasoning_tokens = 0  # it does not think
    num_calls = 0  # nor call functions
    ended = False

    def __init__(self, tokenizer: LFM2Tokenizer):
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def spell(self, token_id: int) -> bytes:
        """Return the bytes of one token; control tokens have their name."""
        return self._tokenizer.name(token_id)

    def read(self, token_ids: Seq[int]) -> AnswerText:
        """Return what these tokens add."""
        text = "".join(self._decoder.decode(self._tokenizer.spell(i)) for i in token_ids)
        return AnswerText("", text)

    def close(self) -> AnswerText:
        """Return the rest of the text; an incomplete character becomes U+FFFD."""
        return AnswerText("", self._decoder.decode(b"", final=True))
