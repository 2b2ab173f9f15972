"""A Qwen3-ASR checkpoint made from a seed: small enough for tests, with every structural trait.

Needs numpy, safetensors and, for the weights alone, our packages: tests/golden/make_asr.py loads
the rest in the environments of the reference packages.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.random_weights import write_checkpoint

SEED = 11

# The MLPs speak up against the embedding, so that a tied head does not repeat its input, and the
# encoder's attention is sharp, so that an error in its windows shows.
GAINS = {f"thinker.model.layers.{n}.mlp": 3.0 for n in range(3)} | {
    f"thinker.audio_tower.layers.{n}.self_attn.{name}_proj": 4.0 for n in range(2) for name in "qk"
}

SPECIALS = {
    "<|endoftext|>": 256,
    "<|im_start|>": 300,
    "<|audio_start|>": 301,
    "<|audio_end|>": 302,
    "<|audio_pad|>": 303,
    "<|im_end|>": 304,
    "<timestamp>": 305,
    "<asr_text>": 306,
}
MERGES = (
    ("s", "y"),
    ("s", "t"),
    ("e", "m"),
    ("sy", "st"),
    ("syst", "em"),
    ("a", "n"),
    ("l", "an"),
    ("Ġ", "E"),
    ("ĠE", "n"),
    ("t", "h"),
    ("th", "e"),
    ("Ċ", "Ċ"),
)

TINY: dict[str, Any] = {
    "model_type": "qwen3_asr",
    "support_languages": ["Chinese", "English", "German"],
    "thinker_config": {
        "audio_token_id": 303,
        "audio_start_token_id": 301,
        "audio_end_token_id": 302,
        "audio_config": {
            "num_mel_bins": 128,
            "d_model": 32,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "output_dim": 48,
            "downsample_hidden_size": 8,
            "n_window": 50,
            "n_window_infer": 800,
            "conv_chunksize": 500,
            "max_source_positions": 1500,
            "activation_function": "gelu",
            "scale_embedding": False,
        },
        "text_config": {
            "vocab_size": 512,
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "hidden_act": "silu",
            "max_position_embeddings": 65536,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "rope_scaling": {
                "rope_type": "default",
                "type": "default",
                "mrope_section": [4, 2, 2],
                "interleaved": True,
                "mrope_interleaved": True,
            },
            "tie_word_embeddings": True,
            "attention_bias": False,
        },
    },
}

PREPROCESSOR = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128,
    "sampling_rate": 16000,
    "hop_length": 160,
    "chunk_length": 30,
    "n_fft": 400,
    "padding_value": 0.0,
    "dither": 0.0,
    "return_attention_mask": True,
}


def write_tiny_asr(folder: Path, seed: int = SEED) -> Path:
    """Write a whole checkpoint that `izwi_models.qwen3_asr` loads; returns the folder."""
    from izwi.checkpoints.folder import parse_config
    from izwi_models.qwen3_asr.config import AsrConfig, tensor_shapes

    shapes = tensor_shapes(parse_config(AsrConfig, TINY, "TINY"))
    write_checkpoint(folder, shapes, seed, gains=GAINS, config=TINY)
    write_tokenizer(folder)
    _write(folder / "generation_config.json", {"eos_token_id": [304, 256], "do_sample": False})
    _write(folder / "preprocessor_config.json", PREPROCESSOR)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write vocab.json, merges.txt and tokenizer_config.json: bytes, twelve merges, SPECIALS."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = {letter: byte for byte, letter in enumerate(_byte_letters())}
    for left, right in MERGES:
        vocab[left + right] = len(vocab) + 1  # 256 is <|endoftext|>
    size = TINY["thinker_config"]["text_config"]["vocab_size"]
    taken = {*vocab.values(), *SPECIALS.values()}
    vocab |= {f"<unused{n}>": n for n in range(size) if n not in taken}
    _write(folder / "vocab.json", vocab)
    lines = ["#version: 0.2", *(" ".join(pair) for pair in MERGES)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    added = {
        str(index): {"content": name, "special": name != "<asr_text>"}
        for name, index in SPECIALS.items()
    }
    _write(folder / "tokenizer_config.json", {"added_tokens_decoder": added})


def waveform(seconds: float, seed: int = 0) -> npt.NDArray[np.float32]:
    """Return a copy of what `make_waveform` makes, once."""
    return make_waveform(seconds, seed).copy()


@cache
def make_waveform(seconds: float, seed: int) -> npt.NDArray[np.float32]:
    """Make voiced noise at 16 kHz whose pitch and loudness move, so that no second is like another.

    Built from integer draws and elementary functions in float64, so that every machine and numpy
    makes the same samples but for the last bit.
    """
    n = round(16_000 * seconds)
    time = np.arange(n) / 16_000
    rng = np.random.Generator(np.random.PCG64(seed))
    noise = rng.integers(-1000, 1000, n) / 1000.0
    pitch = 2 * np.pi * (140 * time + 8 * np.sin(1.7 * time))
    voice = sum(np.sin(k * pitch) / k for k in range(1, 12))
    loudness = 0.5 + 0.5 * np.sin(5.1 * time + np.sin(0.9 * time))
    mixed = (0.2 * voice * loudness + 0.02 * noise) * (1.0 + 0.5 * np.sin(0.31 * time))
    return np.asarray(0.5 * mixed, dtype=np.float32)


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")
