"""A GGUF file as a checkpoint's folder, which everything that reads published folders reads.

Configuration and tokenizer are written as files, beside an index of the weights, which stay where
they are.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from izwi.checkpoints.folder import read_json
from izwi.checkpoints.gguf_file import GgufFile, GgufTensor, read_gguf
from izwi.errors import CheckpointError
from izwi.model.family import Family

INDEX = "model.gguf.index.json"
# Types of tokens in `tokenizer.ggml.token_type`.
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
_END = "<|endoftext|>"
_SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}


def folder_name(path: Path) -> str:
    """Return a name for the folder of a file, which changes with the file."""
    state = path.stat()
    identity = f"{path.resolve()} {state.st_size} {state.st_mtime_ns}"
    return f"{path.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def write_folder(path: Path, folder: Path, families: Iterable[Family]) -> Path:
    """Write the folder of a GGUF file; nothing if it is there.

    Args:
        path: The file.
        folder: The folder to make.
        families: Families that may load it.

    Returns:
        The folder.

    Raises:
        CheckpointError: The file is broken, no family loads its architecture, or a tensor or key is
            unknown or missing; it is named.
    """
    if (folder / INDEX).is_file():
        return folder
    files = _files_of(read_gguf(path), families)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        for name, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
            (made / name).write_text(text, encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)  # whole or not at all
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def gguf_tensors(folder: Path) -> dict[str, GgufTensor] | None:
    """Return the tensors of such a folder by published names; None of another folder.

    Raises CheckpointError.
    """
    if not (folder / INDEX).is_file():
        return None
    index = read_json(folder / INDEX)
    path, names = Path(str(index.get("file"))), index.get("weight_map")
    if not isinstance(names, dict):
        raise CheckpointError(f"{folder / INDEX} lacks the object 'weight_map'")
    if not path.is_file():
        raise CheckpointError(f"{path} is named by {folder / INDEX} but is missing")
    tensors = read_gguf(path, only=("general.", "split.")).tensors
    if missing := sorted(set(map(str, names.values())) - tensors.keys()):
        raise CheckpointError(f"{path} lacks the tensor {missing[0]!r} that {INDEX} names")
    return {published: tensors[str(name)] for published, name in names.items()}


def gguf_path(folder: Path) -> Path | None:
    """Return the file of such a folder's weights; None of another folder."""
    index = folder / INDEX
    return Path(str(read_json(index).get("file"))) if index.is_file() else None


def _files_of(file: GgufFile, families: Iterable[Family]) -> dict[str, Any]:
    """Return the contents of the folder's files by name."""
    by_architecture = {one.gguf.architecture: one.gguf for one in families if one.gguf is not None}
    architecture = file.get("general.architecture", str)
    if architecture not in by_architecture:
        known = ", ".join(sorted(by_architecture))
        raise CheckpointError(
            f"{file.path}: architecture {architecture!r} is not supported: {known} is"
        )
    family = by_architecture[architecture]
    names: dict[str, str] = {}
    for name in file.tensors:
        published = family.published_name(name)
        if published is None:
            raise CheckpointError(f"{file.path}: unexpected tensor {name!r}")
        names[published] = name
    shapes = {published: file.tensors[name].shape for published, name in names.items()}
    return {
        "config.json": family.config(file.get, shapes),
        **_tokenizer(file),
        "generation_config.json": _generation(file),
        INDEX: {"file": str(file.path.resolve()), "weight_map": names},
    }


def _tokenizer(file: GgufFile) -> dict[str, Any]:
    """Return vocab.json, merges.txt and tokenizer_config.json of a byte-level BPE."""
    model = file.get("tokenizer.ggml.model", str)
    if model != "gpt2":
        raise CheckpointError(f"{file.path}: tokenizer {model!r} is not supported: 'gpt2' is")
    tokens, merges = (file.get(f"tokenizer.ggml.{name}", list) for name in ("tokens", "merges"))
    kinds = file.get("tokenizer.ggml.token_type", list)
    if len(kinds) != len(tokens):
        raise CheckpointError(
            f"{file.path}: {len(kinds)} token types do not fit {len(tokens)} tokens"
        )
    added = (_CONTROL, _USER_DEFINED)
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    config: dict[str, Any] = {
        "added_tokens_decoder": {
            str(i): {"content": token, "special": kind == _CONTROL, **plain}
            for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind in added
        }
    }
    if template := file.metadata.get("tokenizer.chat_template"):
        config["chat_template"] = template
    for role in ("bos", "eos"):
        index = file.metadata.get(f"tokenizer.ggml.{role}_token_id")
        config[f"{role}_token"] = tokens[index] if _is_id(index, tokens) else None
    vocabulary = {
        token: i
        for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind not in (*added, _UNUSED)
    }
    return {
        "vocab.json": vocabulary,
        "merges.txt": "\n".join(["#version: 0.2", *merges, ""]),
        "tokenizer_config.json": config,
    }


def _generation(file: GgufFile) -> dict[str, Any]:
    """Return generation_config.json: ids that end an answer, and sampling where it is stored."""
    tokens = file.get("tokenizer.ggml.tokens", list)
    ends = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    ends += [tokens.index(_END)] if _END in tokens else []
    ids = list(dict.fromkeys(i for i in ends if _is_id(i, tokens)))
    stored = {key: file.metadata.get(f"general.sampling.{name}") for name, key in _SAMPLING.items()}
    sampling = {key: value for key, value in stored.items() if value is not None}
    return {"eos_token_id": ids or None, **sampling}


def _is_id(index: object, tokens: list[str]) -> bool:
    return type(index) is int and 0 <= index < len(tokens)
