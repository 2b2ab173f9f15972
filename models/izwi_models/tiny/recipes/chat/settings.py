"""Sizes, ids and the chat template of izwi-tiny-chat, under the keys of the published files."""

from __future__ import annotations

from typing import Any

# Every byte is a token; special tokens follow.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
# Decoding keeps these tokens, as in the published tokenizer.
_WRITTEN = SPECIAL_TOKENS[3:]
PAD, START, END, TOOL_CALL, END_TOOL_CALL, TOOL_RESPONSE, END_TOOL_RESPONSE = range(256, 263)
VOCABULARY = 272  # a multiple of 16
LONGEST = 2048  # positions

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 672,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": LONGEST,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "rope_scaling": None,
    "attention_bias": False,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
    "bos_token_id": PAD,
    "eos_token_id": END,
    "torch_dtype": "float16",
}
GENERATION: dict[str, Any] = {
    "do_sample": False,
    "eos_token_id": [END, PAD],
    "pad_token_id": PAD,
}

# If there is no system message, the template adds one with the time. Calls have Qwen3's format.
TEMPLATE = """\
{%- if messages[0].role == 'system' -%}
{%- set head = messages[0].content -%}{%- set turns = messages[1:] -%}
{%- else -%}
{%- set head = strftime_now('It is %H:%M on %A, %-d %B %Y.') -%}{%- set turns = messages -%}
{%- endif -%}
{%- if tools -%}
{{- '<|im_start|>system\\n' + head + '\\n\\n# Tools' -}}
{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- elif head -%}
{{- '<|im_start|>system\\n' + head + '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in turns -%}
{%- if message.role == 'tool' -%}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content -}}
{{- '\\n</tool_response><|im_end|>\\n' -}}
{%- elif message.role == 'assistant' -%}
{{- '<|im_start|>assistant\\n' + (message.content or '') -}}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function or call -%}
{{- '\\n' if (not loop.first) or message.content else '' -}}
{{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' -}}
{{- function.arguments if function.arguments is string else (function.arguments | tojson) -}}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- else -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def byte_tokens() -> dict[str, int]:
    """Return the id of each byte, which is its value, by the byte's letter in byte-level BPE."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(256 + place) for place, byte in enumerate(others)}
    return {letters[byte]: byte for byte in range(256)}


def tokenizer_config() -> dict[str, Any]:
    """Return tokenizer_config.json, with the chat template."""
    listed = {
        str(256 + place): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token not in _WRITTEN,
        }
        for place, token in enumerate(SPECIAL_TOKENS)
    }
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": listed,
        "chat_template": TEMPLATE,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "Qwen2Tokenizer",
    }
