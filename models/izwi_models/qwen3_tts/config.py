"""Sizes and ids of a Qwen3-TTS checkpoint, with the names of its config files. Knows no tensors.

Published files have more keys than these; unused ones are left out. The class defaults of the
reference package do not describe the published checkpoints, so a missing key is an error, unless
the published files leave it out, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from izwi.checkpoints.folder import parse_config, read_json
from izwi.errors import CheckpointError
from izwi_models.qwen3.config import DecoderConfig
from izwi_models.qwen3.config import tensor_shapes as decoder_shapes
from izwi_models.qwen3_codec.config import CodecConfig, codec_config

Shapes = dict[str, tuple[int, ...]]

# The last ids of the codec vocabulary are controls, languages and speakers; the others are codes.
CODEC_FOLDER = "speech_tokenizer"  # in a checkpoint's folder
CONTROL_IDS = 1024
_TEXT_IDS = ("tts_pad_token_id", "tts_bos_token_id", "tts_eos_token_id")
_CODEC_IDS = (
    "codec_bos_id",
    "codec_eos_token_id",
    "codec_pad_id",
    "codec_think_id",
    "codec_nothink_id",
    "codec_think_bos_id",
    "codec_think_eos_id",
)
_MOST_GAIN_DB = 24.0  # 16 times as much


@dataclass(frozen=True, slots=True)
class CodePredictorConfig(DecoderConfig):
    """The stack that draws codebooks 1.. of a frame from the talker's hidden state."""

    vocab_size: int
    num_code_groups: int
    hidden_act: str


@dataclass(frozen=True, slots=True)
class TalkerConfig(DecoderConfig):
    """The stack with one position per frame, which draws codebook 0.

    `vocab_size` counts codes, controls, languages and speakers; `text_vocab_size` text tokens.
    `spk_is_dialect` maps a speaker to the name of a dialect, or to false.
    """

    vocab_size: int
    text_vocab_size: int
    text_hidden_size: int
    num_code_groups: int
    max_position_embeddings: int
    hidden_act: str
    codec_bos_id: int
    codec_eos_token_id: int
    codec_pad_id: int
    codec_think_id: int
    codec_nothink_id: int
    codec_think_bos_id: int
    codec_think_eos_id: int
    codec_language_id: Mapping[str, int]
    spk_id: Mapping[str, int]
    spk_is_dialect: Mapping[str, Any]
    code_predictor_config: CodePredictorConfig


@dataclass(frozen=True, slots=True)
class SpeakerEncoderConfig:
    """The ECAPA-TDNN. Published files have only `enc_dim` and `sample_rate`."""

    enc_dim: int
    sample_rate: int = 24000
    mel_dim: int = 128
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    enc_kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: int = 128
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128


@dataclass(frozen=True, slots=True)
class TTSConfig:
    """config.json.

    Attributes:
        max_text_characters: The longest text that the checkpoint was trained to speak in one piece;
            our own key, absent from published files; None for no limit.
        plain_english: Whether it was trained on single sentences of plain words, so that text is
            normalized first and spoken sentence by sentence; our own key.
        clones_by_vector: Whether it follows a clip's speaker vector and was not trained to continue
            a clip, so that the clip's text is ignored; our own key.
        spk_gain_db: What a speaker's audio is raised by, in dB, so that all are equally loud; our
            own key.
        guard_frames: A request without a limit of its own ends after this many frames ...
        guard_frames_per_token: ... plus this many for each text token, because a talker that misses
            its end would never stop. Speech takes 3 to 5 frames a token.
    """

    tts_model_size: str
    tts_model_type: str
    im_start_token_id: int
    im_end_token_id: int
    assistant_token_id: int
    tts_pad_token_id: int
    tts_bos_token_id: int
    tts_eos_token_id: int
    talker_config: TalkerConfig
    speaker_encoder_config: SpeakerEncoderConfig | None = None
    max_text_characters: int | None = None
    plain_english: bool = False
    clones_by_vector: bool = False
    spk_gain_db: Mapping[str, float] = field(default_factory=dict)
    guard_frames: int = 250
    guard_frames_per_token: int = 12

    def most_frames(self, num_text_ids: int) -> int:
        """Return the frames after which a text of so many ids ends, without a caller's limit."""
        return self.guard_frames + self.guard_frames_per_token * num_text_ids


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """generation_config.json, with the reference package's fallbacks for absent keys."""

    do_sample: bool = True
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    subtalker_dosample: bool = True
    subtalker_temperature: float = 0.9
    subtalker_top_k: int = 50
    subtalker_top_p: float = 1.0
    max_new_tokens: int = 2048


def read_config(folder: Path) -> TTSConfig:
    """Read and check `folder`/config.json.

    Raises:
        CheckpointError: A key is missing, of the wrong type, or contradicts another; the message
            names it.
    """
    where = str(folder / "config.json")
    config = parse_config(TTSConfig, read_json(folder / "config.json"), where)
    talker, speaker = config.talker_config, config.speaker_encoder_config
    if talker.num_code_groups != talker.code_predictor_config.num_code_groups:
        raise CheckpointError(f"{where}: talker and code predictor differ in num_code_groups")
    if speaker is not None and speaker.enc_dim != talker.hidden_size:
        raise CheckpointError(
            f"{where}: speaker_encoder_config.enc_dim is {speaker.enc_dim}, "
            f"but the talker's hidden_size is {talker.hidden_size}"
        )
    for name, dialect in talker.spk_is_dialect.items():
        if dialect and (not isinstance(dialect, str) or dialect not in talker.codec_language_id):
            raise CheckpointError(f"{where}: the dialect of speaker {name!r} is not a language")
    for act in (talker.hidden_act, talker.code_predictor_config.hidden_act):
        if act != "silu":
            raise CheckpointError(f"{where}: hidden_act is {act!r}, only 'silu' is supported")
    for name, gain_db in config.spk_gain_db.items():
        if name not in talker.spk_id:
            raise CheckpointError(f"{where}: spk_gain_db names {name!r}, which is not a speaker")
        if not abs(gain_db) <= _MOST_GAIN_DB:
            raise CheckpointError(
                f"{where}: spk_gain_db raises {name!r} by {gain_db} dB, at most {_MOST_GAIN_DB}"
            )
    _check_ids(config, where)
    return config


def read_generation_config(folder: Path) -> GenerationConfig:
    """Read `folder`/generation_config.json.

    Raises:
        CheckpointError: The file is missing, or a value is of the wrong type.
    """
    path = folder / "generation_config.json"
    return parse_config(GenerationConfig, read_json(path), str(path))


def tensor_shapes(config: TTSConfig) -> Shapes:
    """Names and shapes of every tensor in model.safetensors."""
    shapes = _talker_shapes(config.talker_config) | _predictor_shapes(config.talker_config)
    if config.speaker_encoder_config is not None:
        shapes |= _speaker_shapes(config.speaker_encoder_config)
    return shapes


def _check_ids(config: TTSConfig, where: str) -> None:
    """Raise CheckpointError if an id has no row in its embedding."""
    talker = config.talker_config
    text = {name: getattr(config, name) for name in _TEXT_IDS}
    codec = {name: getattr(talker, name) for name in _CODEC_IDS}
    codec |= {f"codec_language_id.{name}": i for name, i in talker.codec_language_id.items()}
    codec |= {f"spk_id.{name}": i for name, i in talker.spk_id.items()}
    for ids, size in ((text, talker.text_vocab_size), (codec, talker.vocab_size)):
        for name, index in ids.items():
            if not 0 <= index < size:
                raise CheckpointError(f"{where}: {name} is {index}, not one of {size} ids")


def _talker_shapes(talker: TalkerConfig) -> Shapes:
    hidden, text = talker.hidden_size, talker.text_hidden_size
    return {
        "talker.model.text_embedding.weight": (talker.text_vocab_size, text),
        "talker.model.codec_embedding.weight": (talker.vocab_size, hidden),
        "talker.text_projection.linear_fc1.weight": (text, text),
        "talker.text_projection.linear_fc1.bias": (text,),
        "talker.text_projection.linear_fc2.weight": (hidden, text),
        "talker.text_projection.linear_fc2.bias": (hidden,),
        "talker.codec_head.weight": (talker.vocab_size, hidden),
        **decoder_shapes(talker, "talker.model."),
    }


def _predictor_shapes(talker: TalkerConfig) -> Shapes:
    predictor = talker.code_predictor_config
    prefix = "talker.code_predictor."
    shapes = decoder_shapes(predictor, f"{prefix}model.")
    for n in range(predictor.num_code_groups - 1):
        # rows are summed into the talker's input too, hence its width
        shapes[f"{prefix}model.codec_embedding.{n}.weight"] = (
            predictor.vocab_size,
            talker.hidden_size,
        )
        shapes[f"{prefix}lm_head.{n}.weight"] = (predictor.vocab_size, predictor.hidden_size)
    if predictor.hidden_size != talker.hidden_size:
        shapes[f"{prefix}small_to_mtp_projection.weight"] = (
            predictor.hidden_size,
            talker.hidden_size,
        )
        shapes[f"{prefix}small_to_mtp_projection.bias"] = (predictor.hidden_size,)
    return shapes


def _speaker_shapes(speaker: SpeakerEncoderConfig) -> Shapes:
    shapes: Shapes = {}

    def conv(name: str, inputs: int, outputs: int, kernel: int = 1) -> None:
        shapes[f"speaker_encoder.{name}.weight"] = (outputs, inputs, kernel)
        shapes[f"speaker_encoder.{name}.bias"] = (outputs,)

    channels, kernels = speaker.enc_channels, speaker.enc_kernel_sizes
    conv("blocks.0.conv", speaker.mel_dim, channels[0], kernels[0])
    for n in range(1, len(channels) - 1):
        width = channels[n]
        part = width // speaker.enc_res2net_scale
        conv(f"blocks.{n}.tdnn1.conv", channels[n - 1], width)
        for i in range(speaker.enc_res2net_scale - 1):
            conv(f"blocks.{n}.res2net_block.blocks.{i}.conv", part, part, kernels[n])
        conv(f"blocks.{n}.tdnn2.conv", width, width)
        conv(f"blocks.{n}.se_block.conv1", width, speaker.enc_se_channels)
        conv(f"blocks.{n}.se_block.conv2", speaker.enc_se_channels, width)
    last = channels[-1]
    conv("mfa.conv", last, last, kernels[-1])
    conv("asp.tdnn.conv", 3 * last, speaker.enc_attention_channels)
    conv("asp.conv", speaker.enc_attention_channels, last)
    conv("fc", 2 * last, speaker.enc_dim)
    return shapes


def read_codec_config(folder: Path, config: TTSConfig) -> CodecConfig:
    """Read the config.json of the codec in `speech_tokenizer/`.

    Raises:
        CheckpointError: The file is broken, or its codec does not have the talker's frames.
    """
    path = folder / CODEC_FOLDER / "config.json"
    codec = codec_config(read_json(path), str(path))
    _check_codec(config, codec, path)
    return codec


def _check_codec(config: TTSConfig, codec_config: CodecConfig, path: Path) -> None:
    """Raise CheckpointError if the talker's frames do not match the codec's."""
    talker, decoder = config.talker_config, codec_config.decoder_config
    sizes = (talker.vocab_size - CONTROL_IDS, talker.code_predictor_config.vocab_size)
    if talker.num_code_groups != decoder.num_quantizers or set(sizes) != {decoder.codebook_size}:
        raise CheckpointError(
            f"{path}: the codec has {decoder.num_quantizers} codebooks of {decoder.codebook_size} "
            f"codes, but the talker speaks {talker.num_code_groups} of {sizes}"
        )
