"""LFM2-Audio for the engine: text and audio in, interleaved text and audio out."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from izwi.arrays import Samples
from izwi.audio.resample import Resampling
from izwi.audio.split import split_at_silence
from izwi.inputs.chat import ChatInput
from izwi.inputs.conversation import ConversationInput
from izwi.inputs.speech import SpeechInput, Transcript, TranscriptionInput
from izwi.model.capability import Capability
from izwi.model.layers import CacheSpec
from izwi.model.protocol import UNKNOWN, Pick
from izwi.model.step_batch import Row, Span
from izwi.model.tracks import Track
from izwi.ops import Array, AttentionContext, Ops, Weights
from izwi.request.request import EncodeInput, Request
from izwi.request.track_log import Entry, Progress
from izwi_models.lfm2_audio import backbone, depthformer, embedding, prepare
from izwi_models.lfm2_audio.audio_parts import RATE_HZ
from izwi_models.lfm2_audio.codecs import FrameCodec
from izwi_models.lfm2_audio.config import CODES, END_ID, END_OF_AUDIO
from izwi_models.lfm2_audio.pattern import Blocks, TrackIndex, Turn, first_turn, next_turn
from izwi_models.lfm2_audio.prepare import Checkpoint
from izwi_models.lfm2_audio.prompt import LFM2Prompt, entry_key, input_row
from izwi_models.lfm2_audio.segments import SEGMENT, SegmentEncoder
from izwi_models.lfm2_audio.tokenizer import TextReader

# Longer audio is transcribed in pieces of this length; a cut is searched this far before its end.
_PIECE_S, _SEARCH_S = 30.0, 5.0
_ENGLISH = "English"


class LFM2Audio:
    """One checkpoint on one device.

    Implements `RecordableTracks`, `ChoosesTracks` and `Encodes` for the engine, and for API servers
    `ConversationModel`, `SpeechModel`, `TranscriptionModel`, `ChatModel` and `SpellsTokens`.
    """

    capabilities = (
        Capability.CONVERSE,
        Capability.SPEAK,
        Capability.TRANSCRIBE,
        Capability.CHAT,
    )
    languages = (_ENGLISH,)
    language_codes: Mapping[str, str] = {_ENGLISH: "en"}
    can_clone = False
    resampling = Resampling.TORCHAUDIO
    end_ids = (END_ID,)

    def __init__(
        self,
        ops: Ops,
        weights: Weights,
        checkpoint: Checkpoint,
        codec: FrameCodec,
        encoder: SegmentEncoder,
    ):
        """Bind weights that `load` prepared."""
        self._ops, self._weights, self._checkpoint = ops, weights, checkpoint
        self._config, self._encoder, self._codec = checkpoint.config, encoder, codec
        self.padded_encoders = {SEGMENT: encoder}
        self._blocks = Blocks(self._config.interleaved_n_text, self._config.interleaved_n_audio)
        self._head = ops.quantize(weights[backbone.EMBEDDING])
        text = Track("text", 1, self._config.lfm.vocab_size)
        silent = frozenset({END_OF_AUDIO})
        frames = Track("frames", self._config.codebooks, CODES, codec=codec, silent_ids=silent)
        self.tracks = (text, frames)

    @property
    def layers(self) -> tuple[CacheSpec, ...]:
        return self._config.lfm.layers

    @property
    def max_positions(self) -> int:
        return self._config.lfm.max_position_embeddings

    # -- what the engine runs ----------------------------------------------------------------
    def begin(self, request: Request) -> Progress:  # noqa: ARG002
        return _progress(first_turn(self._blocks))

    def following(
        self, request: Request, progress: Progress, drawn: Entry | None
    ) -> Progress | None:
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

    # -- what the API servers ask ------------------------------------------------------------
    @property
    def sample_rate(self) -> int:
        return self._codec.sample_rate

    @property
    def frame_samples(self) -> int:
        return self._codec.frame_samples

    @property
    def speakers(self) -> tuple[str, ...]:
        return self._checkpoint.speakers

    @property
    def follows_instructions(self) -> bool:
        """Whether a voice may be described in words; LFM2.5 lists its voices instead."""
        return not self._checkpoint.lists_voices

    def split_text(self, text: str) -> list[str]:
        """Return the text as one piece: the model reads all of it before it speaks."""
        return [text]

    def split_audio(self, samples: Samples) -> list[tuple[int, int]]:
        """Cut 16 kHz samples into pieces [start, stop) of at most 30 s, in silence."""
        return split_at_silence(
            samples, RATE_HZ, limit_s=_PIECE_S, search_s=_SEARCH_S, overrun=False
        )

    def prepare_conversation(self, request_id: str, model: str, ask: ConversationInput) -> Request:
        """Lay out the next answer of a conversation. Raises InvalidRequest and its kind."""
        return prepare.conversation_request(self._checkpoint, request_id, model, ask)

    def prepare_chat(self, request_id: str, model: str, ask: ChatInput) -> Request:
        """Lay out the next answer of a conversation in text. Raises InvalidRequest and its kind."""
        return prepare.chat_request(self._checkpoint, request_id, model, ask)

    def prepare_speech(self, request_id: str, model: str, ask: SpeechInput) -> Request:
        return prepare.speech_request(self._checkpoint, request_id, model, ask)

    def prepare_transcription(
        self, request_id: str, model: str, ask: TranscriptionInput
    ) -> Request:
        return prepare.transcription_request(self._checkpoint, request_id, model, ask)

    def open_answer(self, request: Request) -> TextReader:  # noqa: ARG002
        """Return a reader for the text of an answer."""
        return TextReader(self._checkpoint.tokenizer)

    def read(self, token_ids: Seq[int], language: str | None) -> Transcript:  # noqa: ARG002
        """Decode text tokens to a transcript."""
        return Transcript(_ENGLISH, self._checkpoint.tokenizer.decode(token_ids).strip())

    def spell(self, token_ids: Seq[int], language: str | None) -> list[bytes]:  # noqa: ARG002
        """Return the text bytes of each token; control tokens and leading white space have none."""
        spelled = [self._checkpoint.tokenizer.spell(index) for index in token_ids]
        for place, piece in enumerate(spelled):
            spelled[place] = piece.lstrip()
            if spelled[place]:
                break
        return spelled

    def spell_vocabulary(self) -> tuple[list[bytes], list[int]]:
        """Return the bytes of each id, and the ids of control tokens."""
        tokenizer, count = self._checkpoint.tokenizer, self.tracks[0].vocabulary
        return [tokenizer.spell(index) for index in range(count)], tokenizer.control_ids


def _progress(turn: Turn) -> Progress:
    assert turn.track is not None
    return Progress(turn.track, (turn.left, int(turn.text_done)))


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
