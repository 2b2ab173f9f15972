"""A server loads models in one thread and steps in another, also while it serves."""

from __future__ import annotations

import platform
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi_models.qwen3_chat import FAMILY
from tests.backends.kinds import backend_of, each_and_ahead, each_backend, needs_mlx
from tests.backends.test_chat_engine import asks
from tests.models.loading import load_checkpoint
from tests.models.tiny_chat import UNTIED, write_tiny_chat


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return [write_tiny_chat(folder / "tied"), write_tiny_chat(folder / "untied", UNTIED)]


def answers(engine: Engine, model: Any, name: str) -> dict[str, list[int]]:
    got: dict[str, list[int]] = {}
    for request in asks(model.frontend):
        engine.submit(replace(request, model=name))
    while engine.has_work:
        for chunk in engine.step():
            assert chunk.error is None, chunk.error
            got.setdefault(chunk.request_id, []).extend(chunk.entries.ravel().tolist())
    return got


def elsewhere(work: Any) -> Any:
    """Run in a thread of its own, which has ended when this returns."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join(120)
    assert results, "the thread failed"
    return results[0]


@each_backend
def test_models_are_loaded_in_threads_that_are_gone(folders, backend) -> None:
    made = backend_of(backend)
    expected = [
        answers(_engine(m := load_checkpoint(FAMILY, f, made), made), m, "m") for f in folders
    ]

    def served() -> list[dict[str, list[int]]]:
        """The engine's thread: it was set up elsewhere, and a model comes while it runs."""
        with engine.own_stream():
            first = answers(engine, models[0], "m")
            models.append(elsewhere(lambda: load_checkpoint(FAMILY, folders[1], made)))
            engine.add("later", models[1].model)
            return [first, answers(engine, models[1], "later")]

    models = [elsewhere(lambda: load_checkpoint(FAMILY, folders[0], made))]
    engine = elsewhere(lambda: _engine(models[0], made))
    assert elsewhere(served) == expected


@each_backend
def test_a_model_is_loaded_while_another_runs(folders, backend) -> None:
    made = backend_of(backend)
    first = load_checkpoint(FAMILY, folders[0], made)
    expected = answers(_engine(first, made), first, "m")
    stop, loaded = threading.Event(), []

    def load() -> None:
        while not stop.is_set():
            loaded.append(load_checkpoint(FAMILY, folders[1], made))

    thread = threading.Thread(target=load)
    thread.start()
    try:
        while len(loaded) < 3 and thread.is_alive():
            assert answers(_engine(first, made), first, "m") == expected
    finally:
        stop.set()
        thread.join(120)
    assert len(loaded) >= 3
    assert answers(_engine(loaded[-1], made), loaded[-1], "m") != expected


@each_and_ahead
def test_a_step_leaves_nothing_to_compute(folders, backend) -> None:
    """What one thread leaves for later, another cannot compute: not even a part of a prompt."""
    made = backend_of(backend)
    model = load_checkpoint(FAMILY, folders[0], made)
    request = asks(model.frontend)[3]
    assert request.prompt.num_positions > 30
    expected = answers(_engine(model, made), model, "m")["3"]
    config = EngineConfig(page_size=4, kv_bytes=1 << 20, max_step_tokens=7, max_running=2)
    engine, got = Engine({"m": model.model}, made, config), []
    engine.submit(request)
    while engine.has_work:
        for chunk in elsewhere(engine.step):
            assert chunk.error is None, chunk.error
            got += chunk.entries.ravel().tolist()
    assert got == expected


_FAULTS = """
import resource
import mlx.core as mx
from izwi.backends.mlx.backend import mlx_backend
mlx_backend()
x = mx.ones((1 << 21,))
for count in (3, 10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        mx.eval([x + n for n in range(8)])
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@needs_mlx
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc returns memory at once")
def test_arrays_of_a_cpu_take_memory_that_earlier_ones_left() -> None:
    done = subprocess.run([sys.executable, "-c", _FAULTS], capture_output=True, check=True)
    pages_of_one = (4 << 21) // 4096
    assert int(done.stdout) < 4 * pages_of_one  # of 80 arrays


def _engine(model: Any, backend: Any) -> Engine:
    return Engine(
        {"m": model.model}, backend, EngineConfig(page_size=4, kv_bytes=1 << 20, max_models=2)
    )
