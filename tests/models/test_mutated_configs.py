"""Configurations with values that no model has are refused by name, and take no time or memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from izwi.checkpoints.registry import family_of
from izwi.errors import CheckpointError
from tests.models.tiny_chat import write_tiny_chat
from tests.models.tiny_lfm2_audio import write_tiny_lfm2_audio
from tests.models.tiny_tts import write_tiny_tts
from tests.models.tiny_vl import write_tiny_vl

KINDS = {
    "chat": write_tiny_chat,
    "tts": write_tiny_tts,
    "s2s": write_tiny_lfm2_audio,
    "vl": write_tiny_vl,
}
CODEC = "speech_tokenizer/config.json"
HUGE = (2**31, 2**63, 10**30)
# what was found: of each model, a file, the keys that lead to a value, and what it becomes
FOUND: list[tuple[str, str, str, tuple[Any, ...]]] = [
    ("chat", "config.json", "num_hidden_layers", HUGE),
    ("chat", "config.json", "head_dim", (0, -1)),
    ("chat", "config.json", "hidden_size", (0, "\ud800")),
    ("tts", "config.json", "talker_config.spk_is_dialect", ({"vivian": [0]}, {"vivian": {"a": 1}})),
    ("tts", "config.json", "talker_config.num_code_groups", HUGE),
    ("tts", CODEC, "encoder_config.compress", (0, -2)),
    ("tts", CODEC, "encoder_config.num_quantizers", HUGE),
    ("tts", CODEC, "encoder_config.num_residual_layers", HUGE),
    ("tts", CODEC, "encoder_config.upsampling_ratios", ([0], [4, 0], [-1])),
    ("s2s", "config.json", "codebooks", HUGE),
    ("s2s", "config.json", "lfm.num_hidden_layers", HUGE),
    ("s2s", "config.json", "lfm.block_multiple_of", (None, [], 0, 1e-300, "x", float("nan"))),
    ("s2s", "config.json", "lfm.block_ffn_dim_multiplier", (1e308, float("inf"), "x", -1.0)),
    ("s2s", "config.json", "lfm.layer_types", (-1, 0, True, {}, "conv", 1.5)),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("models")
    return {name: write(home / name) for name, write in KINDS.items()}


@contextmanager
def mutated(path: Path, keys: str, value: Any) -> Iterator[None]:
    """Give a value of a JSON file another one for a while."""
    before = path.read_text(encoding="utf-8")
    *outer, last = keys.split(".")
    config = json.loads(before)
    reduce(lambda part, key: part[key], outer, config)[last] = value
    path.write_text(json.dumps(config), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(before, encoding="utf-8")


@pytest.mark.parametrize(("kind", "file", "keys", "values"), FOUND)
def test_it_is_refused(
    kind: str, file: str, keys: str, values: tuple[Any, ...], folders: dict[str, Path]
) -> None:
    folder = folders[kind]
    for value in values:
        with mutated(folder / file, keys, value), pytest.raises(CheckpointError) as refused:
            family_of(folder).read_sizes(folder)
        assert len(str(refused.value)) < 1000, value
    family_of(folder).read_sizes(folder)  # as it was


TOKENS = "tokenizer_config.json", "added_tokens_decoder.269.content"
POSITIONS = "config.json", "vision_config.num_position_embeddings"
FOUND_OF_FRONTENDS: list[tuple[str, str, str, tuple[Any, ...]]] = [
    ("chat", *TOKENS, (None, 0, [], {}, 1.5)),
    ("vl", *POSITIONS, (-(2**63), -1, 0)),
    ("vl", "preprocessor_config.json", "size", (2**40, 1e-300, "x", [1])),
]


@pytest.mark.parametrize(("kind", "file", "keys", "values"), FOUND_OF_FRONTENDS)
def test_a_frontend_refuses_it(
    kind: str, file: str, keys: str, values: tuple[Any, ...], folders: dict[str, Path]
) -> None:
    folder = folders[kind]
    for value in values:
        with mutated(folder / file, keys, value), pytest.raises(CheckpointError) as refused:
            family_of(folder).load_frontend(folder)
        assert len(str(refused.value)) < 1000, value
    family_of(folder).load_frontend(folder)
