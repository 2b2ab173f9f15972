"""The tokenizer of any checkpoint that has a tokenizer.json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from izwi.checkpoints.folder import read_json
from izwi.errors import CheckpointError
from izwi_models.qwen3.tokenizer import LETTER_BYTES
from izwi_models.qwen3_chat.template import ChatTemplate

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"  # how SentencePiece writes a space


class JsonTokenizer:
    """Turns text into ids as transformers does, and ids into bytes.

    Implements `izwi_models.qwen3.tokenizer.TextTokenizer`.
    """

    def __init__(self, folder: Path):
        """Read tokenizer.json.

        Raises:
            CheckpointError: It is missing, broken, or spells its tokens in a way not known here.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(f"{path} is missing: transformers' fast tokenizers write it")
        values = read_json(path)
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises a bare Exception
            raise CheckpointError(f"{path} is broken: {error}") from error
        added = [entry for entry in values.get("added_tokens") or [] if isinstance(entry, dict)]
        self._added = {str(entry["content"]): int(entry["id"]) for entry in added}
        self._control = {str(e["content"]): int(e["id"]) for e in added if e.get("special", True)}
        self._names = {index: content for content, index in self._added.items()}
        decoder = _types(values.get("decoder"))
        self._spells_letters = "ByteLevel" in decoder
        if not self._spells_letters and not decoder & {"ByteFallback", "Metaspace", "Replace"}:
            raise CheckpointError(
                f"{path}: the decoder {sorted(decoder)} is neither byte-level nor SentencePiece's"
            )

    @property
    def added_tokens(self) -> dict[str, int]:
        """Ids of the tokens outside the vocabulary of the model, by their text."""
        return dict(self._added)

    @property
    def control_tokens(self) -> dict[str, int]:
        """The special ones among them, which are not part of the text."""
        return dict(self._control)

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; special tokens in it are spelled out as text."""
        return self._encode(text, as_text=True)

    def encode_with_tokens(self, text: str) -> list[int]:
        """Ids of text in which special tokens stand for themselves, as transformers reads it."""
        return self._encode(text, as_text=False)

    def _encode(self, text: str, *, as_text: bool) -> list[int]:
        self._tokenizer.encode_special_tokens = as_text
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def spell(self, index: int, keep: Iterable[str] = ()) -> bytes:
        """Return the bytes of a token; empty for an unknown id or a special token not in `keep`."""
        added = self._names.get(index)
        if added is not None:
            return added.encode() if added in keep or added not in self._control else b""
        piece = self._tokenizer.id_to_token(index) or ""
        if self._spells_letters:
            if all(letter in LETTER_BYTES for letter in piece):
                return bytes(LETTER_BYTES[letter] for letter in piece)
            return piece.encode()
        if (found := _BYTE.fullmatch(piece)) is not None:
            return bytes([int(found[1], 16)])
        return piece.replace(_SPACE, " ").encode()

    def spell_vocabulary(self, count: int) -> tuple[list[bytes], list[int]]:
        """Return the bytes of ids below `count`, and the ids of added tokens."""
        return [self.spell(i, self._added) for i in range(count)], sorted(self._added.values())


class AnyTemplate(ChatTemplate):
    """A checkpoint's template, whose text is encoded as transformers encodes it."""

    def encode_text(self, text: str, filler: str = "") -> list[int]:
        """Return ids; see `ChatTemplate.encode_text`, which does it if callers wrote tokens."""
        tokenizer = self.tokenizer
        if filler or not isinstance(tokenizer, JsonTokenizer):
            return super().encode_text(text, filler)
        return tokenizer.encode_with_tokens(text)


def _types(value: Any) -> set[str]:
    """Return the types of a decoder and of those in it."""
    return set(re.findall(r'"type": "(\w+)"', json.dumps(value)))
