"""The tokens that end an answer of the family's text models."""

from __future__ import annotations

from pathlib import Path

from izwi.checkpoints.folder import read_json
from izwi.errors import CheckpointError

# defaults of the reference's generate(): <|im_end|>, <|endoftext|>
_DEFAULT_STOP_IDS = (151645, 151643)


def read_stop_ids(folder: Path, vocab_size: int) -> tuple[int, ...]:
    """Read the ids that end an answer from generation_config.json.

    Ids past the vocabulary are left out, because they are never drawn: small checkpoints have the
    published file, or none.

    Raises:
        CheckpointError: They are not ids.
    """
    path = folder / "generation_config.json"
    listed = read_json(path).get("eos_token_id") if path.is_file() else None
    if listed is None:
        listed = list(_DEFAULT_STOP_IDS)
    ids = listed if isinstance(listed, list) else [listed]
    if not all(type(i) is int and i >= 0 for i in ids):
        raise CheckpointError(
            f"{path}: eos_token_id must be an id or a list of ids, got {listed!r}"
        )
    return tuple(i for i in ids if i < vocab_size)
