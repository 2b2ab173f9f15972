"""Qwen3-TTS for the engine: talker and codec. An entry of the log is one frame of codec codes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from izwi.model.encoders import EncoderSizes, PaddedEncoder
from izwi.model.layers import PagedAttention, StateSpec
from izwi.model.protocol import UNKNOWN, ModelBackend, Pick
from izwi.model.sizes import ModelSizes
from izwi.model.step_batch import Row, Span
from izwi.model.tracks import Track
from izwi.ops import Array, AttentionContext, Ops, Weights
from izwi.ops.ranks import ALONE, RankNumber
from izwi.request.request import EncodeInput
from izwi_models import qwen3_codec as codec
from izwi_models.qwen3.adapted import AdaptedStack, adaptable
from izwi_models.qwen3.config import parts_of, share_of
from izwi_models.qwen3_tts import speaker, talker
from izwi_models.qwen3_tts.config import (
    CODEC_FOLDER,
    CONTROL_IDS,
    TTSConfig,
    read_codec_config,
    read_config,
    tensor_shapes,
)
from izwi_models.qwen3_tts.prompt import (
    ENCODE_CODES,
    ENCODE_SPEAKER,
    FIRST_FRAME,
    NOTHING,
    SPEAKER,
    SpeechPrompt,
    frame_key,
)
from izwi_models.qwen3_tts.voice_encoders import (
    CodeSizes,
    PaddedCodes,
    PaddedSpeakers,
    SpeakerSizes,
)

Int64 = npt.NDArray[np.int64]

# Tables with embeddings of the codec track, in the order in which they are joined.
_NONE, _CODEC, _EMITTED, _CLIP, _VECTOR = range(5)
# Arrays of the last upsampling block that decoding keeps at once (measured on a GPU: 3.8).
_PEAK_ARRAYS = 4


class Qwen3TTS:
    """Implements `CapturableModel`, `EncodesPadded`, `TakesAdapters` and `TakesStreamedText`."""

    def __init__(
        self,
        ops: Ops,
        weights: Weights,
        speech_codec: Qwen3TTSCodec,
        config: TTSConfig,
    ):
        """Bind weights to a checkpoint's configuration; see `load_model`."""
        self._ops, self._weights, self.codec = ops, weights, speech_codec
        self._config = config
        talker_config = self._config.talker_config
        self._groups = talker_config.num_code_groups
        self.adapted = AdaptedStack(ops, weights, talker_config, talker.PREFIX)
        pad = self._config.tts_pad_token_id
        self._pad = (pad, talker.embed_text(ops, weights, ops.array(np.array([pad]))))
        suppressed = np.zeros(talker_config.vocab_size, np.bool_)
        suppressed[-CONTROL_IDS:] = True  # controls, languages and speakers
        suppressed[talker_config.codec_eos_token_id] = False
        frames = Track("frames", self._groups, talker_config.vocab_size, suppressed, speech_codec)
        self.tracks = (frames,)
        self.padded_encoders: dict[str, PaddedEncoder] = {}
        if speakers := self._config.speaker_encoder_config:
            self.padded_encoders[ENCODE_SPEAKER] = PaddedSpeakers(ops, weights, speakers)
            if not self._config.clones_by_vector:
                codes = PaddedCodes(ops, speech_codec.weights, speech_codec.config)
                self.padded_encoders[ENCODE_CODES] = codes

    # -- properties --------------------------------------------------------------------------
    @property
    def layers(self) -> tuple[PagedAttention, ...]:
        """Cache specification of each layer of the talker."""
        return self._config.talker_config.layers

    @property
    def max_positions(self) -> int:
        """Maximum number of positions of the talker."""
        return self._config.talker_config.max_position_embeddings

    @property
    def num_inputs(self) -> int:
        """Numbers per position: a frame, and the text id added to it."""
        return self._groups + 1

    # -- the log -----------------------------------------------------------------------------
    def positions_ready(self, span: Span) -> int:
        """Return how many positions have known inputs; all, once the text is complete."""
        if not span.is_open:
            return span.stop
        known = span.num_prompt + len(_prompt(span).text_track) + len(span.written)
        return min(known, span.stop)

    def max_entries(self, span: Span) -> int:
        """Return the maximum number of frames, as if the whole text had been given at once."""
        request, prompt = span.request, _prompt(span)
        if span.is_open or not prompt.limits_frames:
            return request.max_entries
        num_text_ids = prompt.num_text_ids + len(span.written)
        return min(request.max_entries, self._config.most_frames(num_text_ids))

    def content_keys(self, span: Span) -> list[int]:
        """Return content keys of positions: equal keys mean equal talker inputs.

        Raises:
            ValueError: The text of one of the positions is not written yet.
        """
        keys: list[int] = _prompt(span).keys[span.start : span.stop].tolist()
        if span.stop_entry:
            keys += map(frame_key, span.logged(), self._beside(span).tolist())
        return keys

    # -- a step ------------------------------------------------------------------------------
    def encode(self, inputs: Seq[EncodeInput]) -> list[Array]:
        """Run the encoders: (hidden,) for a speaker, (frames, codebooks) int64 for codes."""
        groups: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
        for index, piece in enumerate(inputs):
            groups[piece.kind, piece.values.shape].append(index)
        results: list[Array] = [None] * len(inputs)
        for (kind, _), members in groups.items():
            batch = self._ops.array(np.stack([inputs[index].values for index in members]))
            encoded = self._encode_batch(kind, batch)
            for row, index in enumerate(members):
                results[index] = encoded[row]
        return results

    def _encode_batch(self, kind: str, batch: Array) -> Array:
        if kind == ENCODE_SPEAKER:
            config = self._config.speaker_encoder_config
            assert config is not None
            return speaker.speaker_embedding(self._ops, self._weights, config, batch)
        return codec.encode(self._ops, self.codec.weights, self.codec.config, batch)

    def embed(self, rows: Seq[Row]) -> Array:
        """Return talker inputs of each row's positions [start, stop), concatenated."""
        positions = Positions()
        for row in rows:
            self._add(positions, row)
        return positions.embed(self._ops, self._weights, self._pad)

    def inputs(self, rows: Seq[Row]) -> npt.NDArray[np.int64] | None:
        """Return (positions, codebooks + 1): a frame, and the text id added to it.

        A prompt position has its codec id in place of the first code; missing codes are `NOTHING`.
        None if a row includes a reference clip or its speaker vector.
        """
        positions: list[tuple[int, ...]] = []
        rest = (NOTHING,) * (self._groups - 1)
        unknown = (UNKNOWN,) * self._groups
        for row in rows:
            if row.start < row.num_prompt:
                prompt = _prompt(row)
                codec = prompt.codec[row.start : row.stop]
                if codec.min() < NOTHING:
                    return None
                beside = prompt.text[row.start : row.stop].tolist()
                pairs = zip(codec.tolist(), beside, strict=True)
                positions += [(code, *rest, text) for code, text in pairs]
            positions += [
                (*(row.entry(frame) or unknown), self._text_beside(row, frame))
                for frame in range(row.first_entry, row.stop_entry)
            ]
        flat = np.fromiter(chain.from_iterable(positions), np.int64)
        return flat.reshape(len(positions), self.num_inputs)

    def embed_inputs(self, inputs: Array) -> Array:
        """Return talker inputs for the ids of `inputs`."""
        frame = talker.embed_frame(self._ops, self._weights, inputs[:, :-1])
        return frame + talker.embed_text(self._ops, self._weights, inputs[:, -1])

    def run(self, x: Array, context: AttentionContext) -> Array:
        """Run packed positions through the talker."""
        return talker.hidden_states(self._ops, self._weights, self._config, x, context)

    def draw(self, hidden: Array, pick: Pick, track: int = 0) -> Array:  # noqa: ARG002
        """Sample a frame from each state: codebook 0, then the others with the code predictor."""
        ops, weights, config = self._ops, self._weights, self._config
        if not hidden.shape[0]:
            return ops.array(np.zeros((0, self._groups), np.int64))
        first = pick(talker.codec_logits(ops, weights, hidden), 0)
        # The code predictor is whole on every rank: its 15 passes would add up 150 times a frame.
        codes = talker.predict_codes(ops, weights, config, hidden, first, pick)
        return ops.ranks.broadcast(codes)

    def _add(self, positions: Positions, row: Row) -> None:
        if row.start < row.num_prompt:
            vector, clip = voice_of(self._ops, row)
            stop = min(row.stop, row.num_prompt)
            positions.add_prompt(_prompt(row), row.start, stop, vector, clip)
        if row.stop_entry:
            positions.add_frames(row.logged(), self._beside(row))

    def _beside(self, span: Span) -> npt.NDArray[np.int64]:
        """Return (frames,) text ids that are added to the span's frames of the log."""
        frames = range(span.first_entry, span.stop_entry)
        return np.array([self._text_beside(span, frame) for frame in frames], np.int64)

    def _text_beside(self, span: Span, frame: int) -> int:
        """Return the text id that is added to a frame of the log.

        Raises:
            ValueError: The text is not written yet.
        """
        track, written = _prompt(span).text_track, span.written
        place = frame - len(track)
        if place < 0:
            return int(track[frame])
        if place < len(written):
            return written[place]
        if span.is_open:
            raise ValueError(f"frame {frame} needs text that is not written yet")
        ends = span.request.open_input and place == len(written)  # a closed track has its own
        return self._config.tts_eos_token_id if ends else self._pad[0]


def load_model(folder: Path, backend: ModelBackend) -> Qwen3TTS:
    """Read configuration, weights and the codec in `speech_tokenizer/`.

    Raises:
        CheckpointError: Something is missing or does not match; the message names the file, key or
            tensor.
    """
    config = read_config(folder)
    codec_config = read_codec_config(folder, config)
    shapes = tensor_shapes(config)
    ranks, packable = backend.ops.ranks, talker.packable(shapes)
    parts = parts_of(config.talker_config, ranks, talker.PREFIX)
    weights = dict(backend.load_weights(folder, shapes, packable, parts))
    config = replace(config, talker_config=share_of(config.talker_config, ranks))
    codec_weights = backend.load_weights(folder / CODEC_FOLDER, codec.tensor_shapes(codec_config))
    codec_weights = codec.prepare(backend.ops, codec_weights, codec_config)
    clones = config.speaker_encoder_config is not None
    speech_codec = Qwen3TTSCodec(backend.ops, codec_weights, codec_config, warms_up=clones)
    weights = talker.prepare(backend.ops, weights, config)
    return Qwen3TTS(backend.ops, weights, speech_codec, config)


def read_sizes(folder: Path, ranks: RankNumber = ALONE) -> ModelSizes:
    """Read the sizes of a rank's part of a checkpoint, without its weights; see `ModelModule`."""
    config = read_config(folder)
    codec_config, encoders = read_codec_config(folder, config), list[EncoderSizes]()
    if speakers := config.speaker_encoder_config:
        encoders.append(SpeakerSizes(speakers))
        if not config.clones_by_vector:
            encoders.append(CodeSizes(codec_config))
    shapes = tensor_shapes(config)
    sizes = ModelSizes(
        share_of(config.talker_config, ranks).layers,
        config.talker_config.max_position_embeddings,
        (config.talker_config.vocab_size,),
        CodecSizes(codec_config),
        encodes=True,
        encoders=tuple(encoders),
        weights=(shapes, codec.tensor_shapes(codec_config)),
        packable=talker.packable(shapes),
        adaptable=adaptable(config.talker_config, talker.PREFIX),
    )
    return sizes.of_parts(parts_of(config.talker_config, ranks, talker.PREFIX))


def _prompt(span: Span) -> SpeechPrompt:
    prompt = span.request.prompt
    assert isinstance(prompt, SpeechPrompt)
    return prompt


@dataclass(slots=True, eq=False)
class Positions:
    """Positions in order, embedded together with a few operations.

    `sources` and `offsets` have, for each position, the table of its codec embedding and the row in
    that table.
    """

    text: list[Int64] = field(default_factory=list)
    sources: list[Int64] = field(default_factory=list)
    offsets: list[Int64] = field(default_factory=list)
    codec_ids: list[Int64] = field(default_factory=list)
    emitted: list[tuple[int, ...]] = field(default_factory=list)
    clips: list[Array] = field(default_factory=list)
    vectors: list[Array] = field(default_factory=list)

    def add_prompt(
        self, prompt: SpeechPrompt, start: int, stop: int, speaker: Array, clip: Array
    ) -> None:
        """Add positions [start, stop) of a prompt.

        Args:
            prompt: The prompt.
            start: First position.
            stop: One past the last.
            speaker: (hidden,) vector of the cloned speaker; ignored if there is none.
            clip: (frames, codebooks) codes of the reference clip; likewise.
        """
        codec = prompt.codec[start:stop]
        source = np.full(len(codec), _NONE, np.int64)
        offset = np.zeros(len(codec), np.int64)
        is_id, is_frame, is_speaker = codec >= 0, codec <= FIRST_FRAME, codec == SPEAKER
        if is_id.any():
            source[is_id] = _CODEC
            offset[is_id] = np.arange(is_id.sum()) + sum(map(len, self.codec_ids))
            self.codec_ids.append(codec[is_id])
        if is_frame.any():
            frames = FIRST_FRAME - codec[is_frame]  # consecutive, since a clip is not reordered
            source[is_frame] = _CLIP
            offset[is_frame] = np.arange(len(frames)) + sum(c.shape[0] for c in self.clips)
            self.clips.append(clip[int(frames[0]) : int(frames[-1]) + 1])
        if is_speaker.any():
            source[is_speaker] = _VECTOR
            offset[is_speaker] = len(self.vectors)
            self.vectors.append(speaker)
        self.text.append(prompt.text[start:stop])
        self.sources.append(source)
        self.offsets.append(offset)

    def add_frames(self, frames: list[tuple[int, ...]], text: Int64) -> None:
        """Add emitted frames of `codebooks` ids each, with (frames,) text ids."""
        self.sources.append(np.full(len(frames), _EMITTED, np.int64))
        self.offsets.append(np.arange(len(frames)) + len(self.emitted))
        self.emitted.extend(frames)
        self.text.append(text)

    def embed(self, ops: Ops, weights: Weights, pad: tuple[int, Array]) -> Array:
        """Embed all added positions.

        Args:
            ops: The backend's operations.
            weights: Tensors by checkpoint name.
            pad: Text id of tts_pad and its embedding (1, hidden). Most frames have no other text,
                and then no text is embedded.

        Returns:
            (positions, hidden) in the order in which they were added.
        """
        ids = np.concatenate(self.text)
        if (ids == pad[0]).all():
            text = pad[1]
        else:
            text = talker.embed_text(ops, weights, ops.array(ids))
        sources = np.concatenate(self.sources)
        if (sources == _EMITTED).all():  # a step that only decodes: the frames are in order
            return text + self._embed_frames(ops, weights)
        tables = self._tables(ops, weights)
        firsts = np.cumsum([0, *(0 if table is None else table.shape[0] for table in tables)])
        joined = ops.concat([table for table in tables if table is not None], 0)
        index = firsts[sources] + np.concatenate(self.offsets)
        return text + ops.take(joined, ops.array(index))

    def _tables(self, ops: Ops, weights: Weights) -> list[Array | None]:
        """Return the tables, (rows, hidden) each; None for those that no position needs."""
        width = weights["talker.model.codec_embedding.weight"].shape[1]
        tables: list[Array | None] = [ops.zeros((1, width)), None, None, None, None]
        if self.codec_ids:
            ids = ops.array(np.concatenate(self.codec_ids))
            tables[_CODEC] = talker.embed_codec(ops, weights, ids)
        if self.emitted:
            tables[_EMITTED] = self._embed_frames(ops, weights)
        if self.clips:
            codes = self.clips[0] if len(self.clips) == 1 else ops.concat(self.clips, 0)
            tables[_CLIP] = talker.embed_frame(ops, weights, codes)
        if self.vectors:
            tables[_VECTOR] = ops.stack(self.vectors, 0)
        return tables

    def _embed_frames(self, ops: Ops, weights: Weights) -> Array:
        return talker.embed_frame(ops, weights, ops.array(np.array(self.emitted, np.int64)))


class CodecSizes:
    """What decoding takes of a device. Implements `izwi.model.tracks.CodecSizes`."""

    def __init__(self, config: codec.CodecConfig):
        self.config = config

    @property
    def state(self) -> Mapping[str, StateSpec]:
        """State that a stream keeps between chunks."""
        return codec.state_shapes(self.config)

    def peak_values(self, frames: int) -> int:
        """Return the most numbers that decoding frames of one stream keeps at once."""
        decoder = self.config.decoder_config
        channels = decoder.decoder_dim >> len(decoder.upsample_rates)
        return _PEAK_ARRAYS * channels * self.frame_samples * frames

    @property
    def frame_samples(self) -> int:
        """Number of samples in one frame."""
        return self.config.decode_upsample_rate


class Qwen3TTSCodec(CodecSizes):
    """The codec. Implements `izwi.model.tracks.Codec`.

    Attributes:
        warms_up: Whether speech may continue a clip, because the checkpoint clones.
    """

    def __init__(self, ops: Ops, weights: Weights, config: codec.CodecConfig, *, warms_up: bool):
        """Bind weights that were prepared for serving."""
        super().__init__(config)
        self._ops, self.weights, self.warms_up = ops, weights, warms_up

    lookahead_samples = 0

    @property
    def sample_rate(self) -> int:
        """Sample rate of the audio, in Hz."""
        return self.config.output_sample_rate

    def warm_codes(self, span: Span) -> Array | None:
        """Return the reference clip's codes (frames, codebooks); None if there is no clip."""
        if _prompt(span).num_reference_frames == 0:
            return None
        return voice_of(self._ops, span)[1]

    def decode(self, codes: Array, state: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        """Decode (rows, frames, codebooks) to (rows, samples) in [-1, 1], and the next state."""
        return codec.decode(self._ops, self.weights, self.config, codes, state)


def voice_of(ops: Ops, span: Span) -> tuple[Array, Array]:
    """Return the cloned speaker's (hidden,) vector and the clip's (frames, codebooks) codes.

    Each is None if the prompt does not have it.
    """
    voice = _prompt(span).voice
    if voice is not None:
        codes = None if voice.codes is None else ops.array(voice.codes)
        return ops.array(voice.speaker_embedding), codes
    vector, codes = [*span.encoded, None, None][:2]
    return vector, codes
