"""Validate a speech input and build a frozen request. All validation is here.

Parameter names in errors are those of the HTTP body.

The text is encoded in the chat template of qwen-tts 0.1.1, inference/qwen3_tts_model.py, which
tokenizes a whole turn and cuts it by counting ids. So a line break at the start of the text may
share a token with the role's, and a tokenizer of single bytes leaves most of the role in the text.
Here the turn is cut in the same places, but special tokens are inserted by id, so that a user's
text cannot close its turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from msgspec import structs

from izwi.audio.mel import speaker_log_mel
from izwi.errors import InvalidAudio, InvalidRequest, TooLarge, VoiceNotFound
from izwi.inputs.speech import ReferenceClip, SpeechInput, TextMode, VoicePrompt
from izwi.request.request import EncodeInput, Request, SamplingParams
from izwi_models.qwen3.tokenizer import IncrementalTokenizer, QwenTokenizer
from izwi_models.qwen3_tts import prompt as prompts
from izwi_models.qwen3_tts.config import GenerationConfig, TTSConfig
from izwi_models.qwen3_tts.prompt import Conditioning, Reference

# Length of a reference clip in seconds: less has too little of the voice, more does not improve it.
MIN_CLIP_S, MAX_CLIP_S = 0.5, 120.0
# The first two tokens cannot be the end, as in the reference package.
MIN_FRAMES = 2
# Silence after which a clip counts as empty: 60 dB below full scale.
_SILENCE = 1e-3
_START, _END = "<|im_start|>", "<|im_end|>"
# Number of ids at the edges of a turn that are not its text.
ROLE_IDS, _CLOSING_IDS, _REFERENCE_CLOSING_IDS = 3, 5, 2

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
    turn: Sequence[int],
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
        ask=ask,
    )


def prepare_speech(
    checkpoint: Checkpoint, request_id: str, model: str, ask: SpeechInput
) -> Request:
    """Check and tokenise one utterance, or lay out one anew whose text is still to be written.

    Raises:
        InvalidRequest: The text is empty, or `turn_ids` are no turn's; else see `condition`.
        TooLarge: The text or the clip does not fit.
    """
    if ask.turn_ids:
        conditioning = condition(checkpoint, ask)
        known = range(checkpoint.config.talker_config.text_vocab_size)
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


def prepare_voice(
    checkpoint: Checkpoint,
    request_id: str,
    model: str,
    samples: npt.NDArray[np.float32],
    text: str | None,
) -> Request:
    """Make a request that only encodes a clip: its speaker and, if its text is known, its codes.

    Raises:
        InvalidRequest: The checkpoint cannot clone.
        InvalidAudio: The clip cannot be used.
        TooLarge: The clip is too long.
    """
    text = None if checkpoint.config.clones_by_vector else text
    inputs = _encode_inputs(checkpoint, ReferenceClip(samples, text))
    return Request(request_id, model, prompts.encode_only(inputs), encode_only=True)


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


def follows_instructions(config: TTSConfig) -> bool:
    """Whether a checkpoint was trained on instructions."""
    small = config.tts_model_type == "custom_voice" and config.tts_model_size == "0b6"
    return not small and config.tts_model_type != "base"


def _instruct(config: TTSConfig, instruct: str | None) -> str:
    """Return the instruction, or nothing for models that were not trained on instructions.

    OpenAI's tts-1 ignores them, too, as does the reference package with the small CustomVoice.
    """
    return (instruct or "") if follows_instructions(config) else ""


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


class SpeechText:
    """A checkpoint's tokenizer with the template around the text."""

    def __init__(self, tokenizer: QwenTokenizer):
        """Bind a checkpoint's tokenizer.

        Raises:
            CheckpointError: It lacks a token of the template.
        """
        self._tokenizer = tokenizer
        self._start, self._end = tokenizer.id_of(_START), tokenizer.id_of(_END)

    def role_and_text(self, text: str) -> tuple[list[int], list[int]]:
        """Return the ids of the role's three positions, and those of the text after them."""
        turn = self.open_turn()
        ids = [*turn.write(text), *turn.close()]
        return turn.role, ids

    def open_turn(self) -> OpenTurn:
        """Return a turn whose text is still to be written."""
        closing = [self._end, *self._tokenizer.encode("\n"), *self._opening("assistant", "")]
        # a tokenizer of single bytes leaves some of the closing in the text
        last = closing[: len(closing) - _CLOSING_IDS]
        return OpenTurn(IncrementalTokenizer(self._tokenizer), self._start, last)

    def reference(self, text: str) -> list[int]:
        """Return the ids of a reference clip's text."""
        return self._turn("assistant", text)[ROLE_IDS:-_REFERENCE_CLOSING_IDS]

    def instruct(self, text: str) -> list[int]:
        """Return the ids of an instruction, a user's turn with its markers; [] for empty text."""
        return self._turn("user", text) if text else []

    def _opening(self, role: str, text: str) -> list[int]:
        return [self._start, *self._tokenizer.encode(f"{role}\n{text}")]

    def _turn(self, role: str, text: str) -> list[int]:
        return [*self._opening(role, text), self._end, *self._tokenizer.encode("\n")]


class OpenTurn:
    """The assistant's turn while its text is written. Ids that were returned never change.

    Attributes:
        role: Ids of the role's three positions, complete once the text has an id.
    """

    def __init__(self, tokenizer: IncrementalTokenizer, start: int, last: list[int]):
        """Begin with the id `start`; the ids `last` follow the text."""
        self.role = [start]
        self._tokenizer, self._last = tokenizer, last
        self._append_ids(tokenizer.write("assistant\n"))

    def write(self, text: str, *, word_ends: bool = False) -> list[int]:
        """Add text; return its ids that are now settled.

        See `IncrementalTokenizer.write` for `word_ends`.
        """
        return self._append_ids(self._tokenizer.write(text, word_ends=word_ends))

    def close(self) -> list[int]:
        """Return the ids of the rest."""
        return self._append_ids(self._tokenizer.close()) + self._last

    def _append_ids(self, ids: list[int]) -> list[int]:
        missing = ROLE_IDS - len(self.role)
        self.role += ids[:missing]
        return ids[missing:]
