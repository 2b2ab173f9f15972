"""The models of `benchmarks.live.answers`; those with random weights output given texts.

Random weights produce nothing useful, so with a published size the transcriber outputs a given
sentence and the chat model a given answer, one token per word. Both models still run for each
token.
"""

from __future__ import annotations

import dataclasses
from typing import Any, cast

from msgspec.structs import replace

from benchmarks.fixed_length import fix_lengths
from benchmarks.random_checkpoint import EMBEDDED, EMBEDDED_LISTENER
from izwi.checkpoints.registry import Registry
from izwi.request.input_stream import PartialTranscript
from tests.api.scripted_chat import ScriptedRegistry

# speech, transcription, chat
SIZES = {
    "embedded": (EMBEDDED, EMBEDDED_LISTENER, "izwi-tiny-chat"),
    "0.6b": ("tts-0.6b", "asr-0.6b", "0.6B"),
    "1.7b": ("tts-1.7b", "asr-1.7b", "1.7B"),
}
ANSWER = "The train leaves at seven in the morning, and it arrives at nine in the evening."
HEARD = "When does the train to the north leave tomorrow?"
CHAT = "chat"
_STEP_TOKENS = (
    6  # tokens of a live transcription's step: the last words again, and 0.4 s of new ones
)
_FRAMES = 60


def fix_models(registry: Registry) -> Registry:
    """Fix the output of models with random weights; embedded ones stay unchanged."""
    for speech, listening, _ in SIZES.values():
        if speech in registry.names() and speech != EMBEDDED:
            fix_lengths(registry, _FRAMES)
            _fix_live(registry, speech, listening)
            return cast(Registry, ScriptedRegistry(registry, CHAT, lambda _: ANSWER))
    return registry


def _fix_live(registry: Registry, speech: str, listening: str) -> None:
    """Fix the output of streamed speech and of live transcription."""
    speaker: Any = registry.speech(speech)
    listener: Any = registry.transcription(listening)
    text_stream, open_stream = speaker.text_stream, listener.open_stream
    prepare_step = listener.prepare_stream_step

    def prepared(*arguments: Any) -> Any:
        request = prepare_step(*arguments)
        return replace(request, min_entries=_STEP_TOKENS + 1, max_entries=_STEP_TOKENS)

    speaker.text_stream = lambda *arguments: _FixedSpeech(text_stream(*arguments))
    listener.open_stream = lambda **options: _FixedHearing(open_stream(**options))
    listener.prepare_stream_step = lambda request_id, name, stream, step: prepared(
        request_id, name, stream.real, step
    )


class _FixedSpeech:
    """A text stream whose pieces have one length."""

    def __init__(self, real: Any):
        self._real = real

    def write(self, text: str) -> list[Any]:
        """See `izwi.request.input_stream.TextStream`."""
        return list(map(_fixed, self._real.write(text)))

    def close(self) -> list[Any]:
        """See `izwi.request.input_stream.TextStream`."""
        return list(map(_fixed, self._real.close()))


def _fixed(part: Any) -> Any:
    if part.request is None:
        return part
    request = replace(part.request, stop_ids=(), max_entries=_FRAMES)
    return dataclasses.replace(part, request=request)


class _FixedHearing:
    """A transcription stream that outputs one sentence, at three words a second."""

    def __init__(self, real: Any):
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def add_tokens(self, step: Any, token_ids: Any) -> PartialTranscript:
        """See `izwi.request.input_stream.TranscriptionStream`."""
        heard: PartialTranscript = self.real.add_tokens(step, token_ids)
        words = HEARD.split()
        if not heard.is_final:
            words = words[: int(3 * (heard.end_s - heard.start_s))]
        return dataclasses.replace(heard, text=" ".join(words), stable="")
