"""Qwen3-TTS for API servers: text and voices to requests, and encoded clips to voices.

All validation is here. Parameter names in errors are those of the HTTP body.

A text may be complete, or still be written (`TextStream`):

    text ─▶ (plain English) ─▶ pieces ─▶ settled ids ─▶ requests, and ids to append

Requests and ids depend only on the text, not on how it arrives: the pieces of a text that is
written are those of `Qwen3TTSFrontend.split_text`, and their joined ids those of `prepare_speech`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from izwi.audio.mel import speaker_log_mel
from izwi.errors import InvalidAudio, InvalidRequest, TooLarge, VoiceNotFound
from izwi.inputs.speech import ReferenceClip, SpeechInput, TextMode, VoicePrompt
from izwi.model.capability import Capability
from izwi.model.frontend import AudioEntries
from izwi.request.input_stream import TextPart
from izwi.request.request import EncodeInput, Request, SamplingParams
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_tts import prompt as prompts
from izwi_models.qwen3_tts.config import (
    GenerationConfig,
    TTSConfig,
    read_codec_config,
    read_config,
    read_generation_config,
)
from izwi_models.qwen3_tts.pieces import Cutter, Part, SpokenStream, sentences, split_text
from izwi_models.qwen3_tts.prompt import ROLE_IDS, Conditioning, OpenTurn, Reference, SpeechText

# Length of a reference clip in seconds: less has too little of the voice, more does not improve it.
MIN_CLIP_S, MAX_CLIP_S = 0.5, 120.0
# The first two tokens cannot be the end, as in the reference package.
MIN_FRAMES = 2
# Silence after which a clip counts as empty: 60 dB below full scale.
_SILENCE = 1e-3

_LANGUAGE_CODES = {
    "zh": "chinese",
    "en": "english",
    "de": "german",
    "it": "italian",
    "pt": "portuguese",
    "es": "spanish",
    "ja": "japanese",
    "ko": "korean",
    "fr": "french",
    "ru": "russian",
}


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
        return _follows_instructions(self._config)

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
        """Check and tokenise one utterance, or lay out one anew whose text is still to be written.

        Raises:
            InvalidRequest: The text is empty, or `turn_ids` are no turn's; else see `condition`.
            TooLarge: The text or the clip does not fit.
        """
        checkpoint = self._checkpoint
        if ask.turn_ids:
            conditioning = condition(checkpoint, ask)
            known = range(self._config.talker_config.text_vocab_size)
            num_text = len(ask.turn_ids) - ROLE_IDS
            if num_text < conditioning.first_ids or not set(ask.turn_ids) <= set(known):
                raise InvalidRequest("turn_ids do not begin a turn of this model", param="input")
            ask = structs.replace(ask, text="")
            return lay_out(checkpoint, conditioning, request_id, model, ask, ask.turn_ids)
        if not ask.text.strip():
            raise InvalidRequest("the text is empty", param="input")
        role, text = checkpoint.text.role_and_text(ask.text)
        conditioning = condition(checkpoint, ask)
        return lay_out(checkpoint, conditioning, request_id, model, ask, [*role, *text])

    def text_stream(self, request_id: str, model: str, ask: SpeechInput) -> TextStream:
        """Open a stream for text that is still being written; see `TextStream`."""
        return TextStream(self._checkpoint, request_id, model, ask)

    def prepare_voice(
        self, request_id: str, model: str, samples: npt.NDArray[np.float32], text: str | None
    ) -> Request:
        """Make a request that only encodes a clip: its speaker, and its codes if its text is known.

        Raises:
            InvalidRequest: The checkpoint cannot clone.
            InvalidAudio: The clip cannot be used.
            TooLarge: The clip is too long.
        """
        text = None if self._config.clones_by_vector else text
        inputs = _encode_inputs(self._checkpoint, ReferenceClip(samples, text))
        return Request(request_id, model, prompts.encode_only(inputs), encode_only=True)

    def read_voice(self, encoded: Seq[npt.NDArray[Any]], text: str | None) -> VoicePrompt:
        """Convert the result of `prepare_voice`'s request to a voice."""
        codes = encoded[1].astype(np.int64) if len(encoded) > 1 else None
        vector = encoded[0].astype(np.float32)
        return VoicePrompt(vector, codes, text if codes is not None else None)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Configuration and tokenizer of a checkpoint, for API servers.

    Attributes:
        config: config.json.
        generation: generation_config.json.
        text: Tokenizer and template.
        sample_rate: Sample rate of a reference clip, Hz.
        frame_samples: Samples of a clip in one frame.
        output_rate: Sample rate of the audio that is spoken, Hz.
    """

    config: TTSConfig
    generation: GenerationConfig
    text: SpeechText
    sample_rate: int
    frame_samples: int
    output_rate: int


def condition(checkpoint: Checkpoint, ask: SpeechInput) -> Conditioning:
    """Check everything but the text.

    Raises:
        InvalidRequest: An option is not supported; `param` names it.
        VoiceNotFound: The checkpoint has no such speaker.
        InvalidAudio: The reference clip cannot be used.
        TooLarge: The clip does not fit.
    """
    config = checkpoint.config
    voice = _resolve_voice(checkpoint, ask.voice)
    cloned = voice.speaker == prompts.SPEAKER
    conditioning = replace(
        voice,
        instruct=checkpoint.text.instruct(_instruct(config, ask.instruct)),
        language=_language(config, ask.language, voice.language),
        mode=ask.text_mode or (TextMode.STREAMING if cloned else TextMode.FULL),
    )
    _check_sampling(ask)
    return conditioning


def lay_out(
    checkpoint: Checkpoint,
    conditioning: Conditioning,
    request_id: str,
    model: str,
    ask: SpeechInput,
    turn: Seq[int],
) -> Request:
    """Lay out one piece.

    Args:
        checkpoint: The checkpoint that speaks.
        conditioning: See `condition`.
        request_id: Of the request.
        model: Name under which the model is served.
        ask: The input. With `turn_ids` its text is still being written; the limit on frames is then
            the largest one, and `SpeechPrompt.limits_frames` says whether the complete text lowers
            it.
        turn: Ids of the turn: three that open it, then those of the text or of its beginning.

    Raises:
        TooLarge: The prompt does not fit.
    """
    config, is_open = checkpoint.config, bool(ask.turn_ids)
    role, text = turn[:ROLE_IDS], turn[ROLE_IDS:]
    prompt = prompts.assemble(config, conditioning, role, text, is_open=is_open)
    if is_open:
        prompt = structs.replace(prompt, limits_frames=ask.max_new_tokens is None)
    sampling, codebook_sampling = _sampling(checkpoint.generation, ask)
    num_text = None if is_open else len(text)
    return Request(
        request_id=request_id,
        model=model,
        prompt=prompt,
        sampling=sampling,
        codebook_sampling=codebook_sampling,
        seed=ask.seed,
        max_entries=max_frames(checkpoint, ask, num_text, prompt.num_positions),
        min_entries=MIN_FRAMES,
        stop_ids=(config.talker_config.codec_eos_token_id,),
        open_input=is_open,
        gain=conditioning.gain,
        ask=ask,
    )


def _resolve_voice(
    checkpoint: Checkpoint, voice: str | VoicePrompt | ReferenceClip | None
) -> Conditioning:
    """Return what a voice conditions: its place in the prompt, and where its vectors come from.

    The language is that of a speaker with a dialect.
    """
    talker = checkpoint.config.talker_config
    by_vector = checkpoint.config.clones_by_vector
    if isinstance(voice, ReferenceClip):
        return _clip_voice(checkpoint, structs.replace(voice, text=None) if by_vector else voice)
    if isinstance(voice, VoicePrompt):
        kept = VoicePrompt(voice.speaker_embedding) if by_vector else voice
        return _encoded_voice(checkpoint, kept)
    if voice is None:
        if not talker.spk_id:
            return Conditioning()
        voice = next(iter(talker.spk_id))  # the checkpoint's first speaker is its default
    name = {speaker.lower(): speaker for speaker in talker.spk_id}.get(voice.lower())
    if name is None:
        known = ", ".join(talker.spk_id) or "none; clone one"
        raise VoiceNotFound(f"no voice {voice!r}; the model has: {known}", param="voice")
    dialect = talker.spk_is_dialect.get(name)
    return Conditioning(
        speaker=talker.spk_id[name],
        language=talker.codec_language_id[dialect] if dialect else None,
        gain=10 ** (checkpoint.config.spk_gain_db.get(name, 0.0) / 20),
    )


def _clip_voice(checkpoint: Checkpoint, clip: ReferenceClip) -> Conditioning:
    inputs = _encode_inputs(checkpoint, clip)
    frames = math.ceil(len(clip.samples) / checkpoint.frame_samples)
    return Conditioning(
        speaker=prompts.SPEAKER,
        reference=_reference(checkpoint, clip.text, frames),
        encode_inputs=inputs,
    )


def _encoded_voice(checkpoint: Checkpoint, voice: VoicePrompt) -> Conditioning:
    config = checkpoint.config
    _check_can_clone(config)
    talker, codes = config.talker_config, voice.codes
    vector = voice.speaker_embedding
    if vector.shape != (talker.hidden_size,) or not np.isfinite(vector).all():
        raise InvalidRequest(
            f"the voice was made for another model: its embedding is {vector.shape}, "
            f"expected ({talker.hidden_size},) finite numbers",
            param="voice",
        )
    frames = 0
    if codes is not None:
        groups, size = talker.num_code_groups, talker.code_predictor_config.vocab_size
        fits = codes.ndim == 2 and codes.shape[1] == groups and len(codes) > 0
        if not fits or codes.min() < 0 or codes.max() >= size:
            raise InvalidRequest(
                f"the voice was made for another model: its codes are not (frames, {groups}) "
                f"numbers below {size}",
                param="voice",
            )
        if not _said(voice.text):
            raise InvalidRequest("a voice with codes needs the text of its clip", param="ref_text")
        frames = len(codes)
    text = voice.text if frames else None
    reference = _reference(checkpoint, text, frames)
    return Conditioning(speaker=prompts.SPEAKER, reference=reference, voice=voice)


def _encode_inputs(checkpoint: Checkpoint, clip: ReferenceClip) -> tuple[EncodeInput, ...]:
    _check_can_clone(checkpoint.config)
    samples, rate = clip.samples, checkpoint.sample_rate
    if samples.ndim != 1 or len(samples) < MIN_CLIP_S * rate:
        raise InvalidAudio(f"the clip is shorter than {MIN_CLIP_S} s", param="ref_audio")
    if len(samples) > MAX_CLIP_S * rate:
        raise TooLarge(f"the clip is longer than {MAX_CLIP_S:.0f} s", param="ref_audio")
    if not np.isfinite(samples).all():
        raise InvalidAudio("the clip has samples that are not finite", param="ref_audio")
    if np.abs(samples).max() < _SILENCE:
        raise InvalidAudio("the clip is silent", param="ref_audio")
    speaker = EncodeInput(prompts.ENCODE_SPEAKER, speaker_log_mel(samples))
    if not _said(clip.text):
        return (speaker,)
    return (speaker, EncodeInput(prompts.ENCODE_CODES, samples))


def _check_can_clone(config: TTSConfig) -> None:
    if config.speaker_encoder_config is None:
        raise InvalidRequest("this model cannot clone voices", param="voice")


def _said(text: str | None) -> bool:
    return text is not None and bool(text.strip())


def _reference(checkpoint: Checkpoint, text: str | None, frames: int) -> Reference | None:
    if text is None or not text.strip():
        return None
    return Reference(checkpoint.text.reference(text), frames)


def _instruct(config: TTSConfig, instruct: str | None) -> str:
    """Return the instruction, or nothing for models that were not trained on instructions.

    OpenAI's tts-1 ignores them, too, as does the reference package with the small CustomVoice.
    """
    return (instruct or "") if _follows_instructions(config) else ""


def _language(config: TTSConfig, language: str | None, dialect: int | None) -> int | None:
    """Return the codec id of a language; for "chinese" and "auto", a dialect speaker's dialect."""
    known = config.talker_config.codec_language_id
    name = (language or "auto").lower()
    name = _LANGUAGE_CODES.get(name, name)
    if name != "auto" and name not in known:
        listed = ", ".join(["auto", *known])
        raise InvalidRequest(f"no language {language!r}; the model has: {listed}", param="language")
    if dialect is not None and name in ("auto", "chinese"):
        return dialect
    return known.get(name)


def _sampling(
    generation: GenerationConfig, ask: SpeechInput
) -> tuple[SamplingParams, SamplingParams]:
    """Return the sampling of codebook 0 and of the others. A temperature of 0 is greedy in both."""
    temperature = generation.temperature if generation.do_sample else 0.0
    others = generation.subtalker_temperature if generation.subtalker_dosample else 0.0
    if ask.temperature is not None:
        temperature = ask.temperature
        others = others if temperature > 0 else 0.0
    return (
        SamplingParams(
            temperature=temperature,
            top_k=generation.top_k if ask.top_k is None else ask.top_k,
            top_p=generation.top_p if ask.top_p is None else ask.top_p,
            repetition_penalty=generation.repetition_penalty,
        ),
        SamplingParams(others, generation.subtalker_top_k, generation.subtalker_top_p),
    )


def _check_sampling(ask: SpeechInput) -> None:
    if ask.temperature is not None and not (0.0 <= ask.temperature < math.inf):
        raise InvalidRequest("temperature must be 0 or more", param="temperature")
    if ask.top_k is not None and ask.top_k < 0:
        raise InvalidRequest("top_k must be 0 (all) or more", param="top_k")
    if ask.top_p is not None and not (0.0 < ask.top_p <= 1.0):
        raise InvalidRequest("top_p must be above 0 and at most 1", param="top_p")
    if ask.max_new_tokens is not None and ask.max_new_tokens < 2:
        raise InvalidRequest(
            "max_new_tokens must be at least 2: the last token gives no frame",
            param="max_new_tokens",
        )


def max_frames(
    checkpoint: Checkpoint, ask: SpeechInput, text_tokens: int | None, prompt_positions: int
) -> int:
    """Return the limit on frames of a request: one fewer than tokens, as in the reference.

    Args:
        checkpoint: The checkpoint that speaks.
        ask: The input, with the caller's own limit if any.
        text_tokens: Number of text ids; None while the text is being written.
        prompt_positions: Positions that the prompt takes.

    Raises:
        TooLarge: The prompt leaves no room for speech.
    """
    config = checkpoint.config
    frames = checkpoint.generation.max_new_tokens - 1
    if ask.max_new_tokens is not None:
        frames = ask.max_new_tokens - 1
    elif text_tokens is not None:
        frames = min(frames, config.most_frames(text_tokens))
    room = config.talker_config.max_position_embeddings - prompt_positions
    if room < MIN_FRAMES:
        raise TooLarge(
            f"text, instructions and clip take {prompt_positions} positions of "
            f"{config.talker_config.max_position_embeddings}",
            param="input",
        )
    return max(1, min(frames, room))


def _follows_instructions(config: TTSConfig) -> bool:
    """Whether a checkpoint was trained on instructions."""
    small = config.tts_model_type == "custom_voice" and config.tts_model_size == "0b6"
    return not small and config.tts_model_type != "base"


class TextStream:
    """The pieces of one speech request while its text is written.

    With `TextMode.FULL` a piece begins when its text is complete; otherwise as soon as it has
    enough ids for its prompt: one, or enough to cover the clip that it continues (`first_ids`).
    """

    def __init__(self, checkpoint: Checkpoint, request_id: str, model: str, ask: SpeechInput):
        """Check the request, except for its text.

        Args:
            checkpoint: The checkpoint.
            request_id: The request of piece n gets the id `request_id`-n.
            model: Name under which the checkpoint is served.
            ask: The request; its text is ignored.

        Raises:
            InvalidRequest: See `condition`.
        """
        mode = ask.text_mode or TextMode.STREAMING
        self._checkpoint = checkpoint
        self._ask = structs.replace(ask, text="", text_mode=mode)
        self._conditioning = condition(checkpoint, self._ask)
        self._name, self._model = request_id, model
        self._spoken = SpokenStream() if checkpoint.config.plain_english else None
        self._cutter = Cutter(checkpoint.config.max_text_characters)
        # plain English with a length limit arrives word by word, separated by one space
        self._word_ends = checkpoint.config.plain_english and self._cutter.limit is not None
        self._half = ""  # a first surrogate, because clients may cut text between UTF-16 units
        self._piece = 0
        self._turn: OpenTurn | None = None
        self._begun = False  # the request of the current piece was returned
        self._first: list[int] = []  # ids of the piece until then
        self._said: list[str] = []

    def write(self, text: str) -> list[TextPart]:
        """Add text; return the requests and ids that are now settled.

        Raises:
            TooLarge: The clip leaves no room for speech.
        """
        text, self._half = _whole_characters(self._half + text)
        parts = self._spoken.write(text) if self._spoken else [Part(text)]
        return self._pieces(parts)

    def close(self) -> list[TextPart]:
        """Return the rest at the end of the text.

        Raises:
            InvalidRequest: The whole text contains nothing that can be spoken.
        """
        parts = self._spoken.close() if self._spoken else []
        made = self._pieces([*parts, Part("", ends=True)])
        if self._piece == 0:
            raise InvalidRequest("the text contains nothing that can be spoken", param="input")
        return made

    def _pieces(self, sentences: Iterable[Part]) -> list[TextPart]:
        """Cut sentences, or a whole text, into pieces, and these into ids."""
        made: list[TextPart] = []
        for sentence in sentences:
            cut = self._cutter.write(sentence.text)
            if sentence.ends:
                cut += self._cutter.close()
            for part in cut:
                self._add(made, part)
        return made

    def _add(self, made: list[TextPart], part: Part) -> None:
        turn = self._turn = self._turn or self._checkpoint.text.open_turn()
        ids = turn.write(part.text, word_ends=self._word_ends)
        if part.ends:
            ids += turn.close()
        name, request = f"{self._name}-{self._piece}", None
        if not self._begun:
            self._first += ids
            self._said.append(part.text)
            request, ids = self._start_request(name, turn, part.ends)
        if self._begun and (request or ids or part.ends):
            if made and made[-1].piece == self._piece:
                before = made.pop()
                request, ids = before.request, [*before.ids, *ids]
            is_whole = request is not None and not request.open_input
            size = sum(map(len, self._said)) if is_whole else 0
            made.append(TextPart(self._piece, name, request, tuple(ids), part.ends, size))
        if part.ends:
            self._piece += 1
            self._turn, self._begun, self._first, self._said = None, False, [], []

    def _start_request(
        self, name: str, turn: OpenTurn, complete: bool
    ) -> tuple[Request | None, list[int]]:
        """Return the request of the current piece, if it can begin, and the ids to append."""
        enough = self._conditioning.first_ids
        is_open = self._ask.text_mode is TextMode.STREAMING and len(self._first) >= enough
        if not (is_open or complete):
            return None, []
        self._begun = True
        text = self._first[:enough] if is_open else self._first
        ids = [*turn.role, *text]
        if is_open:  # so that it can be prepared again
            ask = structs.replace(self._ask, turn_ids=tuple(ids))
        else:  # the text is complete, so the request equals one that is not streamed
            ask = structs.replace(self._ask, text="".join(self._said))
        request = lay_out(self._checkpoint, self._conditioning, name, self._model, ask, ids)
        return request, self._first[len(text) :]


def _whole_characters(text: str) -> tuple[str, str]:
    """Join surrogate pairs and replace single surrogates; return one at the end separately."""
    half = text[-1:] if "\ud800" <= text[-1:] < "\udc00" else ""
    units = text[: len(text) - len(half)].encode("utf-16-le", "surrogatepass")
    return units.decode("utf-16-le", "replace"), half


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
