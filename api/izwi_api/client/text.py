"""Transcripts, word times and chat answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypedDict

from izwi.errors import EngineStopped
from izwi.model.alignment import AlignedWord
from izwi_api.client.connection import Fields, Requests, Upload
from izwi_api.client.speech import parse_word
from izwi_api.client.streams import (
    Answer,
    ChatDelta,
    Segment,
    ToolCall,
    Transcript,
    TranscriptUpdate,
)

Message = Mapping[str, object]


class TranscriptionOptions(TypedDict, total=False):
    """Options of a transcription. The server or the model chooses those that are not given.

    Attributes:
        model: Name of a transcription model; by default the first.
        language: The spoken language; by default it is detected.
        prompt: Preceding text, or words to expect.
        max_new_tokens: Maximum number of tokens for each piece of audio.
        word_timestamps: Return the times of words; needs an alignment model.
        speakers: Tell speakers apart; needs a model with a speaker encoder, such as a voice that
            clones. Each segment then has a speaker.
    """

    model: str | None
    language: str | None
    prompt: str | None
    temperature: float | None
    max_new_tokens: int | None
    word_timestamps: bool
    speakers: bool


class ChatOptions(TypedDict, total=False):
    """Options of a chat answer. The server or the model chooses those that are not given.

    Attributes:
        model: Name of a chat model; by default the first.
        seed: The same seed gives the same answer; by default each answer differs.
        max_completion_tokens: Maximum number of tokens, including thoughts.
        enable_thinking: Whether the model thinks first.
        stop: Texts at which the answer ends.
        tools: Functions that may be called, in OpenAI's format.
        tool_choice: "none", "auto", "required", or one of them.
        response_format: The required format, such as JSON with a schema.
    """

    model: str | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[str, float] | None
    seed: int | None
    max_completion_tokens: int | None
    enable_thinking: bool | None
    stop: str | Sequence[str] | None
    tools: Sequence[Message] | None
    tool_choice: str | Message | None
    response_format: Message | None


async def request_transcription(
    requests: Requests, fields: Fields, upload: Upload, transcript: Transcript
) -> AsyncGenerator[TranscriptUpdate]:
    """Transcribe a file, and yield new parts of the transcript.

    A server without event streams responds with one object.

    Args:
        requests: The server.
        fields: The fields of POST /v1/audio/transcriptions.
        upload: The file.
        transcript: Filled as the response arrives.

    Raises:
        IzwiError: As the server reported it; EngineStopped if the connection broke.
    """
    form = dict(fields) | {"response_format": "verbose_json", "stream": "true"}
    if form.pop("speakers", False):
        form["speakers"] = "true"
    if form.pop("word_timestamps", False):
        form["timestamp_granularities[]"] = "word"
    last: Mapping[str, Any] = {}
    share = 0.0
    path, read = "/v1/audio/transcriptions", transcript.read_headers
    async with aclosing(requests.events(path, form, upload, read)) as events:
        async for last in events:
            match last.get("type"):
                case "transcript.text.delta":
                    transcript.text += str(last["delta"])
                    yield TranscriptUpdate(str(last["delta"]), share)
                case "transcript.text.segment":
                    transcript.duration_s = float(last["duration"])
                    share = float(last["end"]) / transcript.duration_s
                    yield TranscriptUpdate("", share)
    try:
        _finish(transcript, last)
    except (KeyError, TypeError, ValueError) as error:
        raise EngineStopped(f"{requests.shown} returned no transcription") from error


def _finish(transcript: Transcript, last: Mapping[str, Any]) -> None:
    transcript.text = str(last["text"])
    # Names of languages are in lower case, as Whisper writes them.
    transcript.language = str(last["language"]).title()
    transcript.segments = [
        Segment(
            float(segment["start"]),
            float(segment["end"]),
            str(segment["text"]),
            tuple(int(token) for token in segment["tokens"]),
            str(segment.get("speaker", "")),
        )
        for segment in last["segments"]
    ]
    transcript.duration_s = float(last.get("duration", transcript.duration_s))
    transcript.words = [parse_word(word) for word in last.get("words") or ()]


async def request_alignment(
    requests: Requests, fields: Fields, upload: Upload
) -> list[AlignedWord]:
    """Return the start and end of each word of a text in a file.

    Args:
        requests: The server.
        fields: The fields of POST /v1/audio/align.
        upload: The file.

    Raises:
        IzwiError: As the server reported it.
    """
    answer = await requests.post_form("/v1/audio/align", fields, upload)
    try:
        return [
            AlignedWord(
                word=str(word["word"]),
                start_s=float(word["start"]),
                end_s=float(word["end"]),
                start=int(word["text_start"]),
                stop=int(word["text_end"]),
            )
            for word in answer["words"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise EngineStopped(f"{requests.shown} returned no alignment") from error


async def request_answer(
    requests: Requests, fields: Fields, answer: Answer
) -> AsyncGenerator[ChatDelta]:
    """Request an answer to a conversation, and yield its deltas.

    Args:
        requests: The server.
        fields: The fields of POST /v1/chat/completions.
        answer: Filled as the response arrives.

    Raises:
        IzwiError: As the server reported it; EngineStopped if the connection broke.
    """
    body = dict(fields) | {"stream": True, "stream_options": {"include_usage": True}}
    async with aclosing(requests.events("/v1/chat/completions", body)) as events:
        async for event in events:
            try:
                delta = _delta(event, answer)
            except (KeyError, TypeError, ValueError, IndexError) as error:
                raise EngineStopped(f"{requests.shown} returned no answer") from error
            answer.reasoning += delta.reasoning
            answer.content += delta.content
            if any(delta):
                yield delta
    if answer.finish_reason is None:
        raise EngineStopped(f"{requests.shown} closed the connection early")


def _delta(event: Mapping[str, Any], answer: Answer) -> ChatDelta:
    if usage := event.get("usage"):
        answer.num_prompt_tokens = int(usage["prompt_tokens"])
        answer.num_tokens = int(usage["completion_tokens"])
    if not event["choices"]:
        return ChatDelta()
    choice = event["choices"][0]
    if choice["finish_reason"] is not None:
        answer.finish_reason = str(choice["finish_reason"])
    delta = choice["delta"]
    for call in delta.get("tool_calls") or ():
        _add_call(answer.tool_calls, call)
    return ChatDelta(*(str(delta.get(name) or "") for name in ("reasoning_content", "content")))


def _add_call(calls: list[ToolCall], piece: Mapping[str, Any]) -> None:
    function = piece["function"]
    if piece["index"] == len(calls):
        calls.append(ToolCall(str(piece["id"]), str(function["name"])))
    calls[piece["index"]].arguments += str(function.get("arguments") or "")
