"""A Qwen3-ForcedAligner checkpoint made from a seed, beside the recogniser's in tiny_asr.py.

Needs what tiny_asr.py needs, so tests/golden/make_aligner.py loads it beside the reference.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.models import tiny_asr
from tests.random_weights import Float32, random_weights

SEED = 12

# As in tiny_asr.py. All marks hold one token, so what they name must depend on what they attend to:
# attention speaks up, and looks at little.
GAINS = tiny_asr.GAINS | {
    f"thinker.model.layers.{n}.self_attn.{name}_proj": 4.0 for n in range(3) for name in "vo"
}
GAINS["thinker.lm_head"] = 3.0
_SHARP = np.float32(2.5)


def _config() -> dict[str, Any]:
    values = copy.deepcopy(tiny_asr.TINY)
    thinker = values["thinker_config"]
    thinker |= {"model_type": "qwen3_forced_aligner", "classify_num": 780}
    thinker["text_config"]["tie_word_embeddings"] = False
    del thinker["audio_start_token_id"], thinker["audio_end_token_id"]
    languages = ["Chinese", "English", "German", "Japanese", "Korean"]
    return values | {
        "timestamp_token_id": tiny_asr.SPECIALS["<timestamp>"],
        "timestamp_segment_time": 80,
        "support_languages": languages,
    }


TINY = _config()


def seeded_weights(shapes: Mapping[str, tuple[int, ...]], seed: int = SEED) -> dict[str, Float32]:
    """Draw every tensor."""
    drawn = random_weights(shapes, seed, GAINS)
    sharp = ("thinker.model", ("q_norm.weight", "k_norm.weight"))
    return {
        name: value * _SHARP if name.startswith(sharp[0]) and name.endswith(sharp[1]) else value
        for name, value in drawn.items()
    }


def write_tiny_aligner(folder: Path, seed: int = SEED) -> Path:
    """Write a whole checkpoint that `izwi_models.qwen3_aligner` loads; returns the folder."""
    from safetensors.numpy import save_file

    from izwi.checkpoints.folder import parse_config
    from izwi_models.qwen3_aligner.config import AlignerConfig, tensor_shapes

    shapes = tensor_shapes(parse_config(AlignerConfig, TINY, "TINY"))
    tiny_asr.write_tokenizer(folder)
    save_file(seeded_weights(shapes, seed), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    features = json.dumps(tiny_asr.PREPROCESSOR)
    (folder / "preprocessor_config.json").write_text(features, encoding="utf-8")
    return folder
