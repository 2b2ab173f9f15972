"""Qwen3-TTS for the engine. An entry of the log is one frame of codec codes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Seq
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from izwi.model.encoders import EncoderSizes, PaddedEncoder
from izwi.model.layers import PagedAttention
from izwi.model.protocol import UNKNOWN, ModelBackend, Pick
from izwi.model.sizes import ModelSizes
from izwi.model.step_batch import Row, Span
from izwi.model.tracks import Track
from izwi.ops import Array, AttentionContext, Ops, Weights
from izwi.request.request import EncodeInput
from izwi_models import qwen3_codec as codec
from izwi_models.qwen3_tts import speaker, talker
from izwi_models.qwen3_tts.codec import CodecSizes, Qwen3TTSCodec, voice_of
from izwi_models.qwen3_tts.config import (
    CODEC_FOLDER,
    CONTROL_IDS,
    TTSConfig,
    read_codec_config,
    read_config,
    tensor_shapes,
)
from izwi_models.qwen3_tts.embedding import Positions
from izwi_models.qwen3_tts.prompt import (
    ENCODE_CODES,
    ENCODE_SPEAKER,
    NOTHING,
    SpeechPrompt,
    frame_key,
)
from izwi_models.qwen3_tts.voice_encoders import (
    CodeSizes,
    PaddedCodes,
    PaddedSpeakers,
    SpeakerSizes,
)


class Qwen3TTS:
    """Implements `RecordableModel`, `EncodesPadded` and `TakesStreamedText`."""

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
        return self._config.talker_config.stack.layers

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
        return talker.predict_codes(ops, weights, config, hidden, first, pick)

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
    weights = dict(backend.load_weights(folder, shapes, talker.packable(shapes)))
    codec_weights = backend.load_weights(folder / CODEC_FOLDER, codec.tensor_shapes(codec_config))
    codec_weights = codec.prepare(backend.ops, codec_weights, codec_config)
    clones = config.speaker_encoder_config is not None
    speech_codec = Qwen3TTSCodec(backend.ops, codec_weights, codec_config, warms_up=clones)
    weights = talker.prepare(backend.ops, weights, config)
    return Qwen3TTS(backend.ops, weights, speech_codec, config)


def read_sizes(folder: Path) -> ModelSizes:
    """Read the sizes of a checkpoint, without its weights; raises CheckpointError."""
    config = read_config(folder)
    codec_config, encoders = read_codec_config(folder, config), list[EncoderSizes]()
    if speakers := config.speaker_encoder_config:
        encoders.append(SpeakerSizes(speakers))
        if not config.clones_by_vector:
            encoders.append(CodeSizes(codec_config))
    shapes = tensor_shapes(config)
    return ModelSizes(
        config.talker_config.stack.layers,
        config.talker_config.max_position_embeddings,
        (config.talker_config.vocab_size,),
        CodecSizes(codec_config),
        encodes=True,
        encoders=tuple(encoders),
        weights=(shapes, codec.tensor_shapes(codec_config)),
        packable=talker.packable(shapes),
    )


def _prompt(span: Span) -> SpeechPrompt:
    prompt = span.request.prompt
    assert isinstance(prompt, SpeechPrompt)
    return prompt
