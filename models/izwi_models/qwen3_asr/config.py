"""Sizes of a Qwen3-ASR checkpoint and the tensors they imply. Knows no arithmetic.

Source: qwen_asr 0.0.6, core/transformers_backend; the published config.json of the 0.6B and 1.7B.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from izwi.audio.mel import WHISPER_FFT, WHISPER_HOP, WHISPER_MELS, WHISPER_RATE
from izwi.checkpoints.folder import parse_config, read_json
from izwi.errors import CheckpointError
from izwi_models.qwen3.config import TextConfig, layer_matrices
from izwi_models.qwen3.config import tensor_shapes as decoder_shapes

AUDIO_PREFIX = "thinker.audio_tower."
TEXT_PREFIX = "thinker.model."
EMBEDDING = "thinker.model.embed_tokens.weight"
HEAD = "thinker.lm_head.weight"

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class AudioConfig:
    """The audio encoder, named as in the published config.json.

    Attributes:
        n_window: Half a chunk, in mel frames; the convolutions see one chunk at a time.
        n_window_infer: Mel frames whose tokens attend to each other.
        conv_chunksize: Chunks that go through the convolutions at once.
    """

    num_mel_bins: int
    d_model: int
    encoder_layers: int
    encoder_attention_heads: int
    encoder_ffn_dim: int
    output_dim: int
    downsample_hidden_size: int
    n_window: int
    n_window_infer: int
    conv_chunksize: int
    activation_function: str
    scale_embedding: bool

    @property
    def chunk_frames(self) -> int:
        """Mel frames of one chunk, 100 in the published models (1 s)."""
        return 2 * self.n_window

    @property
    def chunk_tokens(self) -> int:
        """Tokens of one whole chunk, 13 in the published models."""
        return _thrice_halved(self.chunk_frames)

    def num_tokens(self, frames: int) -> int:
        """Return the number of tokens of `frames` mel frames."""
        chunks, rest = divmod(frames, self.chunk_frames)
        return chunks * self.chunk_tokens + _thrice_halved(rest)


@dataclass(frozen=True, slots=True)
class ThinkerConfig:
    """Encoder, decoder and the ids around the audio."""

    audio_config: AudioConfig
    text_config: TextConfig
    audio_token_id: int
    audio_start_token_id: int
    audio_end_token_id: int


class Parts(Protocol):
    """A checkpoint of this encoder and this decoder, with any head."""

    @property
    def audio(self) -> AudioConfig:
        """The audio encoder."""
        ...

    @property
    def text(self) -> TextConfig:
        """The decoder."""
        ...


@dataclass(frozen=True, slots=True)
class AsrConfig:
    """One checkpoint.

    Attributes:
        support_languages: Names of the languages it knows; None for all thirty.
        max_audio_seconds: Longest piece that it accepts; None for the published 1,200. Our own key,
            for checkpoints that were trained on shorter audio.
        follows_context: Whether it was trained with text before the audio. Our own key; one that
            was not writes nonsense after such a text, so it gets none.
    """

    thinker_config: ThinkerConfig
    support_languages: tuple[str, ...] | None = None
    max_audio_seconds: float | None = None
    follows_context: bool = True

    @property
    def audio(self) -> AudioConfig:
        """The audio encoder."""
        return self.thinker_config.audio_config

    @property
    def text(self) -> TextConfig:
        """The decoder."""
        return self.thinker_config.text_config


def read_config(folder: Path) -> AsrConfig:
    """Read config.json and check the features of preprocessor_config.json, if there is one.

    Raises:
        CheckpointError: A file is broken, a key is missing, or a value is not supported; the
            message names it.
    """
    where = folder / "config.json"
    config = parse_config(AsrConfig, read_json(where), str(where))
    thinker, vocab_size = config.thinker_config, config.text.vocab_size
    wrong = wrong_parts(config) | {
        "audio_token_id": not 0 <= thinker.audio_token_id < vocab_size,
        "audio_start_token_id": not 0 <= thinker.audio_start_token_id < vocab_size,
        "audio_end_token_id": not 0 <= thinker.audio_end_token_id < vocab_size,
        "max_audio_seconds": config.max_audio_seconds is not None
        and config.max_audio_seconds < 1.0,
    }
    refuse_wrong(where, wrong)
    check_features(folder)
    return config


def refuse_wrong(where: Path, wrong: Mapping[str, bool]) -> None:
    """Raise CheckpointError for the first value that is not supported, with its name."""
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise CheckpointError(f"{where}: {name} has a value not supported")


def check_features(folder: Path) -> None:
    """Check that preprocessor_config.json, if there is one, has the features that we compute.

    Raises:
        CheckpointError: Its features differ.
    """
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return
    features = read_json(path)
    expected = {
        "feature_size": WHISPER_MELS,
        "sampling_rate": WHISPER_RATE,
        "n_fft": WHISPER_FFT,
        "hop_length": WHISPER_HOP,
    }
    for key, value in expected.items():
        if features.get(key, value) != value:
            raise CheckpointError(f"{path}: {key} must be {value}, got {features[key]!r}")


def tensor_shapes(config: Parts, *, with_head: bool | None = None) -> Shapes:
    """Names and shapes of the published layout.

    Args:
        config: Sizes.
        with_head: Whether there is an output head besides the embedding. A tied checkpoint may have
            one or not; None decides by the configuration.
    """
    text = config.text
    if with_head is None:
        with_head = not text.tie_word_embeddings
    shapes = {AUDIO_PREFIX + name: shape for name, shape in _audio_shapes(config.audio).items()}
    shapes[EMBEDDING] = (text.vocab_size, text.hidden_size)
    shapes.update(decoder_shapes(text, TEXT_PREFIX))
    if with_head:
        shapes[HEAD] = (text.vocab_size, text.hidden_size)
    return shapes


def packable(shapes: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
    """Return the matrices that may stay packed: the decoder's, the embedding and the head."""
    return layer_matrices(shapes, TEXT_PREFIX) | ({EMBEDDING, HEAD} & shapes.keys())


def _audio_shapes(config: AudioConfig) -> Shapes:
    width, inner, conv = config.d_model, config.encoder_ffn_dim, config.downsample_hidden_size
    conv_width = conv * _thrice_halved(config.num_mel_bins)
    layer: Shapes = {}
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        layer |= _affine(f"self_attn.{name}", width, width)
    layer |= _norm("self_attn_layer_norm", width) | _norm("final_layer_norm", width)
    layer |= _affine("fc1", inner, width) | _affine("fc2", width, inner)
    shapes: Shapes = {}
    for n, channels in enumerate((1, conv, conv), start=1):
        shapes[f"conv2d{n}.weight"] = (conv, channels, 3, 3)
        shapes[f"conv2d{n}.bias"] = (conv,)
    shapes["conv_out.weight"] = (width, conv_width)
    for n in range(config.encoder_layers):
        shapes |= {f"layers.{n}.{name}": shape for name, shape in layer.items()}
    shapes |= _norm("ln_post", width) | _affine("proj1", width, width)
    return shapes | _affine("proj2", config.output_dim, width)


def _affine(name: str, out: int, into: int) -> Shapes:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _thrice_halved(length: int) -> int:
    """Length after three convolutions of kernel 3, stride 2 and padding 1."""
    for _ in range(3):
        length = (length + 1) // 2
    return length


def wrong_parts(config: Parts) -> dict[str, bool]:
    """Values of encoder and decoder by name, and whether this code cannot compute them."""
    audio, text = config.audio, config.text
    return {
        "audio_config.num_mel_bins": audio.num_mel_bins != WHISPER_MELS,
        "audio_config.activation_function": audio.activation_function != "gelu",
        "audio_config.scale_embedding": audio.scale_embedding,
        "audio_config.n_window_infer": audio.n_window <= 0
        or audio.n_window_infer < audio.chunk_frames
        or audio.n_window_infer % audio.chunk_frames != 0,
        "audio_config.d_model": audio.d_model % 2 != 0
        or audio.d_model % audio.encoder_attention_heads != 0,
        "audio_config.output_dim": audio.output_dim != text.hidden_size,
        "text_config.hidden_act": text.hidden_act != "silu",
        "text_config.attention_bias": text.attention_bias,
    }
