"""Trace one request of each kind: speech, transcription, alignment, chat, conversation.

    python -m benchmarks.profile_requests --device cuda --folder build/profile

Each kind runs once to warm up and once under `torch.profiler`. The engine is stepped in this
thread, so that one trace per kind has its Python functions, operations and kernels. The
conversation is speech to speech. Without `--chat` and `--conversation`, these two kinds run tiny
checkpoints with random weights: the operations are those of the published checkpoints, the sizes
are not.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import numpy as np
from torch.profiler import ProfilerActivity, profile

from izwi.audio.resample import resample
from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.inputs.conversation import AudioContent, ConversationInput, SpokenTurn
from izwi.inputs.speech import AlignmentInput, SpeechInput, TranscriptionInput
from izwi.model.alignment import AlignmentFrontend
from izwi.request.request import Request
from tests.models.tiny_chat import write_tiny_chat
from tests.models.tiny_lfm2_audio import write_tiny_lfm2_audio

SPEECH, TRANSCRIPTION, ALIGNMENT = "izwi-tiny-tts", "izwi-tiny-asr", "izwi-tiny-aligner"
TEXT = "Good morning."
SAMPLE_RATE = 16_000
OPENED_BY = "open them at https://ui.perfetto.dev (nothing is uploaded) or in chrome://tracing"


def run(engine: Engine, request: Request) -> np.ndarray:
    """Step the engine until a request has ended.

    Returns:
        Its audio, float32; empty if the request has no audio.

    Raises:
        IzwiError: The request failed.
    """
    engine.submit(request)
    audio = [np.zeros(0, np.float32)]
    while engine.has_work:
        for chunk in engine.step():
            if chunk.error is not None:
                raise chunk.error
            if chunk.pcm is not None:
                audio.append(chunk.pcm)
    return np.concatenate(audio)


def requests_of(
    registry: Registry, chat: str, conversation: str, samples: np.ndarray
) -> dict[str, Callable[[str], Request]]:
    """Return a function for each kind that prepares a request with a given id.

    Args:
        registry: The loaded models.
        chat: Name of the chat model.
        conversation: Name of the speech-to-speech model.
        samples: (n,) float32 of speech at 16 kHz.
    """
    aligner = cast("AlignmentFrontend", registry.model(ALIGNMENT))
    hello = ChatInput((ChatMessage(Role.USER, "Hello."),), max_new_tokens=32)
    spoken = ConversationInput(
        (SpokenTurn(Role.USER, (AudioContent(samples),)),), max_new_tokens=32
    )
    return {
        "speech": lambda name: registry.speech(SPEECH).prepare_speech(
            name, SPEECH, SpeechInput(TEXT, voice="amber", seed=1)
        ),
        "transcription": lambda name: registry.transcription(TRANSCRIPTION).prepare_transcription(
            name, TRANSCRIPTION, TranscriptionInput(samples)
        ),
        "alignment": lambda name: aligner.prepare_alignment(
            name, ALIGNMENT, AlignmentInput(samples, TEXT)
        ),
        "chat": lambda name: registry.chat(chat).prepare_chat(name, chat, hello),
        "conversation": lambda name: registry.conversation(conversation).prepare_conversation(
            name, conversation, spoken
        ),
    }


@contextmanager
def loaded(
    device: str, chat: str | None, conversation: str | None
) -> Iterator[tuple[Registry, Engine, str, str]]:
    """Load the embedded checkpoints, a chat model and a speech-to-speech model.

    Args:
        device: Device of the models.
        chat: Folder, name or hub id; None for a tiny checkpoint with random weights.
        conversation: The same for speech to speech.

    Yields:
        The models, an engine, and the names of the last two models.
    """
    backend = torch_backend(device, "auto")
    registry = Registry(backend)
    with tempfile.TemporaryDirectory() as folder:
        chat = chat or str(write_tiny_chat(Path(folder) / "tiny-chat"))
        conversation = conversation or str(write_tiny_lfm2_audio(Path(folder) / "tiny-lfm2"))
        sources = (SPEECH, TRANSCRIPTION, ALIGNMENT, chat, conversation)
        *_, chat, conversation = [registry.load(source) for source in sources]
    engine = Engine(registry.models, backend, EngineConfig(kv_bytes=1 << 28))
    yield registry, engine, chat, conversation


def main(words: list[str] | None = None) -> None:
    """Write the traces, and print where they are and what opens them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu, or cuda for its kernels, too")
    parser.add_argument("--chat", help="folder, name or hub id of a chat checkpoint")
    parser.add_argument(
        "--conversation", help="folder, name or hub id of a speech-to-speech checkpoint"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("build/profile"), help="folder for the traces"
    )
    parser.add_argument("--rows", type=int, default=12, help="lines of each printed table")
    options = parser.parse_args(words)
    options.folder.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU]
    if options.device.startswith("cuda"):
        activities.append(ProfilerActivity.CUDA)
    with loaded(options.device, options.chat, options.conversation) as opened:
        registry, engine, chat, conversation = opened
        speech = registry.speech(SPEECH)
        ask = SpeechInput(TEXT, voice="amber", seed=1)
        audio = run(engine, speech.prepare_speech("first", SPEECH, ask))
        samples = resample(audio, speech.sample_rate, SAMPLE_RATE)
        for kind, request in requests_of(registry, chat, conversation, samples).items():
            run(engine, request(f"{kind}, warm-up"))
            with profile(activities=activities, with_stack=True) as profiler:
                run(engine, request(kind))
            path = options.folder / f"{kind}.json.gz"
            profiler.export_chrome_trace(str(path))
            order = f"self_{activities[-1].name.lower()}_time_total"
            print(f"\n{kind}: {path}")
            print(profiler.key_averages().table(sort_by=order, row_limit=options.rows))
    print(f"\n{options.folder}/*.json.gz: {OPENED_BY}")


if __name__ == "__main__":
    main()
