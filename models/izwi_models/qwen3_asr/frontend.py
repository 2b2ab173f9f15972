"""Qwen3-ASR for API servers: audio to requests, whole or while it arrives, and tokens to text."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from itertools import accumulate
from pathlib import Path

from izwi.arrays import Samples
from izwi.audio.mel import WHISPER_RATE, whisper_log_mel
from izwi.audio.split import split_at_silence
from izwi.errors import InvalidRequest, TooLarge
from izwi.inputs.speech import Transcript, TranscriptionInput
from izwi.model.capability import Capability
from izwi.request.request import Request, SamplingParams
from izwi_models.qwen3.stop_ids import read_stop_ids
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_asr.config import AsrConfig, read_config
from izwi_models.qwen3_asr.prompt import AsrPrompt, TaggedTokens, build_prompt, cut_windows
from izwi_models.qwen3_asr.samples import checked_samples
from izwi_models.qwen3_asr.streaming import AsrStream, StreamStep, stream_rules
from izwi_models.qwen3_asr.text import (
    LANGUAGES,
    TEXT_TAG,
    language_name,
    parse_answer,
    text_start,
)

_MAX_SECONDS = 1200.0  # longest piece that the reference accepts
_PIECE_SECONDS = 30.0  # piece length for longer files (docs/adr/0017-pieces-of-files.md)
_SEARCH_SECONDS = 5.0  # maximum distance of a cut from the piece length
# Limits that end a stuck decoder. Speech has fewer than 12 tokens a second. The reference's server
# allows 4,096 tokens; its offline default of 512 would cut a lecture after two minutes, so it is
# used for short clips only. Checkpoints with `max_audio_seconds` need fewer.
_MAX_TOKENS, _SHORT_TOKENS, _SPARE_TOKENS, _TOKENS_PER_SECOND = 4096, 512, 32, 12

_NAMES = tuple(LANGUAGES.values())
_CODES = {name: code for code, name in LANGUAGES.items()}


class Qwen3ASRFrontend:
    """The frontend of one checkpoint. Implements `izwi.model.frontend.TranscriptionFrontend`."""

    capabilities = (Capability.TRANSCRIBE,)

    def __init__(self, config: AsrConfig, tokenizer: QwenTokenizer, stop_ids: tuple[int, ...]):
        self._config, self._tokenizer, self._stop_ids = config, tokenizer, stop_ids

    @property
    def max_positions(self) -> int:
        return self._config.text.max_position_embeddings

    @property
    def languages(self) -> tuple[str, ...]:
        """Names of the languages that the checkpoint supports."""
        return self._config.support_languages or _NAMES

    @property
    def language_codes(self) -> Mapping[str, str]:
        """ISO 639 codes by name."""
        return _CODES

    @property
    def follows_context(self) -> bool:
        """Whether the checkpoint was trained with text before the audio."""
        return self._config.follows_context

    def split_audio(self, samples: Samples) -> list[tuple[int, int]]:
        """Cut 16 kHz samples into pieces [start, stop) of about 30 s, in silence.

        For a checkpoint that sets `max_audio_seconds`, pieces are at most that long. The published
        ones accept 20 minutes at once; for them, audio is cut within 5 s of every 30 s, so that the
        pieces of a file run as a batch.
        """
        own = self._config.max_audio_seconds
        limit = _PIECE_SECONDS if own is None else own
        search = min(_SEARCH_SECONDS, limit / 8)
        return split_at_silence(
            samples, WHISPER_RATE, limit_s=limit, search_s=search, overrun=own is None
        )

    def prepare_transcription(
        self, request_id: str, model: str, ask: TranscriptionInput
    ) -> Request:
        """Compute the features of one piece and put them into the prompt.

        Raises:
            InvalidAudio: There are fewer than 201 samples, or they are not finite.
            InvalidRequest: The language is not supported, or a number is out of range.
            TooLarge: The piece is too long; `split_audio` cuts it.
        """
        limit = self._config.max_audio_seconds
        limit_s = _MAX_SECONDS + _SEARCH_SECONDS if limit is None else limit
        samples = checked_samples(ask.samples, limit_s)
        language = language_name(ask.language, self.languages)
        if not 0.0 <= ask.temperature < float("inf"):
            raise InvalidRequest("temperature must not be negative", param="temperature")
        max_entries = ask.max_new_tokens
        if max_entries is None:
            max_entries = self._token_limit(len(samples) / WHISPER_RATE)
        if max_entries < 1:
            raise InvalidRequest("max_new_tokens must be at least 1", param="max_new_tokens")
        prompt = build_prompt(
            self._tokenizer,
            self._config.thinker_config,
            cut_windows(self._config.audio, whisper_log_mel(samples)),
            context=self._context(ask.context),
            language=language,
        )
        self._check_room(prompt, max_entries)
        return Request(
            request_id,
            model,
            prompt,
            sampling=SamplingParams(temperature=ask.temperature),
            seed=ask.seed,
            max_entries=max_entries,
            stop_ids=self._stop_ids,
            logprobs=ask.logprobs,
            ask=ask,
        )

    def open_stream(
        self, *, language: str | None = None, context: str = "", chunk_s: float | None = None
    ) -> AsrStream:
        """Start a transcription of audio that is still arriving.

        Args:
            language: Name or code of the language; None detects it.
            context: Text that precedes the audio, or has words that are likely in it.
            chunk_s: Seconds of audio between two decodings; None for 2 s.

        Raises:
            InvalidRequest: The language is not supported, or the chunk is not within 0.2 s and
                the longest segment.
        """
        name = language_name(language, self.languages)
        rules = stream_rules(self._config, chunk_s)
        tokens, kept = TaggedTokens(self._tokenizer), self._context(context)
        return AsrStream(tokens, self._config.audio, rules, language=name, context=kept)

    def prepare_stream_step(
        self, request_id: str, model: str, stream: AsrStream, step: StreamStep
    ) -> Request:
        """Build the request of one streaming step; greedy, like the reference.

        Raises:
            TooLarge: The stream's context is too long.
        """
        prompt = build_prompt(
            self._tokenizer,
            self._config.thinker_config,
            step.windows,
            context=stream.context,
            language=stream.language,
            prefix=step.prefix,
        )
        if step.is_final and not step.prefix:
            max_entries = self._token_limit(step.seconds)
        else:  # the prefix is in the prompt; only tokens after it are generated again
            guard = _SPARE_TOKENS + step.num_again + int(_TOKENS_PER_SECOND * step.new_s)
            max_entries = min(_MAX_TOKENS, guard)
        self._check_room(prompt, max_entries)
        return Request(request_id, model, prompt, max_entries=max_entries, stop_ids=self._stop_ids)

    def read(self, token_ids: Seq[int], language: str | None) -> Transcript:
        """Parse the emitted ids; `language` is the forced one, a name or a code."""
        raw = self._tokenizer.decode(token_ids, keep=(TEXT_TAG,))
        return parse_answer(raw, language_name(language, _NAMES))

    def spell(self, token_ids: Seq[int], language: str | None) -> list[bytes]:
        """Return the text bytes of each token; the language tag and special tokens have none."""
        pieces = [self._tokenizer.spell(index, keep=(TEXT_TAG,)) for index in token_ids]
        start = text_start(b"".join(pieces), is_forced=bool(language_name(language, _NAMES)))
        ends = accumulate(map(len, pieces))
        return [
            piece[max(0, len(piece) - max(0, end - start)) :]
            for piece, end in zip(pieces, ends, strict=True)
        ]

    def _context(self, text: str) -> str:
        """Return the text that precedes the audio; none if the checkpoint cannot follow it."""
        return text if self._config.follows_context else ""

    def _token_limit(self, seconds: float) -> int:
        """Return the token limit for this much audio; more tokens mean a stuck decoder."""
        guard = _SPARE_TOKENS + int(_TOKENS_PER_SECOND * seconds)
        least = _SHORT_TOKENS if self._config.max_audio_seconds is None else 0
        return min(_MAX_TOKENS, max(least, guard))

    def _check_room(self, prompt: AsrPrompt, max_entries: int) -> None:
        room = self.max_positions - prompt.num_positions
        if room < max_entries:
            raise TooLarge(
                f"the prompt takes {prompt.num_positions} positions and leaves {max(room, 0)} of "
                f"the {max_entries} asked for: shorten the context",
                param="prompt",
            )


def load_frontend(folder: Path) -> Qwen3ASRFrontend:
    """Read configuration and tokenizer.

    Raises:
        CheckpointError: A file or key is missing or wrong; it is named.
    """
    config = read_config(folder)
    stop_ids = read_stop_ids(folder, config.text.vocab_size)
    return Qwen3ASRFrontend(config, QwenTokenizer(folder), stop_ids)
