"""Speech in, speech out: by a speech-to-speech model or by a server's cascade of models.

Both serve POST /v1/chat/completions with the same fields, so this module does not distinguish them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

import numpy as np

from izwi.audio.encode import PCM_RATE
from izwi.errors import EngineStopped, InvalidRequest
from izwi_api.client.audio import Audio, PcmReader
from izwi_api.client.connection import Fields, Requests

_PATH = "/v1/chat/completions"
# Some servers require a voice. If there is no voice of this name, they take one of their own.
_ANY_VOICE = "alloy"
_ID3, _RIFF, _WAVE = b"ID3", (b"RIFF", b"RF64"), b"WAVE"


class TalkOptions(TypedDict, total=False):
    """Options of a spoken answer. The server or the model chooses those that are not given.

    Attributes:
        model: Name of a speech-to-speech model, or of a chat model for which the server transcribes
            and speaks; by default the first.
        voice: Voice of the answer, if there is a choice.
        system: The system message of the conversation.
        before: Earlier turns in OpenAI's format; `SpokenAnswer.message` is one.
        temperature: Of the text.
        audio_temperature: Temperature of the audio, for speech-to-speech models.
        audio_top_k: The same.
        seed: The same seed gives the same answer; by default each answer differs.
        max_completion_tokens: Maximum number of text tokens and audio frames.
    """

    model: str | None
    voice: str | None
    system: str | None
    before: Sequence[Mapping[str, object]]
    temperature: float | None
    audio_temperature: float | None
    audio_top_k: int | None
    seed: int | None
    max_completion_tokens: int | None


class SpokenDelta(NamedTuple):
    """New text or audio of a spoken answer."""

    text: str = ""
    audio: Audio | None = None


@dataclass(slots=True)
class SpokenAnswer:
    """A spoken answer; complete when its stream has ended.

    Attributes:
        text: The text of the answer.
        id: Identifies the answer at the server; empty if it is not stored.
        expires_at: Expiry of the id, in seconds since 1970.
        finish_reason: "stop" or "length"; None while it is made.
        num_prompt_tokens: Tokens of the conversation, as the server counts them.
        num_tokens: Tokens of the answer.
    """

    text: str = ""
    id: str = ""
    expires_at: int = 0
    finish_reason: str | None = None
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    _pieces: list[Audio] = field(default_factory=list, repr=False)

    @property
    def audio(self) -> Audio:
        """The audio so far."""
        samples = [piece.samples for piece in self._pieces]
        return Audio(np.concatenate([np.zeros(0, np.float32), *samples]), PCM_RATE)

    @property
    def message(self) -> dict[str, object]:
        """The assistant's turn, for continuing the conversation."""
        if self.id and self.expires_at:
            return {"role": "assistant", "audio": {"id": self.id}}
        return {"role": "assistant", "content": self.text}

    def add(self, delta: SpokenDelta) -> None:
        """Add a delta."""
        self.text += delta.text
        if delta.audio is not None:
            self._pieces.append(delta.audio)


def spoken_turn(content: bytes) -> dict[str, object]:
    """Return a user's turn with the contents of an audio file.

    Args:
        content: The file's bytes, in any supported format; formats other than WAV and MP3 are
            converted to WAV.

    Raises:
        InvalidAudio: It is not audio.
        TooLarge: It is longer than an hour.
    """
    name = _format_of(content)
    if name is None:
        name, content = "wav", Audio.read(content).wav()
    data = base64.b64encode(content).decode("ascii")
    part = {"type": "input_audio", "input_audio": {"data": data, "format": name}}
    return {"role": "user", "content": [part]}


def talk_fields(model: str, turn: Mapping[str, object], options: TalkOptions) -> dict[str, object]:
    """Return the fields of POST /v1/chat/completions for a spoken turn."""
    system, before = options.get("system"), options.get("before", ())
    messages = [] if system is None else [{"role": "system", "content": system}]
    own = ("model", "voice", "system", "before")
    fields: dict[str, object] = {key: value for key, value in options.items() if key not in own}
    return fields | {
        "model": model,
        "messages": [*messages, *before, turn],
        "modalities": ["text", "audio"],
        "audio": {"voice": options.get("voice") or _ANY_VOICE, "format": "pcm16"},
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def request_spoken_answer(
    requests: Requests, fields: Fields, answer: SpokenAnswer
) -> AsyncGenerator[SpokenDelta]:
    """Request a spoken answer, and yield its deltas.

    Args:
        requests: The server.
        fields: The result of `talk_fields`.
        answer: Filled as the response arrives.

    Raises:
        IzwiError: As the server reported it; EngineStopped if the connection broke.
    """
    reader = PcmReader()
    async with aclosing(requests.events(_PATH, fields)) as events:
        async for event in events:
            try:
                delta = _delta(event, answer, reader)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                raise EngineStopped(f"{requests.shown} returned no spoken answer") from error
            answer.add(delta)
            if delta.text or delta.audio is not None:
                yield delta
    if answer.finish_reason is None:
        raise EngineStopped(f"{requests.shown} closed the connection early")


def _delta(event: Mapping[str, Any], answer: SpokenAnswer, reader: PcmReader) -> SpokenDelta:
    if usage := event.get("usage"):
        answer.num_prompt_tokens = int(usage["prompt_tokens"])
        answer.num_tokens = int(usage["completion_tokens"])
    if not event["choices"]:
        return SpokenDelta()
    choice = event["choices"][0]
    if choice["finish_reason"] is not None:
        answer.finish_reason = str(choice["finish_reason"])
    delta = choice["delta"]
    part = delta.get("audio") or {}
    answer.id = str(part.get("id") or answer.id)
    answer.expires_at = int(part.get("expires_at") or answer.expires_at)
    text = str(part.get("transcript") or delta.get("content") or "")
    if not part.get("data"):
        return SpokenDelta(text)
    try:
        audio = reader.read(base64.b64decode(part["data"], validate=True))
    except binascii.Error as error:
        raise ValueError("the audio is not base64") from error
    return SpokenDelta(text, audio if audio.samples.size else None)


def _format_of(content: bytes) -> str | None:
    """Return the format of a file, if the endpoint accepts it."""
    if not content:
        raise InvalidRequest("the audio file is empty", param="audio")
    if content[:4] in _RIFF and content[8:12] == _WAVE:
        return "wav"
    is_mp3 = content.startswith(_ID3) or (content[0] == 0xFF and content[1:2] >= b"\xe0")
    return "mp3" if is_mp3 and not _is_adts(content) else None


def _is_adts(content: bytes) -> bool:
    """Whether a file has AAC frames, whose sync word is like an MP3's, but with layer 0."""
    return content[0] == 0xFF and content[1] & 0xF6 == 0xF0
