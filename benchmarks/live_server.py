"""Serve live voice for `benchmarks.live`: embedded models, or published sizes at random weights.

Weights without training write and say nothing useful, so with a published size the transcriber
hears a given sentence and the chat model writes a given answer, a token a word, while both models
run for every token of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from benchmarks.chat import write_folder
from benchmarks.fixed_length import fix_lengths
from benchmarks.random_checkpoint import EMBEDDED, EMBEDDED_LISTENER, RandomBackend, folder_of
from izwi.allocator import settle
from izwi.async_engine import AsyncEngine
from izwi.config import EngineConfig
from izwi.engine import Engine
from izwi.input_stream import PartialTranscript
from izwi.registry import Registry
from izwi.runner.device import TorchBackend, torch_backend
from izwi_api.environment import read_settings
from izwi_api.http.app import create_app
from izwi_api.http.server import Server, server_config
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
_STEP_TOKENS = 6  # of a live transcription's step: the last words again, and those of 0.4 s
_FRAMES = 60


def main() -> None:
    """Serve until it is told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="embedded")
    parser.add_argument("--chat", help="folder or name of another chat model, for embedded")
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--streams", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        settings = read_settings({**os.environ, "IZWI_HOME": home})
        registry, backend = load(options, Path(home))
        config = EngineConfig(max_running=options.streams)
        if options.device == "cpu":
            config = EngineConfig(max_running=options.streams, kv_bytes=1 << 28)
        engine = AsyncEngine(Engine(registry.models, backend, config))
        app = create_app(engine, registry, settings)
        settle()
        served = server_config(app, "127.0.0.1", options.port, settings.pace.max_head_s)
        Server(served, app.state.izwi.drain, 0.0).run()


def load(options: argparse.Namespace, home: Path) -> tuple[Any, TorchBackend]:
    """Load the models of a size; those with random weights give what is written above."""
    speech, listening, chat = SIZES[options.size]
    backend = torch_backend(options.device, "auto")
    if options.size == "embedded":
        registry = Registry(backend)
        for name in (speech, listening):
            registry.load(name)
        registry.load(options.chat or chat, CHAT)
        return registry, backend
    random = RandomBackend(backend.ops)
    registry = Registry(random)
    for name in (speech, listening):
        registry.load(str(folder_of(name, home)), name)
    fix_lengths(registry, _FRAMES)
    (home / CHAT).mkdir()
    registry.load(str(write_folder(chat, home / CHAT)), CHAT)
    _fix_live(registry, speech, listening)
    return ScriptedRegistry(registry, CHAT, lambda _: ANSWER), random


def _fix_live(registry: Registry, speech: str, listening: str) -> None:
    """Fix what streamed speech and live transcriptions give."""
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
        """See `izwi.input_stream.TextStream`."""
        return list(map(_fixed, self._real.write(text)))

    def close(self) -> list[Any]:
        """See `izwi.input_stream.TextStream`."""
        return list(map(_fixed, self._real.close()))


def _fixed(part: Any) -> Any:
    if part.request is None:
        return part
    request = replace(part.request, stop_ids=(), max_entries=_FRAMES)
    return dataclasses.replace(part, request=request)


class _FixedHearing:
    """A transcription stream that hears one sentence, at three words a second."""

    def __init__(self, real: Any):
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def take(self, step: Any, token_ids: Any) -> PartialTranscript:
        """See `izwi.input_stream.TranscriptionStream`."""
        heard: PartialTranscript = self.real.take(step, token_ids)
        words = HEARD.split()
        if not heard.is_final:
            words = words[: int(3 * (heard.end_s - heard.start_s))]
        return dataclasses.replace(heard, text=" ".join(words), stable="")


if __name__ == "__main__":
    main()
