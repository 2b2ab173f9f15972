"""LFM2-Audio for the engine: text and audio in, interleaved text and audio out.

A checkpoint's folder has config.json, model.safetensors, tokenizer.json, and the codec:
tokenizer-e351c8d8-checkpoint125.safetensors    Mimi, of LFM2-Audio-1.5B
audio_detokenizer/    of LFM2.5-Audio-1.5B, if present
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from izwi.checkpoints.folder import read_json
from izwi.checkpoints.weight_files import tensor_names
from izwi.errors import CheckpointError, InvalidRequest
from izwi.model.layers import CacheSpec
from izwi.model.protocol import UNKNOWN, ModelBackend, Pick
from izwi.model.sizes import ModelSizes, TensorShapes
from izwi.model.step_batch import Row, Span
from izwi.model.tracks import Track
from izwi.ops import Array, AttentionContext, Ops, Weights
from izwi.ops.ranks import ALONE, RankNumber
from izwi.request.request import EncodeInput, Request
from izwi.request.track_log import Entry, TrackProgress
from izwi_models.lfm2_audio import backbone, depthformer, embedding
from izwi_models.lfm2_audio.audio_config import (
    DetokenizerConfig,
    EncoderConfig,
    MimiConfig,
    detokenizer_config,
    encoder_config,
)
from izwi_models.lfm2_audio.audio_tensors import detokenizer_shapes, encoder_shapes, mimi_shapes
from izwi_models.lfm2_audio.codecs import (
    FrameCodec,
    FrameSizes,
    detokenizer_codec,
    detokenizer_sizes,
    mimi_codec,
    mimi_sizes,
)
from izwi_models.lfm2_audio.config import (
    CODES,
    DETOKENIZER_FOLDER,
    END_ID,
    END_OF_AUDIO,
    LFM2AudioConfig,
    read_config,
    tensor_shapes,
    unused_shapes,
)
from izwi_models.lfm2_audio.pattern import Blocks, TrackIndex, Turn, first_turn, next_turn
from izwi_models.lfm2_audio.prompt import SEGMENT, LFM2Prompt, entry_key, input_row
from izwi_models.lfm2_audio.segments import SegmentEncoder, SegmentSizes
from izwi_models.lfm2_audio.tokenizer import LFM2Tokenizer

_MIMI = "tokenizer-e351c8d8-checkpoint125.safetensors"
_OF_ENCODER = ("conformer.", "audio_adapter.")


class AudioModules(NamedTuple):
    """The parts that read and make audio, on a device."""

    encoder: SegmentEncoder
    codec: FrameCodec


class LFM2Audio:
    """One checkpoint on one device.

    Implements `CapturableTracks`, `ChoosesTracks`, `Encodes` and `SpellsTokens`.
    """

    end_ids = (END_ID,)

    def __init__(
        self,
        ops: Ops,
        weights: Weights,
        config: LFM2AudioConfig,
        parts: AudioModules,
        folder: Path,
    ):
        """Bind weights that `load_model` prepared.

        Args:
            ops: The backend's operations.
            weights: Of backbone, depthformer and embeddings.
            config: config.json.
            parts: Encoder and codec.
            folder: Has the tokenizer, which only grammars need.
        """
        self._ops, self._weights, self._config, self._folder = ops, weights, config, folder
        self._encoder = parts.encoder
        self.padded_encoders = {SEGMENT: parts.encoder}
        self._blocks = Blocks(config.interleaved_n_text, config.interleaved_n_audio)
        self._head = ops.quantize(weights[backbone.EMBEDDING])
        text = Track("text", 1, config.lfm.vocab_size)
        silent = frozenset({END_OF_AUDIO})
        frames = Track("frames", config.codebooks, CODES, codec=parts.codec, silent_ids=silent)
        self.tracks = (text, frames)

    @property
    def layers(self) -> tuple[CacheSpec, ...]:
        return self._config.lfm.layers

    @property
    def max_positions(self) -> int:
        return self._config.lfm.max_position_embeddings

    def initial_progress(self, request: Request) -> TrackProgress:  # noqa: ARG002
        return _progress(first_turn(self._blocks))

    def following(
        self, request: Request, progress: TrackProgress, drawn: Entry | None
    ) -> TrackProgress | None:
        left, done = progress.state
        turn = Turn(TrackIndex(progress.track), left, bool(done))
        after = next_turn(_prompt(request).mode, self._blocks, turn, drawn)
        return None if after.track is None else _progress(after)

    def content_keys(self, span: Span) -> list[int]:
        keys: list[int] = _prompt(span.request).content_keys[span.start : span.stop].tolist()
        return keys + [entry_key(entry) for entry in span.logged()]

    def encode(self, inputs: Seq[EncodeInput]) -> list[Array]:
        """Run the audio encoder: (positions, hidden) each, in order."""
        return self._encoder.encode(inputs)

    @property
    def num_inputs(self) -> int:
        return 1 + self._config.codebooks

    @property
    def entry_columns(self) -> tuple[int, ...]:
        return (0, 1)

    def inputs(self, rows: Seq[Row]) -> npt.NDArray[np.int64] | None:
        """Return the rows' positions as ids; None if one of them is audio."""
        return None if any(map(_has_audio, rows)) else self._inputs(rows)

    def embed_inputs(self, inputs: Array) -> Array:
        """Embed tokens and frames; see `embedding.embed_inputs`."""
        return embedding.embed_inputs(self._ops, self._weights, inputs)

    def embed(self, rows: Seq[Row]) -> Array:
        """Return inputs of the rows' positions, concatenated: tokens, frames, encoded audio."""
        x = self.embed_inputs(self._ops.array(self._inputs(rows)))
        audio_rows, places = _audio_rows(rows)
        if not audio_rows:
            return x
        inputs = self._ops.concat([x, *audio_rows], 0)
        return self._ops.take(inputs, self._ops.array(places))

    def run(self, x: Array, context: AttentionContext) -> Array:
        return backbone.hidden_states(self._ops, self._weights, self._config.lfm, x, context)

    def draw(self, hidden: Array, pick: Pick, track: int = 0) -> Array:
        if track == TrackIndex.FRAMES:
            return depthformer.draw_frames(self._ops, self._weights, self._config, hidden, pick)
        return pick(self._ops.linear(hidden, self._head), 0).reshape(-1, 1)

    def _inputs(self, rows: Seq[Row]) -> npt.NDArray[np.int64]:
        parts: list[npt.NDArray[np.int64]] = []
        for row in rows:
            parts.append(_prompt(row.request).inputs[row.start : row.stop])
            logged = [input_row(entry, self._config.codebooks) for entry in row.logged()]
            # those that a step in flight draws
            unknown = row.stop_entry - row.first_entry - len(logged)
            logged += [[UNKNOWN] * self.num_inputs] * unknown
            if logged:
                parts.append(np.array(logged, np.int64))
        return np.concatenate(parts)

    def spell_vocabulary(self) -> tuple[list[bytes], list[int]]:
        """Return the bytes of each id, and the ids of control tokens; grammars need them."""
        tokenizer, count = LFM2Tokenizer(self._folder), self.tracks[0].vocabulary
        return [tokenizer.spell(index) for index in range(count)], tokenizer.control_ids


def load_model(folder: Path, backend: ModelBackend) -> LFM2Audio:
    """Read configuration, weights and the codec.

    Raises:
        CheckpointError: Something is missing or does not match; the message names the file, key or
            tensor.
    """
    ops = backend.ops
    _require_alone(ops.ranks)
    config, encoder = _read_configs(folder)
    shapes = _shapes(folder, config, encoder)
    weights = dict(backend.load_weights(folder, shapes, _packable(shapes)))
    for name in unused_shapes(config):
        weights.pop(name, None)
    segments = SegmentEncoder(ops, weights, encoder)
    weights = {name: w for name, w in weights.items() if not name.startswith(_OF_ENCODER)}
    weights = backbone.pack(ops, embedding.pack(ops, weights, config), config.lfm)
    weights = depthformer.pack(ops, weights, config)
    parts = AudioModules(segments, _load_codec(folder, backend, config))
    return LFM2Audio(ops, weights, config, parts, folder)


def read_sizes(folder: Path, ranks: RankNumber = ALONE) -> ModelSizes:
    """Read the sizes of a checkpoint, without its weights; see `ModelModule`."""
    _require_alone(ranks)
    config, encoder = _read_configs(folder)
    codec, _, codec_shapes = _codec_files(folder, config)
    shapes = _shapes(folder, config, encoder)
    return ModelSizes(
        config.lfm.layers,
        config.lfm.max_position_embeddings,
        (config.lfm.vocab_size, CODES),
        _codec_sizes(codec),
        encodes=True,
        encoders=(SegmentSizes(encoder),),
        weights=(shapes, codec_shapes),
        packable=_packable(shapes),
    )


def _require_alone(ranks: RankNumber) -> None:
    if ranks.count > 1:
        message = "LFM2-Audio runs on one device: it cannot be split by --tensor-parallel"
        raise InvalidRequest(message, param="tensor_parallel")


def _read_configs(folder: Path) -> tuple[LFM2AudioConfig, EncoderConfig]:
    config = read_config(folder)
    return config, encoder_config(config.encoder, f"{folder / 'config.json'}.encoder")


def _shapes(folder: Path, config: LFM2AudioConfig, encoder: EncoderConfig) -> TensorShapes:
    unused = {n: s for n, s in unused_shapes(config).items() if n in tensor_names(folder)}
    return tensor_shapes(config) | encoder_shapes(encoder, config.lfm.hidden_size) | unused


def _packable(shapes: TensorShapes) -> frozenset[str]:
    # those of the backbone's layers, which `backbone.pack` takes packed, too
    layers = f"{backbone.PREFIX}layers."
    return frozenset(n for n, shape in shapes.items() if n.startswith(layers) and len(shape) == 2)


def _codec_files(
    folder: Path, config: LFM2AudioConfig
) -> tuple[MimiConfig | DetokenizerConfig, Path, TensorShapes]:
    """Return the codec's sizes, the file or folder of its tensors, and their shapes."""
    own = folder / DETOKENIZER_FOLDER
    if own.is_dir():
        path = own / "config.json"
        sizes = detokenizer_config(read_json(path), str(path))
        return sizes, own, detokenizer_shapes(sizes)
    file = folder / _MIMI
    if not file.is_file():
        raise CheckpointError(f"{folder} has no codec: neither {DETOKENIZER_FOLDER}/ nor {_MIMI}")
    mimi = MimiConfig(num_codebooks=config.codebooks)
    return mimi, file, mimi_shapes(mimi, tensor_names(file))


def _codec_sizes(config: MimiConfig | DetokenizerConfig) -> FrameSizes:
    if isinstance(config, DetokenizerConfig):
        return detokenizer_sizes(config)
    return mimi_sizes(config)


def _load_codec(folder: Path, backend: ModelBackend, config: LFM2AudioConfig) -> FrameCodec:
    codec, place, shapes = _codec_files(folder, config)
    weights = backend.load_weights(place, shapes)
    if isinstance(codec, DetokenizerConfig):
        return detokenizer_codec(backend.ops, weights, codec)
    return mimi_codec(backend.ops, weights, codec)


def _progress(turn: Turn) -> TrackProgress:
    assert turn.track is not None
    return TrackProgress(turn.track, (turn.left, int(turn.text_done)))


def _prompt(request: Request) -> LFM2Prompt:
    assert isinstance(request.prompt, LFM2Prompt)
    return request.prompt


def _has_audio(row: Row) -> bool:
    """Return whether some of the row's positions are encoded audio."""
    if row.start >= row.num_prompt:  # what most rows are
        return False
    pairs = zip(_prompt(row.request).audio_starts, row.encoded, strict=True)
    return any(first < row.stop and row.start < first + audio.shape[0] for first, audio in pairs)


def _audio_rows(rows: Seq[Row]) -> tuple[list[Array], npt.NDArray[np.int64]]:
    """Return the encoded audio that the rows use, and where each position's input is.

    Returns:
        The encoded audio, and for each position an index into the rows' positions followed by the
        concatenated audio.
    """
    total = sum(row.stop - row.start for row in rows)
    places = np.arange(total)
    audio_rows: list[Array] = []
    before, behind = 0, total
    for row in rows:
        starts = _prompt(row.request).audio_starts if row.start < row.num_prompt else ()
        for first, audio in zip(starts, row.encoded, strict=True):
            low, high = max(row.start, first), min(row.stop, first + audio.shape[0])
            if low < high:
                at = before + low - row.start
                places[at : at + high - low] = np.arange(low - first, high - first) + behind
                audio_rows.append(audio)
                behind += audio.shape[0]
        before += row.stop - row.start
    return audio_rows, places
