"""Sizes of a Qwen3 chat checkpoint, its tensors, and its default sampling parameters.

Source: transformers, models/qwen3 (4.57, and 5.23, which writes rope_theta in rope_parameters); the
published config.json and generation_config.json from 0.6B to 32B, and of the 2507 variants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from izwi.checkpoints.folder import parse_config, read_json
from izwi.errors import CheckpointError
from izwi.request.request import SamplingParams
from izwi_models.qwen3.config import TextConfig, layer_matrices
from izwi_models.qwen3.config import tensor_shapes as decoder_shapes

PREFIX = "model."
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class ChatConfig(TextConfig):
    """Sizes of one checkpoint, named as in the published config.json."""

    use_sliding_window: bool = False
    rope_scaling: Any = None


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """The checkpoint's default sampling. Defaults of missing keys are the published values."""

    do_sample: bool = True
    temperature: float = 0.6
    top_k: int = 20
    top_p: float = 0.95
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @property
    def sampling(self) -> SamplingParams:
        """The same values as the engine's sampling parameters."""
        temperature = self.temperature if self.do_sample else 0.0
        return SamplingParams(
            temperature, self.top_k, self.top_p, self.repetition_penalty, min_p=self.min_p
        )


def read_config(folder: Path) -> ChatConfig:
    """Read config.json.

    Raises:
        CheckpointError: The file is broken, a key is missing, or this code does not support a
            value; it is named.
    """
    where = folder / "config.json"
    values = read_json(where)
    config = parse_config(ChatConfig, {**_rotation(values), **values}, str(where))
    wrong = {
        "hidden_act": config.hidden_act != "silu",
        "attention_bias": config.attention_bias,
        "use_sliding_window": config.use_sliding_window,
        "rope_scaling": config.rope_scaling is not None,
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise CheckpointError(f"{where}: {name} has a value not supported")
    return config


def read_generation_config(
    folder: Path, defaults: GenerationConfig = GenerationConfig()
) -> GenerationConfig:
    """Read generation_config.json; without the file, return the defaults.

    Args:
        folder: The checkpoint.
        defaults: Values of missing keys.

    Raises:
        CheckpointError: The file is broken, or a value cannot be used; it is named.
    """
    path = folder / "generation_config.json"
    values = read_json(path) if path.is_file() else {}
    given = {name: value for name, value in values.items() if value is not None}
    config = parse_config(GenerationConfig, asdict(defaults) | given, str(path))
    if config.temperature < 0.0 or config.top_k < 0 or not 0.0 < config.top_p <= 1.0:
        raise CheckpointError(f"{path}: temperature, top_k or top_p is out of range")
    return config


def tensor_shapes(
    config: ChatConfig, *, with_head: bool | None = None
) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of each tensor in the published layout.

    Args:
        config: Sizes.
        with_head: Whether the checkpoint has an output head besides the embedding. A tied
            checkpoint may have one; None follows `tie_word_embeddings`.
    """
    table = (config.vocab_size, config.hidden_size)
    shapes = {EMBEDDING: table, **decoder_shapes(config, PREFIX)}
    if with_head is None:
        with_head = not config.tie_word_embeddings
    return shapes | {HEAD: table} if with_head else shapes


def packable(shapes: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
    """Return the matrices that may stay packed: all of them."""
    return layer_matrices(shapes, PREFIX) | ({EMBEDDING, HEAD} & shapes.keys())


def _rotation(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert `rope_parameters`, written by transformers 5, to the published keys."""
    rope = values.get("rope_parameters")
    if not isinstance(rope, Mapping):
        return {}
    scaled = {} if rope.get("rope_type", "default") == "default" else {"rope_scaling": dict(rope)}
    return {key: rope[key] for key in ("rope_theta",) if key in rope} | scaled
