"""The protocols of a family's frontends: API servers prepare requests and read output with them."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from izwi.arrays import Samples
from izwi.errors import InvalidRequest
from izwi.inputs.chat import AnswerReader, ChatInput
from izwi.inputs.conversation import ConversationInput
from izwi.inputs.images import ImageSizing
from izwi.inputs.speech import SpeechInput, Transcript, TranscriptionInput, VoicePrompt
from izwi.model.capability import Capability
from izwi.request.request import Request


class Frontend(Protocol):
    """The part of a model for API servers: configuration and tokenizer, neither weights nor arrays.

    It validates and tokenises inputs to requests, and reads what the model emitted.
    """

    @property
    def capabilities(self) -> tuple[Capability, ...]:
        """What the model can do, its main purpose first."""
        ...

    @property
    def max_positions(self) -> int:
        """Maximum number of positions of the checkpoint."""
        ...


@dataclass(frozen=True, slots=True)
class AudioEntries:
    """Which entries of a model's chunks are frames of audio.

    Attributes:
        track: The track that has frames.
        silent_ids: First ids of entries of that track that give no audio.
    """

    track: int = 0
    silent_ids: frozenset[int] = frozenset()


def check_capability(name: str, frontend: Frontend, capability: Capability) -> None:
    """Check that a model can do something. Raises InvalidRequest, with what it can do instead."""
    if capability not in frontend.capabilities:
        able = ", ".join(frontend.capabilities)
        raise InvalidRequest(f"model {name!r} does {able}, not {capability}", param="model")


class SpeechFrontend(Frontend, Protocol):
    """A model that speaks text."""

    @property
    def sample_rate(self) -> int: ...

    @property
    def audio_entries(self) -> AudioEntries:
        """Which of its entries are frames of audio."""
        ...

    @property
    def speakers(self) -> tuple[str, ...]: ...

    @property
    def languages(self) -> tuple[str, ...]: ...

    @property
    def can_clone(self) -> bool: ...

    @property
    def follows_instructions(self) -> bool: ...

    def split_text(self, text: str) -> list[str]:
        """Split text into the pieces that the checkpoint was trained on; most take it whole.

        Raises:
            InvalidRequest: Nothing in it can be spoken.
        """
        ...

    def prepare_speech(self, request_id: str, model: str, ask: SpeechInput) -> Request:
        """Validate and tokenise. Raises InvalidRequest and its kind."""
        ...


@runtime_checkable
class ClonesVoices(Protocol):
    """A speech model that encodes clips to voices; see `SpeechFrontend.can_clone`."""

    def prepare_voice(
        self, request_id: str, model: str, samples: npt.NDArray[np.float32], text: str | None
    ) -> Request:
        """Return an encode-only request whose output `read_voice` turns into a VoicePrompt."""
        ...

    def read_voice(self, encoded: Seq[npt.NDArray[Any]], text: str | None) -> VoicePrompt: ...


class TranscriptionFrontend(Frontend, Protocol):
    """A model whose entries are text tokens about audio."""

    @property
    def languages(self) -> tuple[str, ...]: ...

    @property
    def language_codes(self) -> Mapping[str, str]:
        """ISO 639 codes, by the names that `read` returns."""
        ...

    @property
    def follows_context(self) -> bool:
        """Whether `TranscriptionInput.context` has an effect; else the caller is told."""
        ...

    def split_audio(self, samples: Samples) -> list[tuple[int, int]]:
        """Split 16 kHz samples into pieces [start, stop) that the model accepts.

        Only samples near the cuts are read, so an hour takes no more memory than a minute.
        """
        ...

    def prepare_transcription(
        self, request_id: str, model: str, ask: TranscriptionInput
    ) -> Request:
        """Validate, compute features and tokenise one piece. Raises InvalidRequest and its kind."""
        ...

    def read(self, token_ids: Seq[int], language: str | None) -> Transcript:
        """Parse the output; `language` is the forced one, if any."""
        ...

    def spell(self, token_ids: Seq[int], language: str | None) -> list[bytes]:
        """Return the bytes that each token adds to the text of `read`; empty for other tokens.

        Joined, they are that text in UTF-8, with white space after it, and with all repetitions of
        a stuck decoder, which `read` may cut short.
        """
        ...


class ChatFrontend(Frontend, Protocol):
    """A model whose entries are the text tokens of the next turn of a conversation."""

    def prepare_chat(self, request_id: str, model: str, ask: ChatInput) -> Request:
        """Apply the template to a conversation and tokenise. Raises InvalidRequest and its kind.

        The request's grammar is not compiled: its caller checks it (`izwi.sandbox.grammar_check`).
        """
        ...

    def open_answer(self, request: Request) -> AnswerReader:
        """Return a reader for the output of a request of `prepare_chat`, as it arrives."""
        ...


@runtime_checkable
class SeesImages(Protocol):
    """A chat model that sees images: `prepare_chat` takes messages with decoded ones."""

    @property
    def image_sizing(self) -> ImageSizing:
        """To what sizes images are scaled, before `prepare_chat`."""
        ...


class ConversationFrontend(Frontend, Protocol):
    """A speech-to-speech model: its answers have text and audio."""

    @property
    def sample_rate(self) -> int:
        """Sample rate of the audio, Hz."""
        ...

    @property
    def frame_samples(self) -> int:
        """Samples of audio in a frame."""
        ...

    def prepare_conversation(self, request_id: str, model: str, ask: ConversationInput) -> Request:
        """Prepare the next answer of a conversation. Raises InvalidRequest and its kind."""
        ...

    def open_answer(self, request: Request) -> AnswerReader:
        """Return a reader for the text of an answer, as it arrives."""
        ...
