"""Speech and text of a fixed length, so that runs differ only in the cost of a step."""

from __future__ import annotations

from msgspec.structs import replace

from izwi.audio.mel import WHISPER_RATE
from izwi.checkpoints.registry import Registry
from izwi.errors import TooLarge
from izwi.inputs.speech import SpeechInput, TranscriptionInput
from izwi.model.capability import Capability
from izwi.model.frontend import SpeechFrontend, TranscriptionFrontend
from izwi.request.request import Request

FRAMES = "BENCHMARK_FRAMES"  # environment variable: frames of each utterance of a server

_TOKENS_PER_S = 3.5  # tokens per second of English speech
_PREFIX_TOKENS = 4  # tokens of an answer before its text: the language


def fix_lengths(registry: Registry, frames: int) -> None:
    """Fix the output length of all models of a registry.

    Speech has `frames` frames, unless the request has `max_new_tokens`. Transcripts have as many
    tokens as speech of that length usually has. Other models stay unchanged.
    """
    for name in registry.names():
        capabilities = registry.model(name).capabilities
        if Capability.SPEAK in capabilities:
            fix_frames(registry.speech(name), frames)
        elif Capability.TRANSCRIBE in capabilities:
            _fix_tokens(registry.transcription(name))


def fix_frames(model: SpeechFrontend, frames: int) -> None:
    """Make each utterance last `frames` frames, or as many as the request asks for."""
    prepare = model.prepare_speech

    def fixed(request_id: str, name: str, ask: SpeechInput) -> Request:
        # the last of the tokens gives no frame
        count = frames if ask.max_new_tokens is None else ask.max_new_tokens - 1
        request = prepare(request_id, name, ask)
        if request.prompt.num_positions + count > model.max_positions:
            raise TooLarge(
                f"{count} frames do not fit behind this text"
            )  # they would run without captured steps
        return replace(request, min_entries=count + 1, max_entries=count)

    model.prepare_speech = fixed  # type: ignore[method-assign]


def _fix_tokens(model: TranscriptionFrontend) -> None:
    prepare = model.prepare_transcription

    def fixed(request_id: str, name: str, ask: TranscriptionInput) -> Request:
        tokens = round(_TOKENS_PER_S * len(ask.samples) / WHISPER_RATE) + _PREFIX_TOKENS
        request = prepare(request_id, name, ask)
        return replace(request, min_entries=tokens + 1, max_entries=tokens)

    model.prepare_transcription = fixed  # type: ignore[method-assign]
