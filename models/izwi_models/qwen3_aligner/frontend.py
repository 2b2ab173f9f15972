"""Qwen3-ForcedAligner for API servers: audio and its text to requests, and classes to times."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path

from izwi.arrays import Samples
from izwi.audio.mel import WHISPER_RATE, whisper_log_mel
from izwi.audio.split import split_at_silence
from izwi.errors import InvalidRequest, TooLarge
from izwi.inputs.speech import AlignmentInput
from izwi.model.alignment import AlignedWord
from izwi.model.capability import Capability
from izwi.request.request import Request
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_aligner.config import AlignerConfig, read_config
from izwi_models.qwen3_aligner.prompt import build_prompt, prompt_of
from izwi_models.qwen3_aligner.repair import in_order
from izwi_models.qwen3_aligner.words import split_words
from izwi_models.qwen3_asr.prompt import cut_windows
from izwi_models.qwen3_asr.samples import checked_samples
from izwi_models.qwen3_asr.text import LANGUAGES, language_name

# Length of pieces of audio that is transcribed and then aligned, as in the reference.
_PIECE_SECONDS, _SEARCH_SECONDS = 180.0, 5.0
# The reference's list of Korean stems, which is not part of the checkpoint; searched in its folder.
_KOREAN_STEMS = "korean_dict_jieba.dict"

_NAMES = tuple(LANGUAGES.values())


class Qwen3AlignerFrontend:
    """The frontend of one checkpoint. Implements `izwi.model.alignment.AlignmentFrontend`."""

    capabilities = (Capability.ALIGN,)

    def __init__(
        self,
        config: AlignerConfig,
        tokenizer: QwenTokenizer,
        korean_stems: frozenset[str] = frozenset(),
    ):
        self._config, self._tokenizer, self._korean_stems = config, tokenizer, korean_stems

    @property
    def max_positions(self) -> int:
        return self._config.text.max_position_embeddings

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
        words = prompt_of(request).words
        return [
            AlignedWord(word.text, start_s, end_s, word.start, word.stop)
            for word, start_s, end_s in zip(words, times_s[::2], times_s[1::2], strict=True)
        ]


def load_frontend(folder: Path) -> Qwen3AlignerFrontend:
    """Read configuration, tokenizer and the list of Korean stems, if it is there.

    Raises:
        CheckpointError: A file or key is missing or wrong; the message names it.
    """
    return Qwen3AlignerFrontend(read_config(folder), QwenTokenizer(folder), _korean_stems(folder))


def _korean_stems(folder: Path) -> frozenset[str]:
    """First words of the lines of the list, if it is there."""
    path = folder / _KOREAN_STEMS
    if not path.is_file():
        return frozenset()
    lines = path.read_text(encoding="utf-8").splitlines()
    return frozenset(words[0] for line in lines if (words := line.split()))
