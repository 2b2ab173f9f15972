"""Valid inputs of LFM2-Audio, and the requests that are prepared from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from izwi.errors import ContextTooLong, InvalidAudio, InvalidRequest, VoiceNotFound
from izwi.inputs.chat import ChatInput, ChatMessage, Role, ToolCall, ToolChoice
from izwi.inputs.conversation import AnswerContent, AudioContent, ConversationInput, SpokenTurn
from izwi.inputs.speech import SpeechInput, TextMode, TranscriptionInput
from izwi.request.request import EncodeInput, Request, SamplingParams
from izwi_models.lfm2_audio.config import checked_config
from izwi_models.lfm2_audio.pattern import Mode
from izwi_models.lfm2_audio.prepare import (
    Checkpoint,
    chat_request,
    conversation_request,
    speech_request,
    transcription_request,
)
from izwi_models.lfm2_audio.prompt import AudioPart, LFM2Prompt
from izwi_models.lfm2_audio.tokenizer import LFM2Tokenizer
from tests.models.tiny_lfm2_audio import TINY, write_tokenizer

FRAME = (1, 2, 3, 4, 5, 6, 7, 8)
ANSWER = ((200,), FRAME, (2048,) * 8)


def prepare_audio(samples: Any) -> AudioPart:
    if len(samples) < 400:
        raise InvalidAudio("too short")
    frames = len(samples) // 160 + 1
    return AudioPart(EncodeInput("audio", np.zeros((2, frames), np.float32)), -(-frames // 8))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> LFM2Tokenizer:
    folder = tmp_path_factory.mktemp("tiny")
    write_tokenizer(folder)
    return LFM2Tokenizer(folder)


@pytest.fixture(params=[True, False], ids=["lists voices", "follows descriptions"])
def checkpoint(request, tokenizer) -> Checkpoint:
    return Checkpoint(checked_config(TINY, "config"), tokenizer, request.param, prepare_audio)


@pytest.fixture
def newer(tokenizer) -> Checkpoint:
    return Checkpoint(checked_config(TINY, "config"), tokenizer, True, prepare_audio)


@pytest.fixture
def older(tokenizer) -> Checkpoint:
    return Checkpoint(checked_config(TINY, "config"), tokenizer, False, prepare_audio)


def turns(*parts: Any) -> tuple[SpokenTurn, ...]:
    roles = (Role.USER, Role.ASSISTANT)
    return tuple(SpokenTurn(roles[n % 2], (part,)) for n, part in enumerate(parts))


def talk(checkpoint: Checkpoint, *parts: Any, **settings: Any) -> Request:
    ask = ConversationInput(turns(*parts), **settings)
    return conversation_request(checkpoint, "r", "tiny", ask)


def say(checkpoint: Checkpoint, text: str, **settings: Any) -> Request:
    return speech_request(checkpoint, "r", "tiny", SpeechInput(text, **settings))


def listen(checkpoint: Checkpoint, seconds: float, **settings: Any) -> Request:
    samples = np.zeros(int(16000 * seconds), np.float32)
    return transcription_request(checkpoint, "r", "tiny", TranscriptionInput(samples, **settings))


def written(checkpoint: Checkpoint, request: Request) -> str:
    """Text of the prompt's tokens."""
    assert isinstance(request.prompt, LFM2Prompt)
    ids = request.prompt.inputs[:, 0]
    return checkpoint.tokenizer.decode(ids[ids >= 0].tolist())


def frames_of(request: Request) -> SamplingParams:
    (frames,) = request.other_tracks
    assert frames.sampling == frames.codebook_sampling
    return frames.sampling


# -- conversation ----------------------------------------------------------------------------
def test_a_conversation_begins_with_the_models_own_instruction(checkpoint):
    request = talk(checkpoint, "hi")
    assert written(checkpoint, request) == (
        "system\nRespond with interleaved text and audio.\nuser\nhi\nassistant\n"
    )
    own = (SpokenTurn(Role.SYSTEM, ("Be kind.",)), *turns("hi"))
    request = conversation_request(checkpoint, "r", "tiny", ConversationInput(own))
    assert written(checkpoint, request) == "system\nBe kind.\nuser\nhi\nassistant\n"
    assert request.prompt.mode is Mode.INTERLEAVED


def test_an_answer_in_text_alone_ends_where_audio_would_begin(checkpoint):
    request = talk(checkpoint, "hi", speaks=False)
    assert written(checkpoint, request) == "user\nhi\nassistant\n"
    assert request.prompt.mode is Mode.SEQUENTIAL
    assert set(request.stop_ids) == {7, 128}
    assert talk(checkpoint, "hi").stop_ids == (7,)


def test_audio_and_earlier_answers_are_part_of_it(checkpoint):
    request = talk(
        checkpoint, AudioContent(np.zeros(16000, np.float32)), AnswerContent(ANSWER), "and?"
    )
    prompt = request.prompt
    assert len(prompt.encode_inputs) == len(prompt.audio_starts) == 1
    rows = prompt.inputs.tolist()
    at = rows.index([-1, *FRAME])
    assert rows[at - 1][0] == 200
    assert rows[at + 1] == [-1, *[2048] * 8]
    assert rows[at + 2][0] == 7


def test_how_a_conversation_is_sampled(checkpoint):
    def drawn(**settings: Any) -> tuple[SamplingParams, SamplingParams]:
        request = talk(checkpoint, "hi", **settings)
        return request.sampling, frames_of(request)

    greedy = SamplingParams()
    assert drawn() == (greedy, SamplingParams(1.0, 4))
    assert drawn(temperature=0.0) == (greedy, greedy)
    assert drawn(temperature=0.5, top_k=3) == (SamplingParams(0.5, 3), SamplingParams(1.0, 4))
    assert drawn(temperature=0.0, audio_temperature=0.7, audio_top_k=9) == (
        greedy,
        SamplingParams(0.7, 9),
    )


def test_the_room_limits_an_answer(checkpoint):
    request = talk(checkpoint, "hi", seed=9)
    assert (request.max_entries, request.seed) == (1024, 9)
    assert talk(checkpoint, "hi", max_new_tokens=5).max_entries == 5
    # 2,048 positions
    long = talk(checkpoint, "x" * 1500)
    assert long.max_entries == 2048 - long.prompt.num_positions
    over = 2048 - talk(checkpoint, "").prompt.num_positions
    assert talk(checkpoint, "x" * (over - 1)).max_entries == 1
    for text in ("x" * over, "x " * 10**6):
        with pytest.raises(ContextTooLong, match="2048"):
            talk(checkpoint, text)


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"audio_temperature": float("inf")}, "audio_temperature"),
        ({"audio_top_k": -2}, "audio_top_k"),
        ({"max_new_tokens": 0}, "max_completion_tokens"),
    ],
)
def test_what_cannot_be_asked_names_its_field(checkpoint, settings, param):
    with pytest.raises(InvalidRequest) as reported:
        talk(checkpoint, "hi", **settings)
    assert reported.value.param == param


@pytest.mark.parametrize(
    "turn",
    [
        SpokenTurn(Role.TOOL, ("3",)),
        SpokenTurn(Role.USER, (AnswerContent(ANSWER),)),
        SpokenTurn(Role.ASSISTANT, (AnswerContent(((1, 2),)),)),
        SpokenTurn(Role.ASSISTANT, (AnswerContent(((512,),)),)),
        SpokenTurn(Role.ASSISTANT, (AnswerContent(((-1,),)),)),
        SpokenTurn(Role.ASSISTANT, (AnswerContent(((2049, *FRAME[1:]),)),)),
    ],
)
def test_a_turn_that_cannot_be(checkpoint, turn):
    with pytest.raises(InvalidRequest) as reported:
        conversation_request(checkpoint, "r", "tiny", ConversationInput((turn,)))
    assert reported.value.param == "messages"


def test_no_turn_and_audio_that_is_too_short(checkpoint):
    with pytest.raises(InvalidRequest, match="no message"):
        talk(checkpoint)
    with pytest.raises(InvalidAudio):
        talk(checkpoint, AudioContent(np.zeros(10, np.float32)))


# -- speech ----------------------------------------------------------------------------------
def test_a_voice_is_listed_or_described(newer, older):
    assert newer.speakers == ("us_male", "us_female", "uk_male", "uk_female")
    request = say(newer, "Hello.", voice="UK_male")
    assert written(newer, request) == (
        "system\nPerform TTS. Use the UK male voice.\nuser\nHello.\nassistant\n"
    )
    assert "US female" in written(newer, say(newer, "Hello."))
    assert older.speakers == ()
    request = say(older, "Hello.", instruct="A low voice.")
    assert written(older, request) == (
        "system\nPerform TTS.\nUse the following voice: A low voice.\nuser\nHello.\nassistant\n"
    )
    assert written(older, say(older, "Hello.")).startswith("system\nPerform TTS.\nuser")
    assert request.prompt.mode is Mode.SEQUENTIAL
    assert request.stop_ids == (7,)


def test_how_speech_is_sampled_and_limited(checkpoint):
    request = say(checkpoint, "Hello.")
    assert (request.sampling, frames_of(request)) == (SamplingParams(), SamplingParams(0.8, 64))
    request = say(checkpoint, "Hello.", temperature=0.3, top_k=5, top_p=0.9)
    assert (request.sampling, frames_of(request)) == (SamplingParams(), SamplingParams(0.3, 5, 0.9))
    assert request.max_entries == 1024
    assert say(checkpoint, "x" * 400).max_entries == 1200
    assert say(checkpoint, "Hello.", max_new_tokens=7).max_entries == 7


@pytest.mark.parametrize(
    ("settings", "error", "param"),
    [
        ({"text": " \n"}, InvalidRequest, "input"),
        ({"language": "German"}, InvalidRequest, "language"),
        ({"text_mode": TextMode.STREAMING}, InvalidRequest, "text_mode"),
        ({"voice": "ryan"}, VoiceNotFound, "voice"),
        ({"top_p": 0.0}, InvalidRequest, "top_p"),
        ({"max_new_tokens": 0}, InvalidRequest, "max_new_tokens"),
        ({"text": "x" * 70_000}, ContextTooLong, "input"),
    ],
)
def test_speech_that_cannot_be(checkpoint, settings, error, param):
    with pytest.raises(error) as reported:
        say(checkpoint, **{"text": "Hi."} | settings)
    assert reported.value.param == param


def test_a_model_with_voices_ignores_a_description(newer, older):
    """As other models that follow none do: some clients always send one."""
    plain, described = say(newer, "Hi."), say(newer, "Hi.", instruct="A low voice.")
    assert written(newer, described) == written(newer, plain)
    assert written(older, say(older, "Hi.", instruct="A low voice.")) != written(older, plain)


# -- transcription ---------------------------------------------------------------------------
def test_a_transcription_takes_one_audio_input(checkpoint):
    request = listen(checkpoint, 2.0)
    assert written(checkpoint, request) == "system\nPerform ASR.\nuser\n\nassistant\n"
    assert request.sampling == SamplingParams()
    assert request.max_entries == 64 + 24
    assert set(request.stop_ids) == {7, 128}
    assert listen(checkpoint, 2.0, temperature=0.4).sampling.temperature == 0.4
    assert listen(checkpoint, 2.0, language="English", max_new_tokens=3).max_entries == 3
    with pytest.raises(InvalidRequest) as reported:
        listen(checkpoint, 2.0, language="fr")
    assert reported.value.param == "language"
    assert listen(checkpoint, 2.0, logprobs=True).logprobs
    with pytest.raises(InvalidRequest) as reported:
        listen(checkpoint, 2.0, context="Names: Ann.")
    assert reported.value.param == "prompt"
    with pytest.raises(ContextTooLong):
        listen(checkpoint, 200.0)


# -- chat ------------------------------------------------------------------------------------
def chat(checkpoint: Checkpoint, *contents: str, **settings: Any) -> Request:
    roles = (Role.USER, Role.ASSISTANT)
    messages = tuple(ChatMessage(roles[n % 2], said) for n, said in enumerate(contents))
    return chat_request(checkpoint, "r", "tiny", ChatInput(messages, **settings))


def test_a_chat_is_the_template_without_audio(checkpoint):
    request = chat(checkpoint, "hi", "hello", "and?", seed=4)
    assert written(checkpoint, request) == ("user\nhi\nassistant\nhello\nuser\nand?\nassistant\n")
    assert request.prompt.mode is Mode.SEQUENTIAL
    assert set(request.stop_ids) == {7, 128}
    assert (request.max_entries, request.seed, request.sampling) == (1024, 4, SamplingParams())
    same = talk(checkpoint, "hi", "hello", "and?", speaks=False)
    np.testing.assert_array_equal(request.prompt.inputs, same.prompt.inputs)


def test_how_a_chat_is_sampled(checkpoint):
    asked = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "logit_bias": ((5, 1.0),),
    }
    assert chat(checkpoint, "hi", **asked).sampling == SamplingParams(**asked)
    request = chat(checkpoint, "hi", logprobs=True, top_logprobs=9999)
    assert (request.logprobs, request.top_logprobs) == (True, 512)
    schema = chat(checkpoint, "hi", response_schema='{"type": "boolean"}').grammar
    assert schema is not None
    assert "boolean" in schema.text


def test_text_and_ids_are_gone_on_with_as_they_are(checkpoint):
    def ids(**asked: Any) -> list[int]:
        request = chat_request(checkpoint, "r", "tiny", ChatInput((), **asked))
        assert (request.prompt.inputs[:, 1:] == -1).all()
        return request.prompt.inputs[:, 0].tolist()

    assert ids(token_ids=(1, 6, 200)) == [1, 6, 200]
    encode = checkpoint.tokenizer.encode
    expected = [6, *encode("user\nhi "), 7, *encode("!")]
    assert ids(text="<|im_start|>user\nhi <|im_end|>!") == expected


@pytest.mark.parametrize("written", [{"regex": "a+"}, {"ebnf": 'root ::= "a"'}])
def test_text_that_is_gone_on_with_follows_what_is_asked(checkpoint, written):
    ask = ChatInput((), text="hi", grammar_param="sampling_params.x", **written)
    grammar = chat_request(checkpoint, "r", "tiny", ask).grammar
    assert "a" in grammar.text
    assert grammar.param == "sampling_params.x"


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"thinking": True}, "enable_thinking"),
        ({"tools": "[{}]"}, "tools"),
        ({"tool_choice": ToolChoice.REQUIRED}, "tool_choice"),
        ({"temperature": -1.0}, "temperature"),
        ({"min_p": 2.0}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"logit_bias": ((512, 1.0),)}, "logit_bias"),
        ({"max_new_tokens": 0}, "max_completion_tokens"),
        ({"messages": (ChatMessage(Role.TOOL, "3", call_id="c"),)}, "tools"),
        (
            {"messages": (ChatMessage(Role.ASSISTANT, "", tool_calls=(ToolCall("c", "f", ""),)),)},
            "messages",
        ),
        ({"messages": (), "token_ids": (512,)}, "input_ids"),
        ({"messages": ()}, "messages"),
    ],
)
def test_a_chat_that_cannot_be(checkpoint, settings, param):
    asked = {"messages": (ChatMessage(Role.USER, "hi"),)} | settings
    with pytest.raises(InvalidRequest) as reported:
        chat_request(checkpoint, "r", "tiny", ChatInput(**asked))
    assert reported.value.param == param


def test_the_room_limits_a_chat(checkpoint):
    with pytest.raises(ContextTooLong, match="2048"):
        chat(checkpoint, "x" * 3000)
    with pytest.raises(ContextTooLong, match="messages"):
        chat(checkpoint, *[""] * 3000)
    with pytest.raises(ContextTooLong, match="characters"):
        chat(checkpoint, "x" * 10**6)
