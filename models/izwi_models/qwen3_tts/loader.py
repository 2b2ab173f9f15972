"""Load a Qwen3-TTS checkpoint folder in the published layout."""

from __future__ import annotations

from pathlib import Path

from izwi.checkpoints.folder import read_json
from izwi.checkpoints.weightless import weightless
from izwi.errors import CheckpointError
from izwi.model.family import Family
from izwi.model.protocol import Backend
from izwi_models import qwen3_codec as codec
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_tts import talker
from izwi_models.qwen3_tts.codec import Codec
from izwi_models.qwen3_tts.config import (
    CONTROL_IDS,
    TTSConfig,
    read_config,
    read_generation_config,
    tensor_shapes,
)
from izwi_models.qwen3_tts.model import Qwen3TTS
from izwi_models.qwen3_tts.prepare import Checkpoint
from izwi_models.qwen3_tts.prompt import SpeechPrompt
from izwi_models.qwen3_tts.text import SpeechText


def load(folder: Path, backend: Backend) -> Qwen3TTS:
    """Read config, tokenizer, weights and the codec in `speech_tokenizer/`.

    Raises:
        CheckpointError: Something is missing or does not match; the message names the file, key or
            tensor.
    """
    config = read_config(folder)
    codec_folder = folder / "speech_tokenizer"
    codec_path = codec_folder / "config.json"
    codec_config = codec.codec_config(read_json(codec_path), str(codec_path))
    _check_codec(config, codec_config, codec_path)
    checkpoint = Checkpoint(
        config=config,
        generation=read_generation_config(folder),
        text=SpeechText(QwenTokenizer(folder)),
        sample_rate=codec_config.input_sample_rate,
        frame_samples=codec_config.encode_downsample_rate,
    )
    weights = backend.load_weights(folder, tensor_shapes(config))
    codec_weights = backend.load_weights(codec_folder, codec.tensor_shapes(codec_config))
    codec_weights = codec.prepare(backend.ops, codec_weights, codec_config)
    clones = config.speaker_encoder_config is not None
    speech_codec = Codec(backend.ops, codec_weights, codec_config, warms_up=clones)
    weights = talker.prepare(backend.ops, weights, config)
    return Qwen3TTS(backend.ops, weights, speech_codec, checkpoint)


def _check_codec(config: TTSConfig, codec_config: codec.CodecConfig, path: Path) -> None:
    """Raise CheckpointError if the talker's frames do not match the codec's."""
    talker, decoder = config.talker_config, codec_config.decoder_config
    sizes = (talker.vocab_size - CONTROL_IDS, talker.code_predictor_config.vocab_size)
    if talker.num_code_groups != decoder.num_quantizers or set(sizes) != {decoder.codebook_size}:
        raise CheckpointError(
            f"{path}: the codec has {decoder.num_quantizers} codebooks of {decoder.codebook_size} "
            f"codes, but the talker speaks {talker.num_code_groups} of {sizes}"
        )


FAMILY = Family("qwen3_tts", *weightless(load), prompts=(SpeechPrompt,))
