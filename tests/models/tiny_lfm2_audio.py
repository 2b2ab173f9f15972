"""An LFM2-Audio checkpoint made from a seed: small enough for tests, with every structural trait.

Needs numpy, safetensors and, to write a folder, our packages: tests/golden/make_lfm2.py loads the
rest in the environment of the reference package.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from tests.models.tiny_tts import byte_pieces
from tests.random_weights import Float32, random_weights

SEED = 31

LFM2_LAYERS = ["full_attention" if n in (2, 5, 8, 10, 12, 14) else "conv" for n in range(16)]

REAL: dict[str, Any] = {
    "architectures": ["Lfm2AudioForConditionalGeneration"],
    "codebooks": 8,
    "tie_audio_embeddings": False,
    "semantic_codebook_factor": 100,
    "codebook_weight": "log",
    "interleaved_n_text": 6,
    "interleaved_n_audio": 12,
    "preprocessor": {
        "sample_rate": 16000,
        "normalize": "per_feature",
        "window_size": 0.025,
        "window_stride": 0.01,
        "window": "hann",
        "features": 128,
        "n_fft": 512,
        "log": True,
        "frame_splicing": 1,
        "dither": 1e-5,
        "pad_to": 0,
        "pad_value": 0.0,
    },
    "encoder": {
        "feat_in": 128,
        "feat_out": -1,
        "n_layers": 17,
        "d_model": 512,
        "subsampling": "dw_striding",
        "subsampling_factor": 8,
        "subsampling_conv_channels": 256,
        "causal_downsampling": False,
        "reduction": None,
        "reduction_position": None,
        "reduction_factor": 1,
        "ff_expansion_factor": 4,
        "self_attention_model": "rel_pos",
        "n_heads": 8,
        "att_context_size": [-1, -1],
        "xscaling": False,
        "untie_biases": True,
        "pos_emb_max_len": 5000,
        "conv_kernel_size": 9,
        "conv_norm_type": "batch_norm",
        "conv_context_size": None,
        "dropout": 0.1,
        "dropout_pre_encoder": 0.1,
        "dropout_emb": 0.0,
        "dropout_att": 0.1,
    },
    "lfm": {
        "vocab_size": 65536,
        "hidden_size": 2048,
        "block_ff_dim": 12288,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 128000,
        "norm_eps": 1e-5,
        "rope_theta": 1000000.0,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_multiple_of": 256,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": True,
        "layer_types": LFM2_LAYERS,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 7,
    },
    "depthformer": {"layers": 6, "dim": 1024, "tie": True},
}


def tiny_config() -> dict[str, Any]:
    """The same structure in small. The depthformer's heads have four numbers: 32 are built in."""
    config = copy.deepcopy(REAL)
    config["encoder"] |= {
        "n_layers": 2,
        "d_model": 32,
        "n_heads": 4,
        "subsampling_conv_channels": 8,
    }
    config["lfm"] |= {
        "vocab_size": 512,
        "hidden_size": 64,
        "block_ff_dim": 96,
        "block_multiple_of": 16,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "layer_types": ["conv", "conv", "full_attention", "conv", "full_attention"],
    }
    config["depthformer"] |= {"layers": 2, "dim": 128}
    return config


TINY = tiny_config()

# As published: control tokens come first, some of them reserved.
_NAMED = {
    0: "<|pad|>",
    1: "<|startoftext|>",
    2: "<|endoftext|>",
    6: "<|im_start|>",
    7: "<|im_end|>",
    128: "<|audio_start|>",
    129: "<|text_start|>",
    130: "<|text_end|>",
    131: "<|mixed_start|>",
    132: "<|mixed_end|>",
}
FIRST_BYTE = 140
CONTROLS = [_NAMED.get(n, f"<|reserved_{n}|>") for n in range(FIRST_BYTE)]
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
)

# Operators speak up against the embedding, so that a tied head does not repeat its input.
GAINS = {f"lfm.layers.{n}.": 2.0 for n in range(5)}

# (tensor, row, factor): how loud some ids are. A run of some hundred entries is not to meet its own
# end, and, where it is loud, now and then the ends of text and sound.
CALM = (("lfm.embed_tokens.weight", 7, 0.2),)
LOUD = (
    *CALM,
    ("lfm.embed_tokens.weight", 128, 1.8),
    ("lfm.embed_tokens.weight", 130, 1.8),
    ("depth_embeddings.0.embedding.weight", 2048, 2.0),
)


def tiny_weights(
    shapes: dict[str, tuple[int, ...]],
    seed: int = SEED,
    loudness: tuple[tuple[str, int, float], ...] = LOUD,
) -> dict[str, Float32]:
    """Draw the tensors of a checkpoint, some ids louder than others."""
    weights = random_weights(shapes, seed, GAINS)
    for name, row, factor in loudness:
        if name in weights:
            weights[name][row] *= factor
    return weights


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json: control tokens, bytes, a few merges."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    pieces = [*CONTROLS, *byte_pieces(), *(left + right for left, right in MERGES)]
    vocab = {piece: n for n, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(MERGES), ignore_merges=True))
    split = Regex(r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(split, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in CONTROLS])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
