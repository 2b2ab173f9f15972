"""A Qwen3 chat checkpoint made from a seed: small enough for tests, with every structural trait.

Needs numpy, safetensors and, for the weights alone, our packages: tests/golden/make_chat.py loads
the rest in the environment of the reference package.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.models.tiny_tts import byte_pieces, write_json
from tests.random_weights import write_checkpoint

SEED = 23

# The MLPs speak up against the embedding, so that a tied head does not repeat its input.
GAINS = {f"model.layers.{n}.mlp": 3.0 for n in range(3)}

# Name: id, and whether it is special. As published, they follow the vocabulary, and what stands
# around a thought is not special.
SPECIALS = {
    "<|endoftext|>": (269, True),
    "<|im_start|>": (270, True),
    "<|im_end|>": (271, True),
    "<tool_call>": (272, False),
    "</tool_call>": (273, False),
    "<think>": (274, False),
    "</think>": (275, False),
}
MERGES = (
    ("s", "y"),
    ("s", "t"),
    ("e", "m"),
    ("sy", "st"),
    ("syst", "em"),
    ("u", "s"),
    ("e", "r"),
    ("us", "er"),
    ("Ġ", "t"),
    ("h", "e"),
    ("Ġt", "he"),
    ("Ċ", "Ċ"),
    ("ĊĊ", "Ċ"),
)

TINY: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
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
    "max_window_layers": 3,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 512,
}
UNTIED = TINY | {"tie_word_embeddings": False}

GENERATION = {
    "bos_token_id": 269,
    "do_sample": True,
    "eos_token_id": [271, 269],
    "pad_token_id": 269,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
}

# Our own programs with the rules of the published templates.
_TOOLS = """{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages and messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- 'functions:' }}
{%- for tool in tools %}{{- '\\n' ~ (tool | tojson) }}{%- endfor %}
{{- '\\ncall: <tool_call></tool_call><|im_end|>\\n' }}
{%- endif %}"""
_LAST_ASKED = """{%- set state = namespace(asked=messages | length - 1, found=false) %}
{%- for message in messages[::-1] %}
{%- set answers = message.content.startswith('<tool_response>')
    and message.content.endswith('</tool_response>') %}
{%- if message.role == 'user' and not answers and not state.found %}
{%- set state.asked = messages | length - 1 - loop.index0 %}{%- set state.found = true %}
{%- endif %}{%- endfor %}"""
_TURNS = """{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- set said = message.content %}{%- set thought = message.reasoning_content %}
{%- if thought is not defined or thought is none %}{%- set thought = '' %}
{%- if '</think>' in said %}
{%- set parts = said.split('</think>') %}{%- set said = parts[-1].lstrip('\\n') %}
{%- set thought = parts[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- endif %}{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > state.asked and (thought or (loop.last and thinks)) %}
{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + said.lstrip('\\n') }}
{%- else %}{{- said }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '\\n' if said or not loop.first }}
{{- '<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string
    else call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' ~ message.content ~ '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- elif not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}
{%- endif %}{%- endfor %}"""
_ANSWERS = {
    "ASKED": "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}",
    "ALWAYS": "",
    "NEVER": "",
}
_BEGINS = {"ASKED": "", "ALWAYS": "<think>\\n", "NEVER": ""}
TEMPLATES = {
    name: f"{{%- set thinks = {str(name != 'NEVER').lower()} %}}"
    + _TOOLS
    + _LAST_ASKED
    + _TURNS
    + "{%- if add_generation_prompt %}"
    + f"{{{{- '<|im_start|>assistant\\n{_BEGINS[name]}' }}}}"
    + f"{_ANSWERS[name]}{{%- endif %}}"
    for name in _ANSWERS
}


def write_tiny_chat(
    folder: Path, config: dict[str, Any] = TINY, thinking: str = "ASKED", **generation: Any
) -> Path:
    """Write a whole checkpoint that `izwi_models.qwen3_chat` loads.

    Args:
        folder: Is made.
        config: TINY or UNTIED.
        thinking: Which of TEMPLATES.
        generation: What generation_config.json says beside GENERATION.

    Returns:
        The folder.
    """
    from izwi.checkpoints.folder import parse_config
    from izwi_models.qwen3_chat.config import ChatConfig, tensor_shapes

    shapes = tensor_shapes(parse_config(ChatConfig, config, "config"))
    write_checkpoint(folder, shapes, SEED, gains=GAINS, config=config)
    write_tokenizer(folder, TEMPLATES[thinking])
    write_json(folder / "generation_config.json", GENERATION | generation)
    return folder


def write_tokenizer(
    folder: Path,
    template: str | None = None,
    specials: Mapping[str, tuple[int, bool]] = SPECIALS,
) -> None:
    """Write vocab.json, merges.txt and tokenizer_config.json: bytes, a few merges, specials."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = {letter: byte for byte, letter in enumerate(byte_pieces())}
    for left, right in MERGES:
        vocab[left + right] = len(vocab)
    write_json(folder / "vocab.json", vocab)
    lines = ["#version: 0.2", *(" ".join(pair) for pair in MERGES)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added = {
        str(index): {"content": name, "special": special, **plain}
        for name, (index, special) in specials.items()
    }
    values: dict[str, Any] = {"added_tokens_decoder": added, "tokenizer_class": "Qwen2Tokenizer"}
    values |= {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None}
    values |= {"bos_token": None, "chat_template": template} if template else {}
    write_json(folder / "tokenizer_config.json", values)
