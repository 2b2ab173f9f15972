"""Qwen3 in GGUF: its configuration from the metadata, and its tensors' names.

Source: gguf-py of llama.cpp, constants.py and tensor_mapping.py (architecture "qwen3").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from izwi.model.family import GgufFamily, GgufValue
from izwi_models.qwen3_chat.config import EMBEDDING, HEAD

ARCHITECTURE = "qwen3"
_NAMES = {
    "token_embd.weight": EMBEDDING,
    "output.weight": HEAD,
    "output_norm.weight": "model.norm.weight",
}
_OF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def published_name(name: str) -> str | None:
    """Return the published name of a tensor, or None for one that the family does not have."""
    if found := re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name):
        layer = _OF_LAYER.get(found[2])
        return None if layer is None else f"model.layers.{found[1]}.{layer}.weight"
    return _NAMES.get(name)


def config(get: GgufValue, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return config.json; raises CheckpointError for a missing key."""

    def number(key: str, kind: type | tuple[type, ...] = int) -> Any:
        return get(f"{ARCHITECTURE}.{key}", kind)

    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": shapes.get(EMBEDDING, (0,))[0],
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"),
        "head_dim": number("attention.key_length"),
        "hidden_act": "silu",
        "max_position_embeddings": number("context_length"),
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon", float),
        "rope_theta": number("rope.freq_base", float),
        "attention_bias": False,
        "tie_word_embeddings": HEAD not in shapes,
    }


GGUF = GgufFamily(ARCHITECTURE, published_name, config)
