"""Qwen3-TTS for the engine. An entry of the log is one frame of codec codes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Seq
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from izwi.errors import InvalidRequest
from izwi.inputs.speech import SpeechInput, VoicePrompt
from izwi.model.capability import Capability
from izwi.model.encoders import PaddedEncoder
from izwi.model.layers import PagedAttention
from izwi.model.protocol import UNKNOWN, Pick
from izwi.model.step_batch import Row, Span
from izwi.model.tracks import Track
from izwi.ops import Array, AttentionContext, Ops, Weights
from izwi.request.request import EncodeInput, Request
from izwi_models import qwen3_codec as codec
from izwi_models.qwen3_tts import prepare, speaker, talker
from izwi_models.qwen3_tts.codec import Codec, voice_of
from izwi_models.qwen3_tts.config import CONTROL_IDS
from izwi_models.qwen3_tts.cutting import split_text
from izwi_models.qwen3_tts.embedding import Positions
from izwi_models.qwen3_tts.prepare import Checkpoint, follows_instructions
from izwi_models.qwen3_tts.prompt import (
    ENCODE_CODES,
    ENCODE_SPEAKER,
    NOTHING,
    SpeechPrompt,
    frame_key,
)
from izwi_models.qwen3_tts.spoken import sentences
from izwi_models.qwen3_tts.text_stream import TextStream
from izwi_models.qwen3_tts.voice_encoders import PaddedCodes, PaddedSpeakers


class Qwen3TTS:
    """Implements `izwi.model.protocol.SpeechModel`."""

    capabilities = (Capability.SPEAK,)

    def __init__(self, ops: Ops, weights: Weights, speech_codec: Codec, checkpoint: Checkpoint):
        """Bind weights to a checkpoint's configuration; see `loader.load`."""
        self._ops, self._weights, self.codec = ops, weights, speech_codec
        self._checkpoint, self._config = checkpoint, checkpoint.config
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

    @property
    def sample_rate(self) -> int:
        """Sample rate of the audio in Hz."""
        return self.codec.sample_rate

    @property
    def speakers(self) -> tuple[str, ...]:
        """Names of the built-in speakers."""
        return tuple(self._config.talker_config.spk_id)

    @property
    def languages(self) -> tuple[str, ...]:
        """Names of the languages; dialects are selected by their speakers."""
        names = self._config.talker_config.codec_language_id
        return tuple(name for name in names if "dialect" not in name)

    @property
    def can_clone(self) -> bool:
        """Whether the checkpoint has a speaker encoder."""
        return self._config.speaker_encoder_config is not None

    @property
    def follows_instructions(self) -> bool:
        """Whether the checkpoint was trained on instructions; otherwise they are ignored."""
        return follows_instructions(self._config)

    # -- requests ----------------------------------------------------------------------------
    def split_text(self, text: str) -> list[str]:
        """Split text into pieces of a length that the checkpoint was trained on.

        Raises:
            InvalidRequest: The checkpoint speaks only plain English, and the text contains none.
        """
        limit = self._config.max_text_characters
        if not self._config.plain_english:
            return split_text(text, limit)
        plain = sentences(text)
        if not plain:
            raise InvalidRequest(
                "the text contains nothing that this model can pronounce (it speaks English)",
                param="input",
            )
        return [piece for sentence in plain for piece in split_text(sentence, limit)]

    def prepare_speech(self, request_id: str, model: str, ask: SpeechInput) -> Request:
        """Validate and tokenise a request; raises as `prepare.prepare_speech`."""
        return prepare.prepare_speech(self._checkpoint, request_id, model, ask)

    def text_stream(self, request_id: str, model: str, ask: SpeechInput) -> TextStream:
        """Open a stream for text that is still being written; see `text_stream.TextStream`."""
        return TextStream(self._checkpoint, request_id, model, ask)

    def prepare_voice(
        self, request_id: str, model: str, samples: npt.NDArray[np.float32], text: str | None
    ) -> Request:
        """Make an encode-only request for a reference clip; raises as `prepare.prepare_voice`."""
        return prepare.prepare_voice(self._checkpoint, request_id, model, samples, text)

    def read_voice(self, encoded: Seq[npt.NDArray[Any]], text: str | None) -> VoicePrompt:
        """Convert the result of `prepare_voice`'s request to a voice."""
        codes = encoded[1].astype(np.int64) if len(encoded) > 1 else None
        vector = encoded[0].astype(np.float32)
        return VoicePrompt(vector, codes, text if codes is not None else None)

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
        if not request.open_input or span.is_open or not isinstance(request.ask, SpeechInput):
            return request.max_entries
        num_text_ids = prompt.num_text_ids + len(span.written)
        return prepare.max_frames(self._checkpoint, request.ask, num_text_ids, prompt.num_positions)

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


def _prompt(span: Span) -> SpeechPrompt:
    prompt = span.request.prompt
    assert isinstance(prompt, SpeechPrompt)
    return prompt
