"""What API servers need of any text model's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from izwi.checkpoints.folder import read_json
from izwi.errors import CheckpointError
from izwi_models.qwen3_chat.config import GenerationConfig

# The names that architectures give to the longest sequence.
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
# Of models that have no such number: their memory does not grow with the sequence.
_UNLIMITED = 1 << 17

# What transformers' `generate` does without a generation_config.json.
DEFAULTS = GenerationConfig(do_sample=False, temperature=1.0, top_k=50, top_p=1.0)


@dataclass(frozen=True, slots=True)
class AnyConfig:
    """Sizes of one checkpoint."""

    vocab_size: int
    max_position_embeddings: int


def read_config(folder: Path) -> AnyConfig:
    """Read config.json. Raises CheckpointError, which names the key."""
    path = folder / "config.json"
    values = text_values(read_json(path))
    vocabulary: Any = values.get("vocab_size")
    length: Any = next(
        (values[name] for name in _LENGTHS if values.get(name) is not None), _UNLIMITED
    )
    for name, number in (("vocab_size", vocabulary), ("max_position_embeddings", length)):
        if type(number) is not int or number < 1:
            raise CheckpointError(f"{path}: {name} must be a positive number, got {number!r}")
    return AnyConfig(vocabulary, length)


def text_values(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a configuration that is about text."""
    inner = values.get("text_config")
    return {**values, **inner} if isinstance(inner, Mapping) else values


def read_stop_ids(folder: Path, vocab_size: int, end: int | None) -> tuple[int, ...]:
    """Return the ids that end an answer: of generation_config.json, or of config.json.

    Args:
        folder: The checkpoint.
        vocab_size: Larger ids are left out.
        end: The tokenizer's `eos_token`, if the two files name none.

    Raises:
        CheckpointError: They are not ids.
    """
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        listed = text_values(read_json(path)).get("eos_token_id") if path.is_file() else None
        if listed is None:
            continue
        ids = listed if isinstance(listed, list) else [listed]
        if not all(type(index) is int and index >= 0 for index in ids):
            raise CheckpointError(f"{path}: eos_token_id must be an id or several, got {listed!r}")
        return tuple(index for index in ids if index < vocab_size)
    return () if end is None else (end,)
