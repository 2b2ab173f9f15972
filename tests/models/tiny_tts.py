"""A Qwen3-TTS checkpoint made from a seed: small enough for tests, with every structural trait.

Needs numpy and safetensors and, to write a folder, our packages: tests/golden/make_tts.py loads
the rest in the environment of the reference package.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.random_weights import random_weights, write_checkpoint

SEED = 5
CODEC_GAINS = {"decoder.": 0.6}  # more would saturate the clamp

# Speech that never ends is the rule for random weights: the end's logit is drawn small, so that a
# greedy run does not meet it and a sampled one does now and then.
EOS_SCALE = 0.25

# Published ids of the codec vocabulary, moved down: a codebook has 64 codes here, not 2048.
_SHIFT = 2048 - 64
LANGUAGES = {
    "chinese": 2055,
    "english": 2050,
    "german": 2053,
    "beijing_dialect": 2074,
    "sichuan_dialect": 2062,
}
SPEAKERS = {"vivian": 3065, "ryan": 3061, "eric": 2875, "dylan": 2878}
DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}

_TALKER: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0,
    "codec_pad_id": 2148 - _SHIFT,
    "codec_bos_id": 2149 - _SHIFT,
    "codec_eos_token_id": 2150 - _SHIFT,
    "codec_think_id": 2154 - _SHIFT,
    "codec_nothink_id": 2155 - _SHIFT,
    "codec_think_bos_id": 2156 - _SHIFT,
    "codec_think_eos_id": 2157 - _SHIFT,
    "codec_language_id": {name: index - _SHIFT for name, index in LANGUAGES.items()},
    "spk_id": {},
    "spk_is_dialect": {},
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "text_hidden_size": 48,
    "text_vocab_size": 320,
    "vocab_size": 64 + 1024,
    "num_code_groups": 16,
    "max_position_embeddings": 2048,
    "position_id_per_seconds": 13,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "rope_scaling": {
        "interleaved": True,
        "mrope_section": [4, 2, 2],
        "rope_type": "default",
        "type": "default",
    },
    "sliding_window": None,
    "use_cache": True,
    "use_sliding_window": False,
    "pad_token_id": 2148 - _SHIFT,
    "code_predictor_config": {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "rope_scaling": None,
        "num_code_groups": 16,
        "use_sliding_window": False,
        "sliding_window": None,
    },
}
_SPEAKER_ENCODER: dict[str, Any] = {
    "mel_dim": 128,
    "enc_dim": 64,
    "enc_channels": [32, 32, 32, 32, 96],
    "enc_attention_channels": 16,
    "enc_res2net_scale": 4,
    "enc_se_channels": 16,
    "sample_rate": 24000,
}
GENERATION: dict[str, Any] = {
    "do_sample": True,
    "repetition_penalty": 1.05,
    "temperature": 0.9,
    "top_p": 1.0,
    "top_k": 50,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_p": 1.0,
    "subtalker_top_k": 50,
    "max_new_tokens": 8192,
}

_MERGES = (
    *[("assistant"[:end], "assistant"[end]) for end in range(1, len("assistant"))],
    ("Ċ", "Ċ"),
    ("t", "h"),
    ("th", "e"),
    ("Ġ", "the"),
    ("i", "n"),
    ("e", "r"),
    ("u", "s"),
    ("us", "er"),
    ("Ġ", "Ġ"),
)
ASSISTANT = 256 + len("assistant") - 2
_FIRST_SPECIAL = 300
_SPECIALS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    *(f"<|extra_{n}|>" for n in range(7)),
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
)


def tiny_config(kind: str) -> dict[str, Any]:
    """config.json of one kind.

    Args:
        kind: "base", "custom_voice" or "voice_design" as published, or "both" for speakers and
            a speaker encoder in one checkpoint. The predictor of "voice_design" is as wide as
            its talker, as in the published 0.6B, so it has no projection.
    """
    talker = copy.deepcopy(_TALKER)
    if kind in ("custom_voice", "both"):
        talker["spk_id"] = {name: index - _SHIFT for name, index in SPEAKERS.items()}
        talker["spk_is_dialect"] = {name: DIALECTS.get(name, False) for name in SPEAKERS}
    if kind == "voice_design":
        talker["hidden_size"] = 32
    config: dict[str, Any] = {
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": "0b6" if kind == "base" else "1b7",
        "tts_model_type": "custom_voice" if kind == "both" else kind,
        "im_start_token_id": 300,
        "im_end_token_id": 301,
        "assistant_token_id": ASSISTANT,
        "tts_pad_token_id": 310,
        "tts_bos_token_id": 311,
        "tts_eos_token_id": 312,
        "talker_config": talker,
    }
    if kind in ("base", "both"):
        config["speaker_encoder_config"] = copy.deepcopy(_SPEAKER_ENCODER)
    return config


def tiny_weights(
    shapes: Mapping[str, tuple[int, ...]], seed: int = SEED
) -> dict[str, npt.NDArray[np.float32]]:
    """Weights of model.safetensors."""
    weights = random_weights(shapes, seed)
    weights["talker.codec_head.weight"][_TALKER["codec_eos_token_id"]] *= EOS_SCALE
    return weights


def write_tiny_tts(folder: Path, kind: str = "custom_voice", seed: int = SEED) -> Path:
    """Write a whole checkpoint folder in the published layout and return it."""
    from safetensors.numpy import save_file

    from izwi.checkpoints.folder import read_json
    from izwi_models.qwen3_codec import codec_config
    from izwi_models.qwen3_codec import tensor_shapes as codec_shapes
    from izwi_models.qwen3_tts.config import read_config, tensor_shapes

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", tiny_config(kind))
    write_json(folder / "generation_config.json", GENERATION)
    write_tokenizer(folder)
    weights = tiny_weights(tensor_shapes(read_config(folder)), seed)
    save_file(weights, folder / "model.safetensors")
    stored = np.load(Path(__file__).parent.parent / "golden" / "codec.npz")
    codec = json.loads(str(stored["tiny_config"]))
    inner = folder / "speech_tokenizer"
    write_checkpoint(
        inner, codec_shapes(codec_config(codec, "tiny")), seed, gains=CODEC_GAINS, config=codec
    )
    assert read_json(inner / "config.json") == codec
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write vocab.json, merges.txt and tokenizer_config.json: bytes, a few merges, the specials."""
    pieces = [*byte_pieces(), *("".join(pair) for pair in _MERGES)]
    pieces += [f"unused{index}" for index in range(len(pieces), _FIRST_SPECIAL)]
    write_json(folder / "vocab.json", {piece: index for index, piece in enumerate(pieces)})
    lines = ["#version: 0.2", *(" ".join(pair) for pair in _MERGES)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added = {
        str(_FIRST_SPECIAL + n): {"content": content, "special": True, **flags}
        for n, content in enumerate(_SPECIALS)
    }
    config = {
        "added_tokens_decoder": added,
        "additional_special_tokens": list(_SPECIALS),
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "tokenizer_class": "Qwen2Tokenizer",
    }
    write_json(folder / "tokenizer_config.json", config)


def byte_pieces() -> list[str]:
    """The visible character that stands for each byte in byte-level BPE vocabularies (GPT-2)."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in visible else chr(next(others)) for byte in range(256)]


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")
