"""The lines of a recording: a request, complete enough to run it again, and its output.

A recording is a file of JSON lines, one ended request each:

    version       1
    task          "speech", "transcription", "chat" or "conversation"
    model         the name under which it was served
    fingerprint   fingerprint of that model's checkpoint
    platform      device and library; the last bits of the audio are reproduced only on the same one
    ask           a SpeechInput, TranscriptionInput, ChatInput or ConversationInput; a voice is a
                  name, {"kind": "clip", samples, text} or {"kind": "encoded", speaker_embedding,
                  codes, text}; audio in a conversation is {"kind": "heard", samples}
    request       values of the prepared request: seed, sampling, limits, length of the prompt
    entries       the log: (codebooks,) ids each
    reason        "stop", "length" or "aborted"; for the last, the log up to then
    num_samples   number of samples of the audio, 0 if there is none
    pcm_sha256    hash of the audio as little-endian 16-bit samples, "" if there is none
    text          text of a transcription or of an answer
    written       of speech whose text was written while it was spoken: the text ids that were
                  written to it; `turn_ids` of its ask are those that it began with

Default values are omitted. `izwi.request.serialization` describes how arrays are written.

A recording holds callers' texts and voices, so only its owner may read the file. Live
transcriptions, and requests that only encode, are not recorded.
"""

from __future__ import annotations

import logging
from pathlib import Path

from msgspec import Struct

from izwi.errors import InvalidMessage
from izwi.inputs.chat import ChatInput
from izwi.inputs.conversation import ConversationInput
from izwi.inputs.speech import SpeechInput, TranscriptionInput
from izwi.request.request import Reason, Request, SamplingParams
from izwi.request.serialization import decode_line

logger = logging.getLogger(__name__)

VERSION = 1


class Prepared(Struct, frozen=True, omit_defaults=True):
    """Values of a prepared request, with the length of the prompt instead of the prompt."""

    num_positions: int
    seed: int = 0
    sampling: SamplingParams = SamplingParams()
    codebook_sampling: SamplingParams = SamplingParams()
    max_entries: int = 1
    min_entries: int = 0
    stop_ids: tuple[int, ...] = ()

    @classmethod
    def from_request(cls, request: Request) -> Prepared:
        """Return the values of a request."""
        names = (name for name in cls.__struct_fields__ if name != "num_positions")
        rest = {name: getattr(request, name) for name in names}
        return cls(request.prompt.num_positions, **rest)


class _Line(Struct, frozen=True, kw_only=True, tag_field="task", omit_defaults=True):
    """Fields of the lines of all tasks."""

    version: int
    model: str
    fingerprint: str
    platform: str = ""
    request: Prepared
    entries: tuple[tuple[int, ...], ...]
    reason: Reason


class SpeechLine(_Line, frozen=True, kw_only=True, tag="speech"):
    """One request for speech with its output."""

    ask: SpeechInput
    num_samples: int = 0
    pcm_sha256: str = ""
    written: tuple[int, ...] = ()


class TranscriptionLine(_Line, frozen=True, kw_only=True, tag="transcription"):
    """One request for a transcription with its output."""

    ask: TranscriptionInput
    text: str = ""


class ChatLine(_Line, frozen=True, kw_only=True, tag="chat"):
    """One chat request with its answer."""

    ask: ChatInput
    text: str = ""


class ConversationLine(_Line, frozen=True, kw_only=True, tag="conversation"):
    """One speech-to-speech request with its answer."""

    ask: ConversationInput
    num_samples: int = 0
    pcm_sha256: str = ""
    text: str = ""


Line = SpeechLine | TranscriptionLine | ChatLine | ConversationLine


class _Head(Struct):
    version: int


def read_recording(path: Path) -> list[Line]:
    """Read a recording.

    An incomplete last line, from a writer that was killed, is ignored.

    Raises:
        OSError: The file cannot be read.
        InvalidMessage: A line is not a request, or one of another version; it is named.
    """
    lines: list[Line] = []
    with path.open("rb") as file:
        for number, content in enumerate(file, start=1):
            if not content.endswith(b"\n"):
                logger.warning("%s: line %d is not complete and was left out", path, number)
                break
            try:
                version = decode_line(content, _Head).version
                if version != VERSION:
                    raise InvalidMessage(f"it is of version {version}, known is {VERSION}")
                lines.append(decode_line(content, Line))
            except InvalidMessage as error:
                raise InvalidMessage(f"{path}: line {number} is not a request: {error}") from error
    return lines
