"""The byte-level BPE tokenizer of the Qwen family, read from vocab.json and merges.txt.

A user's text is never parsed for special tokens: `<|im_end|>` typed by a user is text. The
templates put special tokens in by id.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from izwi.checkpoints.folder import read_json
from izwi.errors import CheckpointError

# How text is cut before merging, as published in the family's tokenizer.json.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTROL = re.compile(r"<\|.+\|>")
# Vowels and final consonants of Hangul: they join the letter before them, yet are no marks.
_HANGUL_JOINING = range(0x1160, 0x1200)

Vocabulary = dict[str, int]


def _letter_bytes() -> dict[str, int]:
    """Return the byte of each letter of a byte-level vocabulary."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(0x100) if byte not in plain)
    letters = {chr(byte): byte for byte in plain}
    return letters | {chr(0x100 + place): byte for place, byte in enumerate(others)}


LETTER_BYTES = _letter_bytes()


@dataclass(frozen=True, slots=True)
class Added:
    """A token outside the merges. Special tokens are not part of the decoded text."""

    index: int
    is_special: bool


class TextTokenizer(Protocol):
    """What chat models need of a tokenizer; `QwenTokenizer` says what each method does."""

    @property
    def added_tokens(self) -> dict[str, int]:
        """Ids of the tokens outside the merges, by their text."""
        ...

    @property
    def control_tokens(self) -> dict[str, int]:
        """Return the special ones among them."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text."""
        ...

    def spell(self, index: int, keep: Iterable[str] = ()) -> bytes:
        """Return the bytes of a token."""
        ...


class QwenTokenizer:
    """Turns text into ids and back."""

    def __init__(self, folder: Path):
        """Read `folder`.

        Raises:
            CheckpointError: A file is missing or broken; it is named.
        """
        self._folder = folder
        try:
            vocab, merges, added = _read_files(folder)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{folder}: the tokenizer's files are not of the published form: {error!r}"
            ) from error
        if not added:  # some exports list the control tokens in the vocabulary alone
            added = {
                piece: Added(i, True) for piece, i in vocab.items() if _CONTROL.fullmatch(piece)
            }
        self._added = added
        try:
            bpe = models.BPE(vocab=vocab, merges=merges)
        except Exception as error:  # tokenizers raises a bare Exception for a broken merge list
            reason = str(error).partition("\n")[0]
            raise CheckpointError(
                f"{folder}: merges do not fit the vocabulary: {reason}"
            ) from error
        self._tokenizer = Tokenizer(bpe)
        self._tokenizer.normalizer = normalizers.NFC()
        self._split = pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated")
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [self._split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        self._tokenizer.decoder = decoders.ByteLevel()
        self._vocab = vocab
        self._pieces = {entry.index: piece for piece, entry in added.items()}

    def id_of(self, special: str) -> int:
        """Id of a special token.

        Raises:
            CheckpointError: The checkpoint has no such token.
        """
        if special in self._added:
            return self._added[special].index
        if special in self._vocab:
            return self._vocab[special]
        raise CheckpointError(f"{self._folder}: the tokenizer lacks the token {special!r}")

    @property
    def added_tokens(self) -> dict[str, int]:
        """Ids of the tokens outside the merges, by their text."""
        return {piece: entry.index for piece, entry in self._added.items()}

    @property
    def control_tokens(self) -> dict[str, int]:
        """Return the special ones among them, which are not part of the text."""
        return {piece: entry.index for piece, entry in self._added.items() if entry.is_special}

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; special tokens in it are spelled out as text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def normalize(self, text: str) -> str:
        """Text as it is split: NFC."""
        return str(self._tokenizer.normalizer.normalize_str(text))

    def split(self, normalized: str) -> list[tuple[str, int]]:
        """Return pieces of normalised text that no merge crosses, each with its end."""
        pieces = self._split.pre_tokenize_str(normalized)
        return [(piece, stop) for piece, (_, stop) in pieces]

    def encode_pieces(self, pieces: list[str]) -> list[int]:
        """Return the ids of pieces from `split`, encoded separately."""
        encoded = self._tokenizer.encode(pieces, is_pretokenized=True, add_special_tokens=False)
        return list(encoded.ids)

    def decode(self, ids: Iterable[int], keep: Iterable[str] = ()) -> str:
        """Return the text of ids, without special tokens except those in `keep`.

        Tokens that are added but not special, such as `<tool_call>`, are text.

        Bytes that are not UTF-8 (yet) become U+FFFD.
        """
        kept = set(keep)
        out: list[str] = []
        run: list[int] = []
        for index in ids:
            piece = self._pieces.get(index)
            if piece is None:
                run.append(index)
                continue
            out.append(self._flush(run))
            if piece in kept or not self._added[piece].is_special:
                out.append(piece)
        out.append(self._flush(run))
        return "".join(out)

    def spell(self, index: int, keep: Iterable[str] = ()) -> bytes:
        """Return the bytes of a token; empty for an unknown id or a special token not in `keep`."""
        added = self._pieces.get(index)
        if added is not None:
            is_text = added in keep or not self._added[added].is_special
            return added.encode() if is_text else b""
        letters = self._tokenizer.id_to_token(index) or ""
        if all(letter in LETTER_BYTES for letter in letters):
            return bytes(LETTER_BYTES[letter] for letter in letters)
        return letters.encode()

    def spell_vocabulary(self, count: int) -> tuple[list[bytes], list[int]]:
        """Return the bytes of ids below `count`, and the ids of added tokens."""
        added = self.added_tokens
        return [self.spell(index, added) for index in range(count)], sorted(added.values())

    def _flush(self, run: list[int]) -> str:
        text = str(self._tokenizer.decode(run, skip_special_tokens=False)) if run else ""
        run.clear()
        return text


class IncrementalTokenizer:
    """Ids of a text that is still being written. A returned id never changes.

    Text whose ids may still change is held back: the last character with its accents (they may
    compose), the last piece that merges act within, and white space at the end, whose split depends
    on what follows. A word is therefore returned with the first character after it, and text
    without spaces at the next punctuation mark. The ids of all calls are `QwenTokenizer.encode` of
    the whole text, however it was cut.
    """

    def __init__(self, tokenizer: QwenTokenizer):
        self._tokenizer = tokenizer
        self._raw = ""  # not normalised yet
        self._text = ""  # normalised, its ids not returned yet

    def write(self, text: str, *, word_ends: bool = False) -> list[int]:
        """Add text and return the ids that are now settled.

        Args:
            text: May be cut anywhere.
            word_ends: Whether the end or a space follows, so that nothing is held back.
        """
        self._raw += text
        stop = len(self._raw) if word_ends else _normal_boundary(self._raw)
        if stop == 0:
            return []
        self._text += self._tokenizer.normalize(self._raw[:stop])
        self._raw = self._raw[stop:]
        return self._encode_settled(word_ends)

    def close(self) -> list[int]:
        """Return the rest, as no text follows."""
        ids = self._tokenizer.encode(self._text + self._raw)
        self._raw = self._text = ""
        return ids

    def _encode_settled(self, word_ends: bool) -> list[int]:
        # Python's white space includes more characters than the split's; holding back more is safe.
        solid = len(self._text.rstrip())
        settled: list[str] = []
        start = 0
        for piece, stop in self._tokenizer.split(self._text):
            if start >= solid or (stop == len(self._text) and not word_ends):
                break
            settled.append(piece)
            start = stop
        self._text = self._text[start:]
        return self._tokenizer.encode_pieces(settled) if settled else []


def _normal_boundary(text: str) -> int:
    """Return the length whose NFC is the same whatever follows: up to the last base character."""
    for index in range(len(text) - 1, -1, -1):
        if not _joins(text[index]):
            return index
    return 0


def _joins(character: str) -> bool:
    """Return whether a character may compose with, or be reordered among, previous ones.

    Marks and joining Hangul, and characters unknown to this Unicode version.
    """
    category = unicodedata.category(character)
    return category[0] == "M" or category == "Cn" or ord(character) in _HANGUL_JOINING


def _read_files(folder: Path) -> tuple[Vocabulary, list[tuple[str, str]], dict[str, Added]]:
    """Vocabulary, merges and added tokens, from the published files or one tokenizer.json."""
    vocab_path, merges_path = folder / "vocab.json", folder / "merges.txt"
    if not vocab_path.is_file() and (folder / "tokenizer.json").is_file():
        return _read_combined(folder / "tokenizer.json")
    vocab = read_json(vocab_path)
    if not merges_path.is_file():
        raise CheckpointError(f"{merges_path} is missing")
    try:
        lines = merges_path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{merges_path} is not UTF-8 text: {error}") from error
    merges = [
        _pair(line, merges_path) for line in lines if line and not line.startswith("#version")
    ]
    return vocab, merges, _read_added(folder, vocab)


def _read_combined(path: Path) -> tuple[Vocabulary, list[tuple[str, str]], dict[str, Added]]:
    whole = read_json(path)
    model = whole.get("model", {})
    if model.get("type") != "BPE":
        raise CheckpointError(f"{path} does not hold a BPE model")
    merges = [_pair(" ".join(m) if isinstance(m, list) else m, path) for m in model["merges"]]
    added = {
        _content(entry): Added(int(entry["id"]), entry.get("special", True))
        for entry in whole.get("added_tokens", [])
    }
    return model["vocab"], merges, added


def _read_added(folder: Path, vocab: Vocabulary) -> dict[str, Added]:
    """Added tokens, from whichever of the three files list them."""
    config, names, indices = (
        read_json(folder / name) if (folder / name).is_file() else {}
        for name in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
    )
    added = {
        _content(entry): Added(int(index), entry.get("special", True))
        for index, entry in (config.get("added_tokens_decoder") or {}).items()
    }
    special = _special_names(config) | _special_names(names)
    for name, index in indices.items():
        added.setdefault(name, Added(int(index), name in special))
    for name in special & vocab.keys():
        added.setdefault(name, Added(vocab[name], True))
    return added


def _content(entry: Mapping[str, Any]) -> str:
    """Return the text of an added token. Raises KeyError and TypeError, as other broken entries."""
    content = entry["content"]
    if not isinstance(content, str):
        raise TypeError(f"the content of an added token is {content!r:.80}")
    return content


def _special_names(values: Mapping[str, Any]) -> set[str]:
    """Special tokens that a file lists by role: eos_token, additional_special_tokens ..."""
    listed = [value for key, value in values.items() if key.endswith("_token")]
    listed += values.get("additional_special_tokens") or []
    # a token is spelled out, or an object with its flags
    contents = [entry.get("content") if isinstance(entry, dict) else entry for entry in listed]
    return {content for content in contents if isinstance(content, str)}


def _pair(line: str, path: Path) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    if not left or not right or " " in right:
        raise CheckpointError(f"{path}: {line!r} is not a pair of tokens")
    return left, right
