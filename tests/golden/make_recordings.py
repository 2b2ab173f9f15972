"""Make the golden recordings: python -m tests.golden.make_recordings [folder]

Run it after a checkpoint was trained anew, or after what a CPU rounds has changed. Each request is
recorded alone, on one thread of a CPU in float32. The clips are our own speech in steps of 1/128,
which keeps the files small.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import soxr
import torch

from izwi.arrays import Float32
from izwi.backends.torch.backend import TorchBackend, torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.speech import ReferenceClip, SpeechInput, TextMode, TranscriptionInput
from izwi.recording.recorder import RequestRecorder, platform_of
from izwi.request.request import Request

RECORDINGS = Path(__file__).parent / "recordings"
SPEAKER, LISTENER = "izwi-tiny-tts", "izwi-tiny-asr"
LONG = (
    "The train leaves at seven in the morning. She put the book on the table near the window. "
    "I think the weather will be warm tomorrow."
)


def loaded() -> tuple[TorchBackend, Registry]:
    """The embedded checkpoints as traces are recorded and replayed in the tests."""
    backend = torch_backend("cpu", "float32")
    registry = Registry(backend)
    for name in (SPEAKER, LISTENER):
        registry.load(name)
    torch.set_num_threads(1)
    return backend, registry


def run_alone(engine: Engine, request: Request, recorder: RequestRecorder | None = None) -> Float32:
    """Run one request to its end, observed by the recorder; return its audio."""
    engine.submit(request)
    if recorder:
        recorder.submitted(request)
    audio, ended = [np.zeros(0, np.float32)], False
    while not ended:
        for chunk in engine.step():
            assert chunk.error is None, chunk.error
            if recorder:
                recorder.chunk(chunk)
            if chunk.pcm is not None:
                audio.append(chunk.pcm)
            ended = ended or chunk.reason is not None
    return np.concatenate(audio)


def coarse(samples: Float32) -> Float32:
    """Samples in steps of 1/128."""
    return (np.rint(samples * 128) / 128).astype(np.float32)


def speech_asks(registry: Registry, clip: Float32) -> list[SpeechInput]:
    """Greedy and sampled, both text modes, a voice followed by clip, a long text in pieces."""
    pieces = registry.speech(SPEAKER).split_text(LONG)
    return [
        SpeechInput("The house is near the river.", voice="amber", temperature=0.0),
        SpeechInput("Could you send me the letter?", voice="dorian", seed=7),
        SpeechInput("Good morning.", text_mode=TextMode.STREAMING, seed=-3, top_k=8, top_p=0.9),
        SpeechInput("It is warm.", voice=ReferenceClip(clip), seed=11, max_new_tokens=24),
        *(SpeechInput(piece, voice="basil", seed=20 + n) for n, piece in enumerate(pieces)),
    ]


def transcription_asks(said: Iterable[Float32]) -> list[TranscriptionInput]:
    """Speech of ours with and without a language, drawn at random, and a tone."""
    at_16k = [coarse(soxr.resample(audio, 24_000, 16_000).astype(np.float32)) for audio in said]
    tone = coarse(0.3 * np.sin(np.arange(8_000, dtype=np.float32) * 0.1))
    return [
        TranscriptionInput(at_16k[0]),
        TranscriptionInput(at_16k[1], language="English", temperature=0.6, seed=5),
        TranscriptionInput(tone, context="music", max_new_tokens=12),
    ]


def record(folder: Path) -> None:
    backend, registry = loaded()
    engine = Engine(registry.models, backend, EngineConfig())
    speaker, listener = registry.speech(SPEAKER), registry.transcription(LISTENER)

    def say(text: str) -> Float32:
        ask = SpeechInput(text, voice="clara", temperature=0.0)
        return run_alone(engine, speaker.prepare_speech("clip", SPEAKER, ask))

    said = [say("We can meet on Friday."), say("The water is cold.")]
    clip = coarse(said[1][:24_000])
    asks = {
        "speech": [
            speaker.prepare_speech(f"s{n}", SPEAKER, ask)
            for n, ask in enumerate(speech_asks(registry, clip))
        ],
        "transcription": [
            listener.prepare_transcription(f"t{n}", LISTENER, ask)
            for n, ask in enumerate(transcription_asks(said))
        ],
    }
    folder.mkdir(exist_ok=True)
    platform = platform_of(backend)
    for name, requests in asks.items():
        path = folder / f"{name}.jsonl"
        path.unlink(missing_ok=True)
        recorder = RequestRecorder(path, registry, platform)
        for request in requests:
            run_alone(engine, request, recorder)
        recorder.close()
        assert recorder.num_lines == len(requests), f"{path} is not complete"
        path.chmod(0o644)
        print(f"{path}: {len(requests)} requests, {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    record(Path(sys.argv[1]) if len(sys.argv) > 1 else RECORDINGS)
