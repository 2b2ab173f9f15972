"""The aligner in the engine: chunks, neighbours, pauses and known prefixes change no time."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.speech import AlignmentInput
from izwi.model.capability import Capability
from izwi.request.request import Reason
from izwi_models.qwen3_aligner import FAMILY
from tests.engine.ahead import one_step_ahead
from tests.models.loading import Checkpoint, load_checkpoint
from tests.models.tiny_aligner import write_tiny_aligner
from tests.models.tiny_asr import waveform, write_tiny_asr

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "aligner.npz")
TAGGED: dict[str, list[str]] = json.loads(str(GOLDEN["tagged"]))
# Korean needs the list of stems, which test_aligner.py has
CASES: list[dict[str, Any]] = [
    case for case in json.loads(str(GOLDEN["cases"])) if case["language"] != "Korean"
]
BACKEND = torch_backend("cpu")
SMALL = {"page_size": 4, "max_step_tokens": 29, "max_running": 8, "max_step_encodes": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Checkpoint:
    torch.set_num_threads(1)
    folder = write_tiny_aligner(tmp_path_factory.mktemp("tiny") / "aligner")
    return load_checkpoint(FAMILY, folder, BACKEND)


@pytest.fixture(autouse=True)
def nagisa(monkeypatch) -> None:
    tagging = SimpleNamespace(tagging=lambda text: SimpleNamespace(words=TAGGED[text]))
    monkeypatch.setitem(sys.modules, "nagisa", tagging)


class Run:
    """An engine, what its requests have emitted, and how they ended."""

    def __init__(self, model: Checkpoint, **settings: int):
        config = EngineConfig(**{"kv_bytes": 1 << 23, **settings})
        self.model, self.engine = model, Engine({"tiny": model.model}, BACKEND, config)
        self.classes: dict[str, list[int]] = {}
        self.chunks: dict[str, int] = {}

    def submit(self, name: str, case: dict[str, Any]) -> None:
        ask = AlignmentInput(waveform(case["seconds"]), case["text"], case["language"])
        self.engine.submit(self.model.frontend.prepare_alignment(name, "tiny", ask))
        self.classes[name], self.chunks[name] = [], 0

    def step(self) -> None:
        for chunk in self.engine.step():
            assert chunk.error is None
            assert chunk.reason in (None, Reason.LENGTH)
            self.classes[chunk.request_id] += chunk.entries[:, 0].tolist()
            self.chunks[chunk.request_id] += 1

    def finish(self) -> None:
        while self.engine.has_work:
            self.step()

    @property
    def figures(self) -> dict[str, float]:
        return self.engine.load["tiny"]


@pytest.mark.parametrize(
    "settings", [{}, SMALL, {"max_running": 2}], ids=["defaults", "small chunks", "two at a time"]
)
def test_the_engine_names_the_references_classes(model, settings):
    run, waiting, step = Run(model, **settings), list(enumerate(CASES)), 0
    while waiting or run.engine.has_work:
        if waiting and step % 3 == 0:
            n, case = waiting.pop(0)
            run.submit(str(n), case)
        run.step()
        step += 1
    assert list(run.classes.values()) == [case["classes"] for case in CASES]


def test_one_pass_gives_all_times_at_once(model):
    run = Run(model)
    run.submit("a", CASES[1])
    run.finish()
    assert run.chunks["a"] == 1
    assert run.classes["a"] == CASES[1]["classes"]


@pytest.mark.parametrize("settings", [{}, SMALL], ids=["defaults", "small chunks"])
def test_launched_rows_that_draw_several_entries_are_waited_for(model, settings):
    run = Run(model, **settings)
    with one_step_ahead() as counts:
        for n, case in enumerate(CASES[:4]):
            run.submit(str(n), case)
        run.finish()
    assert list(run.classes.values()) == [case["classes"] for case in CASES[:4]]
    assert counts
    assert not any(counts), "no step is planned on entries in flight"


def test_known_audio_is_not_encoded_again_but_its_words_are_aligned(model):
    run = Run(model, page_size=4)
    run.submit("a", CASES[1])
    run.finish()
    run.submit("b", CASES[1])
    run.finish()
    assert run.classes["b"] == run.classes["a"] == CASES[1]["classes"]
    first_mark = CASES[1]["prompt"].index(305)
    assert run.figures["prefix_positions_hit"] >= first_mark - 4
    assert run.figures["prefix_positions_hit"] <= first_mark


@pytest.mark.parametrize("steps", [5, 12, 14])
def test_a_pause_loses_nothing(model, steps):
    run = Run(model, **SMALL)
    run.submit("a", CASES[1])
    for _ in range(steps):
        run.step()
    before = len(run.classes["a"])
    run.engine.pause("a")
    run.submit("b", CASES[2])
    run.finish()
    assert len(run.classes["a"]) == before
    assert run.classes["b"] == CASES[2]["classes"]
    run.engine.resume("a")
    run.finish()
    assert run.classes["a"] == CASES[1]["classes"]


def test_short_memory_takes_turns(model):
    run = Run(model, **SMALL | {"kv_bytes": 450_000})
    for n, case in enumerate(CASES[:3] * 2):
        run.submit(str(n), case)
    run.finish()
    assert list(run.classes.values()) == [case["classes"] for case in CASES[:3] * 2]


def test_the_registry_tells_an_aligner_from_a_recogniser(tmp_path):
    registry = Registry(BACKEND)
    registry.load(str(write_tiny_asr(tmp_path / "asr")))
    registry.load(str(write_tiny_aligner(tmp_path / "aligner")))
    tasks = [registry.model(name).capabilities[0] for name in registry.names()]
    assert tasks == [Capability.TRANSCRIBE, Capability.ALIGN]
    assert registry.default(Capability.ALIGN) == "aligner"
