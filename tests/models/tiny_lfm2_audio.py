"""An LFM2-Audio checkpoint made from a seed: small enough for tests, with every structural trait.

Needs numpy, safetensors and, to write a folder, our packages: tests/golden/make_lfm2.py loads the
rest in the environment of the reference package.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from tests.models.tiny_tts import byte_pieces, write_json
from tests.random_weights import Float32, random_weights, write_checkpoint

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
WIDE = TINY | {"depthformer": {"layers": 2, "dim": 512, "tie": True}}

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
# end, and, where it is loud, now and then the ends of text and audio.
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


DETOKENIZER: dict[str, Any] = {
    "model_type": "lfm2",
    "block_auto_adjust_ff_dim": False,
    "conv_L_cache": 3,
    "conv_bias": False,
    "hidden_size": 32,
    "intermediate_size": 48,
    "layer_types": ["conv", "sliding_attention", "conv"],
    "max_position_embeddings": 128000,
    "norm_eps": 1e-5,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rope_theta": 1000000.0,
    "sliding_window": 30,
    "vocab_size": 64,
}
# Kyutai's file comes without a configuration: who loads this one says so.
MIMI: dict[str, Any] = {
    "codebook_size": 2048,
    "codebook_dim": 16,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "intermediate_size": 64,
    "window": 20,
    "num_filters": 4,
    "num_file_codebooks": 9,
}
# More would reach beyond full scale.
CODEC_GAINS = {"lin.weight": 0.2, "decoder.": 0.7}


def write_tiny_lfm2_audio(folder: Path, seed: int = SEED, **more: Any) -> Path:
    """Write a whole checkpoint of the newer layout, which `izwi_models.lfm2_audio` loads.

    Args:
        folder: Is made.
        seed: Of the weights.
        more: `mimi=True` for the older layout with a small Mimi, `loudness` as in `tiny_weights`,
            `wide=True` for a depthformer whose heads the kernels of a GPU take,
            `blocks=(text, frames)` for other sizes of the blocks in which they take turns,
            `positions=` for more room than 2,048.

    Returns:
        The folder.
    """
    from safetensors.numpy import save_file

    from izwi_models.lfm2_audio.audio_config import MimiConfig, detokenizer_config, encoder_config
    from izwi_models.lfm2_audio.audio_tensors import detokenizer_shapes, encoder_shapes, mimi_shapes
    from izwi_models.lfm2_audio.config import checked_config, tensor_shapes

    written = WIDE if more.get("wide") else TINY
    config = checked_config(written, "config")
    shapes = tensor_shapes(config)
    shapes |= encoder_shapes(encoder_config(TINY["encoder"], "encoder"), config.lfm.hidden_size)
    write_tokenizer(folder)
    text, frames = more.get("blocks", (6, 12))
    changes = {
        "interleaved_n_text": text,
        "interleaved_n_audio": frames,
        "lfm": written["lfm"] | {"max_position_embeddings": more.get("positions", 2048)},
    }
    write_json(folder / "config.json", written | changes)
    weights = tiny_weights(shapes, seed, more.get("loudness", LOUD))
    save_file(weights, folder / "model.safetensors")
    if more.get("mimi"):
        codec = mimi_shapes(MimiConfig(**MIMI))
        name = "tokenizer-e351c8d8-checkpoint125.safetensors"
        save_file(random_weights(codec, seed, CODEC_GAINS), folder / name)
    else:
        codec = detokenizer_shapes(detokenizer_config(DETOKENIZER, "detokenizer"))
        write_checkpoint(
            folder / "audio_detokenizer", codec, seed, gains=CODEC_GAINS, config=DETOKENIZER
        )
    return folder


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
