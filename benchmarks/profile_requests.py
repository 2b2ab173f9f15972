"""Trace one request of each kind: speech, transcription, alignment, chat.

    python -m benchmarks.profile_requests --device cuda --folder build/profile

Each kind runs once to warm up and once under `torch.profiler`. The engine is stepped in this
thread, so that one trace per kind has its Python functions, operations and kernels. Without
`--chat`, chat runs a tiny checkpoint with random weights: the operations are those of the published
checkpoints, the sizes are not.
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

from izwi.alignment import AlignmentModel
from izwi.audio.resample import resample
from izwi.backends.torch.backend import torch_backend
from izwi.chat import ChatInput, ChatMessage, Role
from izwi.config import EngineConfig
from izwi.engine import Engine
from izwi.inputs import AlignmentInput, SpeechInput, TranscriptionInput
from izwi.registry import Registry
from izwi.request import Request
from tests.models.tiny_chat import write_tiny_chat

SPEECH, TRANSCRIPTION, ALIGNMENT = "izwi-tiny-tts", "izwi-tiny-asr", "izwi-tiny-aligner"
TEXT = "Good morning."
SAMPLE_RATE = 16_000
OPENED_BY = "drop one on https://ui.perfetto.dev (nothing is uploaded) or chrome://tracing"


def run(engine: Engine, request: Request) -> np.ndarray:
    """Step the engine until a request has ended.

    Returns:
        Its sound, float32; empty for what has none.

    Raises:
        IzwiError: The request failed.
    """
    engine.submit(request)
    sound = [np.zeros(0, np.float32)]
    while engine.has_work:
        for chunk in engine.step():
            if chunk.error is not None:
                raise chunk.error
            if chunk.pcm is not None:
                sound.append(chunk.pcm)
    return np.concatenate(sound)


def requests_of(
    registry: Registry, chat: str, samples: np.ndarray
) -> dict[str, Callable[[str], Request]]:
    """Return what makes a request of each kind, by an id.

    Args:
        registry: Has the models.
        chat: The name of the one that chats.
        samples: (n,) float32 of speech at 16 kHz.
    """
    aligner = cast("AlignmentModel", registry.model(ALIGNMENT))
    hello = ChatInput((ChatMessage(Role.USER, "Hello."),), max_new_tokens=32)
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
    }


@contextmanager
def loaded(device: str, chat: str | None) -> Iterator[tuple[Registry, Engine, str]]:
    """Load the embedded checkpoints and one that chats; gives its name, too."""
    backend = torch_backend(device, "auto")
    registry = Registry(backend)
    with tempfile.TemporaryDirectory() as folder:
        source = chat or str(write_tiny_chat(Path(folder) / "tiny-chat"))
        *_, name = [registry.load(each) for each in (SPEECH, TRANSCRIPTION, ALIGNMENT, source)]
    yield registry, Engine(registry.models, backend, EngineConfig(kv_bytes=1 << 28)), name


def main(words: list[str] | None = None) -> None:
    """Write the traces, and print where they are and what opens them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--chat", help="folder, name or hub id of a chat checkpoint")
    parser.add_argument("--folder", type=Path, default=Path("build/profile"))
    parser.add_argument("--rows", type=int, default=12, help="lines of each table")
    options = parser.parse_args(words)
    options.folder.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU]
    if options.device.startswith("cuda"):
        activities.append(ProfilerActivity.CUDA)
    with loaded(options.device, options.chat) as (registry, engine, chat):
        speech = registry.speech(SPEECH)
        ask = SpeechInput(TEXT, voice="amber", seed=1)
        sound = run(engine, speech.prepare_speech("first", SPEECH, ask))
        samples = resample(sound, speech.sample_rate, SAMPLE_RATE)
        for kind, request in requests_of(registry, chat, samples).items():
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
