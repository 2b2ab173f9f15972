"""The tokenizer's files in published layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from izwi.errors import CheckpointError
from izwi_models.qwen3.tokenizer import QwenTokenizer
from tests.models.tiny_tts import byte_pieces

VOCABULARY = {piece: index for index, piece in enumerate(byte_pieces())}


def write(folder: Path, **files: Any) -> None:
    (folder / "vocab.json").write_text(json.dumps(VOCABULARY), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")


def entry(content: str, *, special: bool) -> dict[str, Any]:
    return {"content": content, "special": special}


FILES = {
    "decoder": {
        "tokenizer_config": {
            "added_tokens_decoder": {
                "300": entry("<|im_start|>", special=True),
                "301": entry("<tool_call>", special=False),
            }
        }
    },
    "two files": {
        "added_tokens": {"<|im_start|>": 300, "<tool_call>": 301},
        "special_tokens_map": {"additional_special_tokens": ["<|im_start|>"]},
    },
    "roles": {
        "added_tokens": {"<|im_start|>": 300, "<tool_call>": 301},
        "tokenizer_config": {
            "added_tokens_decoder": None,
            "eos_token": {"content": "<|im_start|>"},
        },
    },
}


@pytest.mark.parametrize("files", FILES.values(), ids=FILES)
def test_added_tokens_are_found_wherever_they_are_listed(
    tmp_path: Path, files: dict[str, Any]
) -> None:
    write(tmp_path, **files)
    tokenizer = QwenTokenizer(tmp_path)
    assert tokenizer.id_of("<|im_start|>") == 300
    assert tokenizer.id_of("<tool_call>") == 301
    ids = [300, *tokenizer.encode("hé"), 301, *tokenizer.encode("!")]
    assert tokenizer.decode(ids) == "hé<tool_call>!"  # added, but not special
    assert tokenizer.decode(ids, keep=("<|im_start|>",)) == "<|im_start|>hé<tool_call>!"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.json", b'{"a": "b"}', "vocabulary"),
        ("merges.txt", b"\xff\xff x\n", "merges.txt is not UTF-8"),
        ("merges.txt", b"a b c\n", "merges.txt"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"x": {}}}', "published form"),
    ],
)
def test_a_broken_file_fails_with_one_line(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    write(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as reported:
        QwenTokenizer(tmp_path)
    assert "\n" not in str(reported.value)
