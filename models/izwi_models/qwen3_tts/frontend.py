"""Qwen3-TTS for API servers: text and voices to requests, and encoded clips to voices."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from izwi.errors import InvalidRequest
from izwi.inputs.speech import SpeechInput, VoicePrompt
from izwi.model.capability import Capability
from izwi.model.frontend import AudioEntries
from izwi.request.request import Request
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_tts import prepare
from izwi_models.qwen3_tts.config import read_codec_config, read_config, read_generation_config
from izwi_models.qwen3_tts.pieces import sentences, split_text
from izwi_models.qwen3_tts.prepare import Checkpoint, SpeechText, follows_instructions
from izwi_models.qwen3_tts.text_stream import TextStream


class Qwen3TTSFrontend:
    """The frontend of one checkpoint. Implements `izwi.model.frontend.SpeechFrontend`."""

    capabilities = (Capability.SPEAK,)

    def __init__(self, checkpoint: Checkpoint):
        self._checkpoint, self._config = checkpoint, checkpoint.config

    @property
    def max_positions(self) -> int:
        return self._config.talker_config.max_position_embeddings

    @property
    def sample_rate(self) -> int:
        """Sample rate of the audio in Hz."""
        return self._checkpoint.output_rate

    audio_entries = AudioEntries()

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


def load_frontend(folder: Path) -> Qwen3TTSFrontend:
    """Read configuration and tokenizer.

    Raises:
        CheckpointError: Something is missing or does not match; the message names the file or key.
    """
    config = read_config(folder)
    codec_config = read_codec_config(folder, config)
    checkpoint = Checkpoint(
        config=config,
        generation=read_generation_config(folder),
        text=SpeechText(QwenTokenizer(folder)),
        sample_rate=codec_config.input_sample_rate,
        frame_samples=codec_config.encode_downsample_rate,
        output_rate=codec_config.output_sample_rate,
    )
    return Qwen3TTSFrontend(checkpoint)
