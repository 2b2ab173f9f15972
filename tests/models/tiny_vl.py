"""A Qwen3-VL checkpoint made from a seed: small enough for tests, with every structural trait.

Needs numpy, safetensors and, for the weights alone, our packages: tests/golden/make_vl.py loads the
rest in the environment of the reference package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.models import tiny_chat
from tests.models.tiny_chat import GENERATION
from tests.models.tiny_tts import write_json
from tests.random_weights import write_checkpoint

SEED = 29

# The MLPs speak up against the embedding, so that a tied head does not repeat its input; images
# speak up against text.
GAINS = {f"model.language_model.layers.{n}.mlp": 3.0 for n in range(3)} | {
    "model.visual.merger.linear_fc2": 3.0,
    "model.visual.deepstack_merger_list": 2.0,
}

SPECIALS = tiny_chat.SPECIALS | {
    "<|vision_start|>": (276, True),
    "<|vision_end|>": (277, True),
    "<|image_pad|>": (278, True),
    "<|video_pad|>": (279, True),
}

TEXT: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 269,
    "eos_token_id": 271,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 48,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "max_position_embeddings": 1024,
    "model_type": "qwen3_vl_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default"},
    "rope_theta": 5000000,
    "use_cache": True,
    "vocab_size": 512,
}
VISION: dict[str, Any] = {
    "deepstack_visual_indexes": [0, 2],
    "depth": 4,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 32,
    "in_channels": 3,
    "initializer_range": 0.02,
    "intermediate_size": 56,
    "model_type": "qwen3_vl",
    "num_heads": 2,
    "num_position_embeddings": 36,
    "out_hidden_size": 48,
    "patch_size": 8,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
TINY: dict[str, Any] = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "image_token_id": 278,
    "model_type": "qwen3_vl",
    "text_config": TEXT,
    "tie_word_embeddings": True,
    "video_token_id": 279,
    "vision_config": VISION,
    "vision_end_token_id": 277,
    "vision_start_token_id": 276,
}
UNTIED = TINY | {"tie_word_embeddings": False}

PIXELS: dict[str, Any] = {
    "size": {"longest_edge": 128 * 128, "shortest_edge": 32 * 32},
    "patch_size": 8,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "image_processor_type": "Qwen2VLImageProcessorFast",
}

# Our own program with the rules of the published template.
TEMPLATE = """{%- macro said(content) %}
{%- if content is string %}{{- content }}{%- else %}
{%- for part in content %}
{%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif 'text' in part %}{{- part.text }}{%- endif %}
{%- endfor %}{%- endif %}{%- endmacro %}
{%- for message in messages %}
{{- '<|im_start|>' ~ message.role ~ '\\n' ~ said(message.content) ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def drawn_image(width: int, height: int, seed: int) -> npt.NDArray[np.uint8]:
    """Return an image of soft shapes with noise, (height, width, 3)."""
    rng = np.random.default_rng([seed, width, height])
    y, x = np.mgrid[:height, :width]
    waves = [
        np.sin(x * rng.uniform(0.02, 0.3) + y * rng.uniform(0.02, 0.3) + rng.uniform(0, 6))
        for _ in range(3)
    ]
    noise = rng.normal(0.0, 0.2, (height, width, 3))
    values = (np.stack(waves, -1) + noise) * 90 + 128
    return values.clip(0, 255).astype(np.uint8)


def write_tiny_vl(folder: Path, config: dict[str, Any] = TINY, **pixels: Any) -> Path:
    """Write a whole checkpoint that `izwi_models.qwen3_vl` loads.

    Args:
        folder: Is made.
        config: TINY or UNTIED.
        pixels: What preprocessor_config.json says beside PIXELS.

    Returns:
        The folder.
    """
    from izwi_models.qwen3_vl.config import config_of, tensor_shapes

    shapes = tensor_shapes(config_of(config, "config"))
    write_checkpoint(folder, shapes, SEED, gains=GAINS, config=config)
    tiny_chat.write_tokenizer(folder, TEMPLATE, SPECIALS)
    write_json(folder / "generation_config.json", GENERATION)
    write_json(folder / "preprocessor_config.json", PIXELS | pixels)
    return folder
