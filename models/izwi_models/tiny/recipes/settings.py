"""Sizes of the embedded checkpoints, under the keys of the published config files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from izwi_models.tiny.recipes.voices import NAMED

CODEBOOKS = 8
CODES = 256
LONGEST_TEXT = 100  # characters
LONGEST_SECONDS = 8.0

VOCABULARY = 1024  # byte-level tokens; special tokens follow
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<|audio_pad|>",
    "<asr_text>",
)
TEXT_VOCABULARY = VOCABULARY + len(SPECIAL_TOKENS) + 6  # a multiple of 8


def token_id(token: str) -> int:
    """Return the id of a special token."""
    return VOCABULARY + SPECIAL_TOKENS.index(token)


CODEC: dict[str, Any] = {
    "model_type": "qwen3_tts_tokenizer_12hz",
    "architectures": ["Qwen3TTSTokenizerV2Model"],
    "encoder_valid_num_quantizers": CODEBOOKS,
    "input_sample_rate": 24000,
    "output_sample_rate": 24000,
    "encode_downsample_rate": 1920,
    "decode_upsample_rate": 1920,
    "encoder_config": {
        "_frame_rate": 12.5,
        "audio_channels": 1,
        "codebook_dim": 64,
        "codebook_size": CODES,
        "compress": 2,
        "dilation_growth_rate": 2,
        "head_dim": 64,
        "hidden_act": "gelu",
        "hidden_size": 192,
        "intermediate_size": 384,
        "kernel_size": 7,
        "last_kernel_size": 3,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "norm_eps": 1e-5,
        "normalize": False,
        "num_attention_heads": 3,
        "num_filters": 12,
        "num_hidden_layers": 3,
        "num_key_value_heads": 3,
        "num_quantizers": CODEBOOKS,
        "num_residual_layers": 1,
        "num_semantic_quantizers": 1,
        "pad_mode": "constant",
        "residual_kernel_size": 3,
        "rope_theta": 10000.0,
        "sampling_rate": 24000,
        "sliding_window": 250,
        "trim_right_ratio": 1.0,
        "upsample_groups": 192,
        "upsampling_ratios": [8, 6, 5, 4],
        "use_causal_conv": True,
        "use_conv_shortcut": False,
        "use_streaming": False,
        "vector_quantization_hidden_dimension": 64,
    },
    "decoder_config": {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "codebook_dim": 128,
        "codebook_size": CODES,
        # A CPU runs convolutions of 16n channels 2 to 4 times faster than those of 20 or 40, and
        # the codec is most of the cost at 8 streams. 256 gives 128, 64, 32 and 16 channels.
        "decoder_dim": 256,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 192,
        "intermediate_size": 512,
        "latent_dim": 192,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "num_attention_heads": 3,
        "num_hidden_layers": 3,
        "num_key_value_heads": 3,
        "num_quantizers": CODEBOOKS,
        "num_semantic_quantizers": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "semantic_codebook_size": CODES,
        "sliding_window": 32,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "vector_quantization_hidden_dimension": 64,
    },
}

# Ids of the codec vocabulary from CODES on: controls, languages, speakers. Of the last 1,024, the
# talker draws only the end of speech.
_CONTROLS = {
    "codec_pad_id": CODES,
    "codec_bos_id": CODES + 1,
    "codec_eos_token_id": CODES + 2,
    "codec_think_id": CODES + 4,
    "codec_nothink_id": CODES + 5,
    "codec_think_bos_id": CODES + 6,
    "codec_think_eos_id": CODES + 7,
}

TALKER: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0,
    "code_predictor_config": {
        "vocab_size": CODES,
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "rope_scaling": None,
        "num_code_groups": CODEBOOKS,
        "use_sliding_window": False,
        "sliding_window": None,
    },
    **_CONTROLS,
    "pad_token_id": CODES,
    "codec_language_id": {"english": CODES + 10},
    "spk_id": {voice.name: CODES + 32 + i for i, voice in enumerate(NAMED)},
    "spk_is_dialect": {voice.name: False for voice in NAMED},
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 768,
    "max_position_embeddings": 2048,
    "num_attention_heads": 4,
    "num_code_groups": CODEBOOKS,
    "num_hidden_layers": 6,
    "num_key_value_heads": 2,
    "position_id_per_seconds": 13,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {
        "interleaved": True,
        "mrope_section": [12, 10, 10],
        "rope_type": "default",
        "type": "default",
    },
    "rope_theta": 1000000,
    "sliding_window": None,
    "text_hidden_size": 256,
    "text_vocab_size": TEXT_VOCABULARY,
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": CODES + 1024,
}


def tts_config(assistant_id: int) -> dict[str, Any]:
    """Return config.json of izwi-tiny-tts, for the tokenizer's id of "assistant"."""
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": "tiny",
        "tts_model_type": "base",
        "im_start_token_id": token_id("<|im_start|>"),
        "im_end_token_id": token_id("<|im_end|>"),
        "assistant_token_id": assistant_id,
        "tts_pad_token_id": token_id("<tts_pad>"),
        "tts_bos_token_id": token_id("<tts_text_bos>"),
        "tts_eos_token_id": token_id("<tts_text_eod>"),
        "max_text_characters": LONGEST_TEXT,
        "plain_english": True,
        "clones_by_vector": True,
        "guard_frames": 30,
        "guard_frames_per_token": 6,
        "talker_config": TALKER,
        "speaker_encoder_config": {
            "enc_dim": 256,
            "sample_rate": 24000,
            "mel_dim": 128,
            "enc_channels": [96, 96, 96, 96, 288],
            "enc_kernel_sizes": [5, 3, 3, 3, 1],
            "enc_dilations": [1, 2, 3, 4, 1],
            "enc_attention_channels": 64,
            "enc_res2net_scale": 4,
            "enc_se_channels": 48,
        },
    }


TTS_GENERATION: dict[str, Any] = {
    "do_sample": True,
    "repetition_penalty": 1.0,
    "temperature": 0.6,
    "top_p": 1.0,
    "top_k": 20,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.6,
    "subtalker_top_p": 1.0,
    "subtalker_top_k": 20,
    "max_new_tokens": 200,
}

ASR: dict[str, Any] = {
    "architectures": ["Qwen3ASRForConditionalGeneration"],
    "model_type": "qwen3_asr",
    "support_languages": ["English"],
    "max_audio_seconds": LONGEST_SECONDS,
    "follows_context": False,
    "thinker_config": {
        "model_type": "qwen3_asr_thinker",
        "audio_token_id": token_id("<|audio_pad|>"),
        "audio_start_token_id": token_id("<|audio_start|>"),
        "audio_end_token_id": token_id("<|audio_end|>"),
        "audio_config": {
            "model_type": "qwen3_asr_audio_encoder",
            "num_mel_bins": 128,
            "d_model": 256,
            "encoder_layers": 5,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 768,
            "output_dim": 256,
            "downsample_hidden_size": 32,
            "n_window": 50,
            "n_window_infer": 800,
            "conv_chunksize": 500,
            "max_source_positions": 1500,
            "activation_function": "gelu",
            "scale_embedding": False,
        },
        "text_config": {
            "vocab_size": TEXT_VOCABULARY,
            "hidden_size": 256,
            "intermediate_size": 512,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "hidden_act": "silu",
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000,
            "rope_scaling": {
                "interleaved": True,
                "mrope_interleaved": True,
                "mrope_section": [12, 10, 10],
                "rope_type": "default",
            },
            "attention_bias": False,
            "tie_word_embeddings": True,
        },
    },
}


# For speech that sounds like people: with it the transcriber has 14 M parameters.
_LARGER_ENCODER = {
    "d_model": 320,
    "encoder_layers": 9,
    "encoder_attention_heads": 5,
    "encoder_ffn_dim": 1280,
}


def asr_config(layers: int | None = None, larger: bool = False) -> dict[str, Any]:
    """Return config.json of izwi-tiny-asr.

    Args:
        layers: Of encoder and decoder each, where they are not izwi-tiny-asr's.
        larger: With the encoder for speech that sounds like people.
    """
    thinker = ASR["thinker_config"]
    if larger:
        audio = thinker["audio_config"] | _LARGER_ENCODER
        return ASR | {"thinker_config": thinker | {"audio_config": audio}}
    if layers is None:
        return ASR
    return ASR | {
        "thinker_config": thinker
        | {
            "audio_config": thinker["audio_config"] | {"encoder_layers": layers},
            "text_config": thinker["text_config"] | {"num_hidden_layers": layers},
        }
    }


def asr_config_in(folder: Path, layers: int | None, larger: bool) -> dict[str, Any]:
    """Return the configuration of the transcriber in a folder, or of a new one.

    Args:
        folder: Where a checkpoint is gone on with, or begun.
        layers: See `asr_config`; a new one is begun with them.
        larger: See `asr_config`.
    """
    if (folder / "config.json").is_file() and layers is None:
        found: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
        return found
    return asr_config(layers, larger)


ASR_GENERATION: dict[str, Any] = {
    "do_sample": False,
    "eos_token_id": [token_id("<|im_end|>"), token_id("<|endoftext|>")],
    "pad_token_id": token_id("<|endoftext|>"),
}

# The first id without a token, which the other checkpoints do not use.
TIMESTAMP = VOCABULARY + len(SPECIAL_TOKENS)
STEP_MS = 80
_UNUSED = ("audio_start_token_id", "audio_end_token_id")

_SHARED = {name: value for name, value in ASR.items() if name != "follows_context"}
ALIGNER: dict[str, Any] = _SHARED | {
    "timestamp_token_id": TIMESTAMP,
    "timestamp_segment_time": STEP_MS,
    "thinker_config": {
        **{name: value for name, value in ASR["thinker_config"].items() if name not in _UNUSED},
        "model_type": "qwen3_forced_aligner",
        "classify_num": 104,  # 8 s and some more, a multiple of 8
        "text_config": ASR["thinker_config"]["text_config"] | {"tie_word_embeddings": False},
    },
}
