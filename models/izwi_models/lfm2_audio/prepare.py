"""Validate an input and build a frozen request. All validation is here.

Names of parameters in errors are those of the HTTP body.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from msgspec.structs import replace

from izwi.arrays import Float32
from izwi.errors import ContextTooLong, InvalidRequest, VoiceNotFound
from izwi.inputs.chat import ChatInput, ChatMessage, Role, ToolChoice, num_characters
from izwi.inputs.conversation import AnswerContent, AnswerLog, AudioContent, ConversationInput
from izwi.inputs.grammar import Grammar, answer_grammar
from izwi.inputs.speech import SpeechInput, TextMode, TranscriptionInput
from izwi.request.request import Request, SamplingParams, TrackParams
from izwi_models.lfm2_audio import prompt as prompts
from izwi_models.lfm2_audio.config import AUDIO_START_ID, CODES, END_ID, LFM2AudioConfig
from izwi_models.lfm2_audio.prompt import AudioPart, LFM2Prompt, Part
from izwi_models.lfm2_audio.tokenizer import LFM2Tokenizer

# Sampling of frames in the published recipes: for a conversation, and for speech.
_CHAT_FRAMES = SamplingParams(temperature=1.0, top_k=4)
_SPEECH_FRAMES = SamplingParams(temperature=0.8, top_k=64)
_GREEDY = SamplingParams()
# Default maximum number of entries of an answer: 82 s of audio.
_MAX_ENTRIES = 1024
# Limits speech by its text: no speaker needs a quarter of a second for a letter.
_FRAMES_PER_LETTER = 3
# Limits the tokens of a transcription: no speaker says twelve in a second.
_TOKENS_PER_SECOND, _SPARE_TOKENS = 12, 64
# Text that is certainly too long is rejected before it is tokenized.
_MAX_CHARACTERS_PER_POSITION = 32
_DEFAULT_VOICE = "us_female"
_LANGUAGE = ("english", "en")
_RATE_HZ = 16_000


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Configuration and tokenizer of a checkpoint, for API servers.

    Attributes:
        config: config.json.
        tokenizer: Of its text.
        lists_voices: Whether voices have names (LFM2.5); otherwise a voice may be described in
            words.
        prepare_audio: Checks 16 kHz samples and computes the encoder's features; raises
            InvalidAudio and TooLarge.
    """

    config: LFM2AudioConfig
    tokenizer: LFM2Tokenizer
    lists_voices: bool
    prepare_audio: Callable[[Float32], AudioPart]

    @property
    def speakers(self) -> tuple[str, ...]:
        """Names of voices."""
        return tuple(prompts.VOICES) if self.lists_voices else ()


def conversation_request(
    checkpoint: Checkpoint, request_id: str, model: str, ask: ConversationInput
) -> Request:
    """Lay out the next answer of a conversation.

    Raises:
        InvalidRequest: There is no turn, a part does not belong to its role, or a number is out of
            range.
        InvalidAudio: An audio part cannot be used.
        ContextTooLong: The conversation leaves no room for an answer.
    """
    if not ask.turns:
        raise InvalidRequest("there is no message to answer", param="messages")
    texts = [part for turn in ask.turns for part in turn.parts if isinstance(part, str)]
    _check_size(checkpoint, len(ask.instructions) + sum(map(len, texts)), "messages")
    turns: list[tuple[str, list[Part]]] = []
    if all(turn.role is not Role.SYSTEM for turn in ask.turns):
        own = prompts.CHAT if ask.speaks else ""
        if instruction := " ".join(filter(None, (ask.instructions, own))):
            turns.append((Role.SYSTEM, [instruction]))
    for turn in ask.turns:
        if turn.role is Role.TOOL:
            raise InvalidRequest("this model does not support tools", param="messages")
        parts = [_part(checkpoint, turn.role, part) for part in turn.parts]
        turns.append((turn.role, parts))
    prompt = _build(checkpoint, turns, interleaved=ask.speaks)
    text = _sampling(_GREEDY, ask.temperature, ask.top_k, None)
    frames = _sampling(
        _GREEDY if ask.temperature == 0.0 else _CHAT_FRAMES,
        ask.audio_temperature,
        ask.audio_top_k,
        None,
        prefix="audio_",
    )
    _check_room(checkpoint, prompt, "messages")
    limit = _limit(checkpoint, prompt, ask.max_new_tokens, _MAX_ENTRIES, "max_completion_tokens")
    return Request(
        request_id,
        model,
        prompt,
        sampling=text,
        other_tracks=_frame_track(frames),
        max_entries=limit,
        # in an answer without audio, the token that begins audio ends the answer
        stop_ids=(END_ID,) if ask.speaks else (END_ID, AUDIO_START_ID),
        seed=ask.seed,
        ask=ask,
    )


def chat_request(checkpoint: Checkpoint, request_id: str, model: str, ask: ChatInput) -> Request:
    """Lay out the next answer of a conversation in text alone.

    Raises:
        InvalidRequest: It has tools, requests thinking, or a number is out of range.
        ContextTooLong: The conversation leaves no room for an answer.
    """
    if not (ask.messages or ask.text or ask.token_ids):
        raise InvalidRequest("there is no message to answer", param="messages")
    if ask.thinking:
        raise InvalidRequest("this model does not think before it answers", param="enable_thinking")
    if ask.tools or any(message.role is Role.TOOL for message in ask.messages):
        raise InvalidRequest("this model does not support tools", param="tools")
    _check_size(checkpoint, num_characters(ask), "messages")
    if len(ask.messages) > checkpoint.config.lfm.max_position_embeddings:
        raise _too_long(checkpoint, f"{len(ask.messages)} messages", "messages")
    if ask.messages:
        turns = [(message.role, [_text_of(message)]) for message in ask.messages]
        prompt = _build(checkpoint, turns, interleaved=False)
    else:
        ids = list(ask.token_ids) or checkpoint.tokenizer.encode_controls(ask.text)
        _check_ids(checkpoint, ids, "input_ids")
        prompt = prompts.plain_prompt(ids, checkpoint.config.codebooks)
    _check_room(checkpoint, prompt, "messages")
    limit = _limit(checkpoint, prompt, ask.max_new_tokens, _MAX_ENTRIES, "max_completion_tokens")
    vocabulary = checkpoint.config.lfm.vocab_size
    return Request(
        request_id,
        model,
        prompt,
        sampling=_chat_sampling(checkpoint, ask),
        other_tracks=_frame_track(_GREEDY),
        max_entries=limit,
        stop_ids=(END_ID, AUDIO_START_ID),
        seed=ask.seed,
        logprobs=ask.logprobs,
        top_logprobs=min(ask.top_logprobs, vocabulary) if ask.logprobs else 0,
        grammar=_grammar(ask),
        ask=ask,
    )


def speech_request(
    checkpoint: Checkpoint, request_id: str, model: str, ask: SpeechInput
) -> Request:
    """Lay out a text to be spoken.

    Raises:
        InvalidRequest: An option is not supported; `param` names it.
        VoiceNotFound: The checkpoint has no such voice.
        ContextTooLong: The text does not fit.
    """
    if not ask.text.strip():
        raise InvalidRequest("there is no text to say", param="input")
    if ask.text_mode is TextMode.STREAMING:
        raise InvalidRequest("this model needs the complete text", param="text_mode")
    if ask.language is not None and ask.language.lower() not in _LANGUAGE:
        raise InvalidRequest(f"this model speaks English, not {ask.language!r}", param="language")
    instruction = _instruction(checkpoint, ask)
    _check_size(checkpoint, len(ask.text) + len(instruction), "input")
    turns: list[tuple[str, list[Part]]] = [
        (Role.SYSTEM, [instruction]),
        (Role.USER, [ask.text]),
    ]
    prompt = _build(checkpoint, turns, interleaved=False)
    _check_room(checkpoint, prompt, "input")
    frames = _sampling(_SPEECH_FRAMES, ask.temperature, ask.top_k, ask.top_p)
    most = max(_MAX_ENTRIES, _FRAMES_PER_LETTER * len(ask.text))
    limit = _limit(checkpoint, prompt, ask.max_new_tokens, most, "max_new_tokens")
    return Request(
        request_id,
        model,
        prompt,
        sampling=_GREEDY,
        other_tracks=_frame_track(frames),
        max_entries=limit,
        stop_ids=(END_ID,),
        seed=ask.seed,
        ask=ask,
    )


def transcription_request(
    checkpoint: Checkpoint, request_id: str, model: str, ask: TranscriptionInput
) -> Request:
    """Lay out audio to be transcribed.

    Raises:
        InvalidRequest: The language is not English, or a number is out of range.
        InvalidAudio: The audio cannot be used.
        TooLarge: The audio is too long for one piece; `split_audio` cuts it.
        ContextTooLong: It leaves no room for a transcript.
    """
    if ask.language is not None and ask.language.lower() not in _LANGUAGE:
        raise InvalidRequest(
            f"this model transcribes English, not {ask.language!r}", param="language"
        )
    if ask.context.strip():
        raise InvalidRequest("this model accepts no prompt beside the audio", param="prompt")
    audio = checkpoint.prepare_audio(ask.samples[:])
    turns: list[tuple[str, list[Part]]] = [
        (Role.SYSTEM, [prompts.TRANSCRIBE]),
        (Role.USER, [audio]),
    ]
    prompt = _build(checkpoint, turns, interleaved=False)
    _check_room(checkpoint, prompt, "file")
    text = _sampling(_GREEDY, ask.temperature, None, None)
    most = _SPARE_TOKENS + int(_TOKENS_PER_SECOND * len(ask.samples) / _RATE_HZ)
    limit = _limit(checkpoint, prompt, ask.max_new_tokens, most, "max_new_tokens")
    return Request(
        request_id,
        model,
        prompt,
        sampling=text,
        other_tracks=_frame_track(_GREEDY),
        max_entries=limit,
        stop_ids=(END_ID, AUDIO_START_ID),
        seed=ask.seed,
        logprobs=ask.logprobs,
        ask=ask,
    )


def _frame_track(sampling: SamplingParams) -> tuple[TrackParams, ...]:
    return (TrackParams(sampling=sampling, codebook_sampling=sampling),)


def _build(
    checkpoint: Checkpoint, turns: Seq[tuple[str, Seq[Part]]], *, interleaved: bool
) -> LFM2Prompt:
    return prompts.build_prompt(
        checkpoint.tokenizer, checkpoint.config.codebooks, turns, interleaved=interleaved
    )


def _part(checkpoint: Checkpoint, role: Role, part: str | AudioContent | AnswerContent) -> Part:
    if isinstance(part, str):
        return part
    if isinstance(part, AudioContent):
        return checkpoint.prepare_audio(part.samples)
    if role is not Role.ASSISTANT:
        raise InvalidRequest("only the assistant has earlier answers", param="messages")
    return _checked_answer(checkpoint.config, part.entries)


def _checked_answer(config: LFM2AudioConfig, entries: AnswerLog) -> AnswerLog:
    vocabulary = {1: config.lfm.vocab_size, config.codebooks: CODES}
    for entry in entries:
        most = vocabulary.get(len(entry))
        if most is None or not all(0 <= index < most for index in entry):
            raise InvalidRequest("an earlier answer was not made by this model", param="messages")
    return entries


def _instruction(checkpoint: Checkpoint, ask: SpeechInput) -> str:
    voice = ask.voice
    if voice is not None and not isinstance(voice, str):
        raise InvalidRequest("this model cannot clone a voice", param="voice")
    if not checkpoint.lists_voices:
        if voice is not None:
            raise VoiceNotFound(
                f"no voice {voice!r}: this model has none by name; describe one in `instructions`",
                param="voice",
            )
        return prompts.speaking_instruction(None, ask.instruct or None)
    name = _DEFAULT_VOICE if voice is None else voice.lower()
    if name not in prompts.VOICES:
        known = ", ".join(prompts.VOICES)
        raise VoiceNotFound(f"no voice {voice!r}; there are {known}", param="voice")
    return prompts.speaking_instruction(name, None)


def _text_of(message: ChatMessage) -> str:
    if message.tool_calls:
        raise InvalidRequest("this model does not support tools", param="messages")
    return message.content


def _check_ids(checkpoint: Checkpoint, ids: Seq[int], param: str) -> None:
    vocabulary = checkpoint.config.lfm.vocab_size
    if not all(0 <= index < vocabulary for index in ids):
        raise InvalidRequest(f"{param} must be from 0 to {vocabulary - 1}", param=param)


def _grammar(ask: ChatInput) -> Grammar | None:
    if ask.tool_choice is ToolChoice.REQUIRED:
        raise InvalidRequest("this model does not support tools", param="tool_choice")
    return answer_grammar(ask)


def _chat_sampling(checkpoint: Checkpoint, ask: ChatInput) -> SamplingParams:
    params = replace(
        _sampling(_GREEDY, ask.temperature, ask.top_k, ask.top_p),
        min_p=0.0 if ask.min_p is None else ask.min_p,
        repetition_penalty=1.0 if ask.repetition_penalty is None else ask.repetition_penalty,
        presence_penalty=ask.presence_penalty,
        frequency_penalty=ask.frequency_penalty,
        logit_bias=ask.logit_bias,
    )
    if not 0.0 <= params.min_p <= 1.0:
        raise InvalidRequest("min_p must be from 0 to 1", param="min_p")
    if not 0.0 < params.repetition_penalty < math.inf:
        raise InvalidRequest("repetition_penalty must be above 0", param="repetition_penalty")
    _check_ids(checkpoint, [index for index, _ in params.logit_bias], "logit_bias")
    return params


def _sampling(
    default: SamplingParams,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    prefix: str = "",
) -> SamplingParams:
    params = SamplingParams(
        temperature=default.temperature if temperature is None else temperature,
        top_k=default.top_k if top_k is None else top_k,
        top_p=default.top_p if top_p is None else top_p,
    )
    if not 0.0 <= params.temperature < math.inf:
        raise InvalidRequest("temperature must not be negative", param=f"{prefix}temperature")
    if params.top_k < 0:
        raise InvalidRequest("top_k must not be negative", param=f"{prefix}top_k")
    if not 0.0 < params.top_p <= 1.0:
        raise InvalidRequest("top_p must be above 0, and at most 1", param=f"{prefix}top_p")
    return params


def _limit(
    checkpoint: Checkpoint, prompt: LFM2Prompt, wanted: int | None, default: int, param: str
) -> int:
    """Return the limit of entries of an answer: as requested, but at most what fits."""
    if wanted is not None and wanted < 1:
        raise InvalidRequest(f"{param} must be at least 1", param=param)
    room = checkpoint.config.lfm.max_position_embeddings - prompt.num_positions
    return min(room, default if wanted is None else wanted)


def _check_room(checkpoint: Checkpoint, prompt: LFM2Prompt, param: str) -> None:
    positions = checkpoint.config.lfm.max_position_embeddings
    if prompt.num_positions >= positions:
        raise _too_long(checkpoint, f"{prompt.num_positions} positions", param)


def _check_size(checkpoint: Checkpoint, num_characters: int, param: str) -> None:
    positions = checkpoint.config.lfm.max_position_embeddings
    if num_characters > _MAX_CHARACTERS_PER_POSITION * positions:
        raise _too_long(checkpoint, f"{num_characters} characters", param)


def _too_long(checkpoint: Checkpoint, size: str, param: str) -> ContextTooLong:
    positions = checkpoint.config.lfm.max_position_embeddings
    return ContextTooLong(
        f"the input has {size}; the model has room for {positions}, its answer included",
        param=param,
    )
