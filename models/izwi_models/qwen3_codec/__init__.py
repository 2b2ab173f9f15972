"""The Qwen3-TTS 12 Hz codec: 24 kHz audio to frames of 16 codes and back. Knows no talker.

Source of the arithmetic: qwen-tts 0.1.1, core/tokenizer_12hz, whose encoder is the Mimi of
transformers 4.57. A frame is 1,920 samples (80 ms). The decoder is strictly causal, so decoding in
chunks with state equals decoding everything in one pass, sample by sample.
"""

from izwi_models.qwen3_codec.config import (
    CodecConfig,
    DecoderConfig,
    EncoderConfig,
    codec_config,
)
from izwi_models.qwen3_codec.decoder import decode, decode_latents, state_shapes, zero_state
from izwi_models.qwen3_codec.encoder import encode, encode_latents
from izwi_models.qwen3_codec.quantizer import dequantise, prepare, quantise
from izwi_models.qwen3_codec.tensors import tensor_shapes

__all__ = [
    "CodecConfig",
    "DecoderConfig",
    "EncoderConfig",
    "codec_config",
    "decode",
    "decode_latents",
    "dequantise",
    "encode",
    "encode_latents",
    "prepare",
    "quantise",
    "state_shapes",
    "tensor_shapes",
    "zero_state",
]
