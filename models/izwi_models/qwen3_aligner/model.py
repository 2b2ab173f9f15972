"""Qwen3-ForcedAligner for the engine: one pass over audio and its text gives the times.

Nothing is generated after the prompt. The entries are drawn at its output positions, two for each
word: the classes of its start and its end. A prompt may therefore run in chunks, beside other
requests.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path

import numpy as np
import numpy.typing as npt

from izwi.arrays import Samples
from izwi.audio.mel import WHISPER_RATE, whisper_log_mel
from izwi.audio.split import split_at_silence
from izwi.errors import InvalidRequest, TooLarge
from izwi.inputs.speech import AlignmentInput
from izwi.model.alignment import AlignedWord
from izwi.model.capability import Capability
from izwi.model.protocol import Backend, Family
from izwi.model.step_batch import Row, Span
from izwi.model.tracks import Track
from izwi.ops import Array, Ops, Weights
from izwi.request.request import EncodeInput, Request
from izwi_models.qwen3.decoder import pack
from izwi_models.qwen3.token_model import TokenModel
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_aligner.config import AlignerConfig, is_aligner, read_config, tensor_shapes
from izwi_models.qwen3_aligner.prompt import AlignerPrompt, build_prompt
from izwi_models.qwen3_aligner.repair import in_order
from izwi_models.qwen3_aligner.words import split_words
from izwi_models.qwen3_asr.config import HEAD, TEXT_PREFIX
from izwi_models.qwen3_asr.embedding import ClipEncoder, WindowEncoder, embed, has_audio, token_ids
from izwi_models.qwen3_asr.encoder import pack_encoder
from izwi_models.qwen3_asr.prompt import CLIP, WINDOW, cut_windows
from izwi_models.qwen3_asr.samples import checked_samples
from izwi_models.qwen3_asr.text import LANGUAGES, language_name

# Length of pieces of audio that is transcribed and then aligned, as in the reference.
_PIECE_SECONDS, _SEARCH_SECONDS = 180.0, 5.0
# The reference's list of Korean stems, which is not part of the checkpoint; searched in its folder.
_KOREAN_STEMS = "korean_dict_jieba.dict"

_NAMES = tuple(LANGUAGES.values())


class Qwen3Aligner(TokenModel):
    """One checkpoint on one device. Implements `izwi.model.protocol.AlignmentModel`."""

    capabilities = (Capability.ALIGN,)

    def __init__(
        self,
        ops: Ops,
        weights: Weights,
        config: AlignerConfig,
        tokenizer: QwenTokenizer,
        korean_stems: frozenset[str] = frozenset(),
    ):
        times = Track("times", 1, config.thinker_config.classify_num, in_prompt=True)
        super().__init__(ops, weights, config.text, TEXT_PREFIX, weights[HEAD], times)
        self._config, self._tokenizer, self._korean_stems = config, tokenizer, korean_stems
        self._windows = WindowEncoder(ops, weights, config.audio)
        clips = ClipEncoder(ops, weights, config.audio)
        self.padded_encoders = {WINDOW: self._windows, CLIP: clips}

    # -- what the engine runs ----------------------------------------------------------------
    def encode(self, inputs: Seq[EncodeInput]) -> list[Array]:
        """Encode windows; those of equal length form one batch: (tokens, hidden) each, in order."""
        return self._windows.encode(inputs)

    def embed(self, rows: Seq[Row]) -> Array:
        """Return embeddings of the rows' positions, concatenated: tokens and encoded audio."""
        return embed(self._ops, self._weights, rows)

    def inputs(self, rows: Seq[Row]) -> npt.NDArray[np.int64] | None:
        """Return (positions, 1) token ids; None if some of the positions are audio."""
        return None if any(map(has_audio, rows)) else token_ids(rows)[:, None]

    def content_keys(self, span: Span) -> list[int]:
        """Return content keys of positions: token ids, or digests of audio."""
        keys: list[int] = _prompt(span.request).content_keys[span.start : span.stop].tolist()
        return keys

    # -- what the API servers ask ------------------------------------------------------------------
    @property
    def languages(self) -> tuple[str, ...]:
        """Names of the languages that the checkpoint was made for."""
        return self._config.support_languages or _NAMES

    def split_audio(self, samples: Samples) -> list[tuple[int, int]]:
        """Cut 16 kHz samples into pieces [start, stop) of about 3 minutes, in silence."""
        limit = min(_PIECE_SECONDS, self._config.limit_s)
        own = limit < _PIECE_SECONDS
        search = min(_SEARCH_SECONDS, limit / 8)
        return split_at_silence(
            samples, WHISPER_RATE, limit_s=limit, search_s=search, overrun=not own
        )

    def prepare_alignment(self, request_id: str, model: str, ask: AlignmentInput) -> Request:
        """Compute the features of the audio and put them before the words of its text.

        Raises:
            InvalidAudio: There are fewer than 201 samples, or they are not finite.
            InvalidRequest: The language is not supported, or the text has no word.
            TooLarge: The audio or the text is too long.
        """
        language = language_name(ask.language, self.languages)
        words = split_words(ask.text, language, self._korean_stems)
        if not words:
            raise InvalidRequest("there is no word in the text", param="text")
        samples = checked_samples(ask.samples, self._config.limit_s)
        windows = cut_windows(self._config.audio, whisper_log_mel(samples))
        prompt = build_prompt(self._tokenizer, self._config, windows, words)
        if prompt.num_positions > self.max_positions:
            raise TooLarge(
                f"audio and text take {prompt.num_positions} positions; the model has "
                f"{self.max_positions}: shorten the text",
                param="text",
            )
        return Request(
            request_id,
            model,
            prompt,
            max_entries=len(prompt.output_positions),
            output_positions=prompt.output_positions,
            ask=ask,
        )

    def read_alignment(self, request: Request, classes: Seq[int]) -> list[AlignedWord]:
        """Return the times of each word.

        Args:
            request: Request from `prepare_alignment`.
            classes: The classes drawn at all its output positions.
        """
        step_ms = self._config.timestamp_segment_time
        times_s = [round(ms / 1000.0, 3) for ms in in_order([n * step_ms for n in classes])]
        words = _prompt(request).words
        return [
            AlignedWord(word.text, start_s, end_s, word.start, word.stop)
            for word, start_s, end_s in zip(words, times_s[::2], times_s[1::2], strict=True)
        ]


def load(folder: Path, backend: Backend) -> Qwen3Aligner:
    """Read a checkpoint in the published layout.

    Raises:
        CheckpointError: A file, key or tensor is missing or wrong; the message names it.
    """
    config = read_config(folder)
    weights = backend.load_weights(folder, tensor_shapes(config))
    weights = pack_encoder(backend.ops, weights, config.audio)
    weights = pack(backend.ops, weights, config.text.decoder, TEXT_PREFIX)
    return Qwen3Aligner(backend.ops, weights, config, QwenTokenizer(folder), _korean_stems(folder))


FAMILY = Family("qwen3_asr", load, fits=is_aligner, prompts=(AlignerPrompt,))


def _prompt(request: Request) -> AlignerPrompt:
    assert isinstance(request.prompt, AlignerPrompt)
    return request.prompt


def _korean_stems(folder: Path) -> frozenset[str]:
    """First words of the lines of the list, if it is there."""
    path = folder / _KOREAN_STEMS
    if not path.is_file():
        return frozenset()
    lines = path.read_text(encoding="utf-8").splitlines()
    return frozenset(words[0] for line in lines if (words := line.split()))
