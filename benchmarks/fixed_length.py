"""Speech of one length, so that what a step costs is all that differs."""

from __future__ import annotations

from dataclasses import replace

from izwi.model import SpeechModel
from izwi.request import Request, SpeechInput

FRAMES = "BENCHMARK_FRAMES"  # environment variable: frames of all that a server's process says


def fix_length(model: SpeechModel, frames: int) -> None:
    """Let everything that the model is asked to say last so many frames."""
    prepare = model.prepare_speech

    def fixed(request_id: str, name: str, ask: SpeechInput) -> Request:
        request = prepare(request_id, name, ask)
        return replace(request, min_entries=frames + 1, max_entries=frames)

    model.prepare_speech = fixed  # type: ignore[method-assign]
