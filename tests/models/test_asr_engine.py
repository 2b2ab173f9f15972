"""The recogniser in the engine: paged memory, chunked prompts and neighbours change nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from izwi.backends.torch.backend import torch_backend
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.speech import TranscriptionInput
from izwi.model.frontend import TranscriptionFrontend
from izwi.request.request import Reason
from izwi_models.qwen3_asr import FAMILY
from tests.models.loading import load_checkpoint
from tests.models.tiny_asr import waveform, write_tiny_asr

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "asr.npz")
CASES: list[dict[str, Any]] = json.loads(str(GOLDEN["cases"]))
BACKEND = torch_backend("cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> TranscriptionFrontend:
    torch.set_num_threads(1)
    folder = write_tiny_asr(tmp_path_factory.mktemp("tiny") / "asr")
    return load_checkpoint(FAMILY, folder, BACKEND)


def emitted(
    model: TranscriptionFrontend, cases: list[dict[str, Any]], **settings: int
) -> list[list[int]]:
    """What the engine emits for `cases`, of which one joins at every third step."""
    engine = Engine({"tiny": model.model}, BACKEND, EngineConfig(kv_bytes=1 << 22, **settings))
    ids: dict[str, list[int]] = {str(n): [] for n in range(len(cases))}
    waiting = list(enumerate(cases))
    step = 0
    while waiting or engine.has_work:
        if waiting and step % 3 == 0:
            n, case = waiting.pop(0)
            ask = TranscriptionInput(
                waveform(case["seconds"]),
                language=case["language"],
                context=case["context"],
                max_new_tokens=len(case["greedy"]),
            )
            engine.submit(model.frontend.prepare_transcription(str(n), "tiny", ask))
        for chunk in engine.step():
            assert chunk.error is None
            assert chunk.reason in (None, Reason.LENGTH)
            ids[chunk.request_id] += chunk.entries[:, 0].tolist()
        step += 1
    return list(ids.values())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"page_size": 4, "max_step_tokens": 29, "max_running": 8, "max_step_encodes": 1},
        {"max_running": 2},
    ],
    ids=["defaults", "small chunks", "two at a time"],
)
def test_the_engine_writes_the_references_ids(model, settings):
    assert emitted(model, CASES, **settings) == [case["greedy"] for case in CASES]
