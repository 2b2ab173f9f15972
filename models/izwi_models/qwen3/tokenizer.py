"""The byte-level BPE tokenizer of the Qwen family, read from vocab.json and merges.txt.

A user's text is never parsed for special tokens: `<|im_end|>` typed by a user is text. The
templates put special tokens in by id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from izwi.checkpoint import read_json
from izwi.errors import CheckpointError

# How text is cut before merging, as published in the family's tokenizer.json.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTROL = re.compile(r"<\|.+\|>")


class QwenTokenizer:
    """Turns text into ids and back."""

    def __init__(self, folder: Path):
        """Read `folder`.

        Raises:
            CheckpointError: A file is missing or broken; it is named.
        """
        self._folder = folder
        vocab, merges, added = _read_files(folder)
        # some exports list the control tokens in the vocabulary alone
        spelled = {piece: index for piece, index in vocab.items() if _CONTROL.fullmatch(piece)}
        self._specials: dict[str, int] = {**spelled, **added}
        try:
            bpe = models.BPE(vocab=vocab, merges=merges)
        except Exception as error:  # tokenizers raises a bare Exception for a broken merge list
            raise CheckpointError(f"{folder}: merges do not fit the vocabulary: {error}") from error
        self._tokenizer = Tokenizer(bpe)
        self._tokenizer.normalizer = normalizers.NFC()
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        self._tokenizer.decoder = decoders.ByteLevel()
        self._vocab = vocab
        self._pieces = {index: piece for piece, index in {**vocab, **self._specials}.items()}

    def id_of(self, special: str) -> int:
        """Id of a special token.

        Raises:
            CheckpointError: The checkpoint has no such token.
        """
        for table in (self._specials, self._vocab):
            if special in table:
                return table[special]
        raise CheckpointError(f"{self._folder}: the tokenizer lacks the token {special!r}")

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; special tokens in it are spelled out as text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int], keep: Iterable[str] = ()) -> str:
        """Text of ids without special tokens, but for those in `keep`.

        Bytes that are not UTF-8 (yet) come out as U+FFFD.
        """
        kept = set(keep)
        out: list[str] = []
        run: list[int] = []
        for index in ids:
            piece = self._pieces.get(index)
            if piece in self._specials:
                out.append(self._flush(run))
                out.append(piece if piece in kept else "")
            else:
                run.append(index)
        out.append(self._flush(run))
        return "".join(out)

    def _flush(self, run: list[int]) -> str:
        text = str(self._tokenizer.decode(run, skip_special_tokens=False)) if run else ""
        run.clear()
        return text


def _read_files(folder: Path) -> tuple[dict[str, int], list[tuple[str, str]], dict[str, int]]:
    """Vocabulary, merges and added tokens, from the published files or one tokenizer.json."""
    vocab_path, merges_path = folder / "vocab.json", folder / "merges.txt"
    if not vocab_path.is_file() and (folder / "tokenizer.json").is_file():
        return _read_combined(folder / "tokenizer.json")
    vocab = read_json(vocab_path)
    if not merges_path.is_file():
        raise CheckpointError(f"{merges_path} is missing")
    lines = merges_path.read_text(encoding="utf-8").splitlines()
    merges = [
        _pair(line, merges_path) for line in lines if line and not line.startswith("#version")
    ]
    added: dict[str, int] = {}
    if (folder / "tokenizer_config.json").is_file():
        listed = read_json(folder / "tokenizer_config.json").get("added_tokens_decoder", {})
        added = {entry["content"]: int(index) for index, entry in listed.items()}
    return vocab, merges, added


def _read_combined(path: Path) -> tuple[dict[str, int], list[tuple[str, str]], dict[str, int]]:
    whole = read_json(path)
    model = whole.get("model", {})
    if model.get("type") != "BPE":
        raise CheckpointError(f"{path} does not hold a BPE model")
    merges = [_pair(" ".join(m) if isinstance(m, list) else m, path) for m in model["merges"]]
    added = {entry["content"]: int(entry["id"]) for entry in whole.get("added_tokens", [])}
    return model["vocab"], merges, added


def _pair(line: str, path: Path) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    if not left or not right or " " in right:
        raise CheckpointError(f"{path}: {line!r} is not a pair of tokens")
    return left, right
