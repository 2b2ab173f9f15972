"""LFM2-Audio for API servers: conversations, text and audio to requests, and tokens to text."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from functools import partial
from pathlib import Path

from izwi.arrays import Samples
from izwi.audio.resample import Resampling
from izwi.audio.split import split_at_silence
from izwi.errors import CheckpointError
from izwi.inputs.chat import ChatInput
from izwi.inputs.conversation import ConversationInput
from izwi.inputs.speech import SpeechInput, Transcript, TranscriptionInput
from izwi.model.capability import Capability
from izwi.model.frontend import AudioEntries
from izwi.request.request import Request
from izwi_models.lfm2_audio import prepare
from izwi_models.lfm2_audio.audio_config import (
    FRAME_SAMPLES,
    SAMPLE_RATE,
    encoder_config,
    preprocessor_config,
)
from izwi_models.lfm2_audio.audio_parts import RATE_HZ, audio_part
from izwi_models.lfm2_audio.config import DETOKENIZER_FOLDER, END_OF_AUDIO, read_config
from izwi_models.lfm2_audio.pattern import TrackIndex
from izwi_models.lfm2_audio.prepare import Checkpoint
from izwi_models.lfm2_audio.tokenizer import LFM2Tokenizer, TextReader

# Longer audio is transcribed in pieces of this length; a cut is searched this far before its end.
_PIECE_S, _SEARCH_S = 30.0, 5.0
_ENGLISH = "English"


class LFM2AudioFrontend:
    """The frontend of one checkpoint.

    Implements `ConversationFrontend`, `SpeechFrontend`, `TranscriptionFrontend` and `ChatFrontend`
    of `izwi.model.frontend`.
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
    sample_rate = SAMPLE_RATE
    frame_samples = FRAME_SAMPLES
    audio_entries = AudioEntries(TrackIndex.FRAMES, frozenset({END_OF_AUDIO}))

    def __init__(self, checkpoint: Checkpoint):
        self._checkpoint = checkpoint

    @property
    def max_positions(self) -> int:
        return self._checkpoint.config.lfm.max_position_embeddings

    @property
    def speakers(self) -> tuple[str, ...]:
        return self._checkpoint.speakers

    @property
    def follows_instructions(self) -> bool:
        """Whether a voice may be described in words; LFM2.5 lists its voices instead."""
        return not self._checkpoint.lists_voices

    @property
    def follows_context(self) -> bool:
        """False: its prompt for transcripts has no place for text."""
        return False

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


def load_frontend(folder: Path) -> LFM2AudioFrontend:
    """Read configuration and tokenizer.

    Raises:
        CheckpointError: Something is missing or does not match; the message names the file or key.
    """
    config, where = read_config(folder), str(folder / "config.json")
    encoder = encoder_config(config.encoder, f"{where}.encoder")
    preprocessor = preprocessor_config(config.preprocessor, f"{where}.preprocessor")
    tokenizer = LFM2Tokenizer(folder)
    if tokenizer.vocab_size > config.lfm.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} ids, the model "
            f"{config.lfm.vocab_size}"
        )
    prepare_audio = partial(audio_part, preprocessor, encoder)
    is_newer = (folder / DETOKENIZER_FOLDER).is_dir()
    return LFM2AudioFrontend(Checkpoint(config, tokenizer, is_newer, prepare_audio))
