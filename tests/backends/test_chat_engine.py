"""The engine over a tiny chat checkpoint, on every backend: the same loop, the same answers.

Greedy ids are torch's on every backend. Sampled ones are too, unless the noise of a draw falls
between two backends' borders of an id, some 1e-6 wide: these cases have none.
"""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.errors import InvalidRequest
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.model.layers import KVSpec
from izwi.request.request import Chunk, Request
from izwi.request.sequence import Sequence
from izwi.runner.batch import row_of
from izwi_models.qwen3_chat import FAMILY
from tests.backends.kinds import AHEAD, HAS_MLX, backend_of, each_and_ahead, each_backend
from tests.examples import examples
from tests.models.loading import load_checkpoint
from tests.models.tiny_chat import write_tiny_chat

TEXTS = ("the system", "what is the user?", "yes", "the stem of the term, and the user's system")
PAGE = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_chat(tmp_path_factory.mktemp("tiny") / "chat")


@lru_cache(maxsize=3)  # one of each kind; a model holds a process that renders its template
def loaded(folder: Path, backend: str) -> Any:
    return load_checkpoint(FAMILY, folder, backend_of(backend))


class Loop:
    """An engine over the checkpoint, and what each request got."""

    def __init__(self, folder: Path, backend: str, **config: Any):
        made = backend_of(backend)
        self.frontend, self.model = loaded(folder, backend)
        settings = {"page_size": PAGE, "kv_bytes": 1 << 20, **config}
        self.engine = Engine({"m": self.model}, made, EngineConfig(**settings))
        self.got: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[Any]] = {}

    def submit(self, *requests: Request) -> None:
        for request in requests:
            self.got[request.request_id], self.logprobs[request.request_id] = [], []
            self.engine.submit(request)

    def deliver(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            assert chunk.error is None, chunk.error
            self.got[chunk.request_id] += chunk.entries.ravel().tolist()
            if chunk.logprobs is not None:
                self.logprobs[chunk.request_id] += np.asarray(chunk.logprobs).ravel().tolist()

    def step(self) -> None:
        self.deliver(self.engine.step())

    def run(self, *requests: Request) -> dict[str, list[int]]:
        self.submit(*requests)
        for _ in range(4000):
            if not self.engine.has_work:
                return self.got
            self.step()
        raise AssertionError("the loop stands still")


def asks(frontend: Any, **more: Any) -> list[Request]:
    """Greedy, sampled, with penalties and bias, and sampled from few."""
    params: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.9, "seed": 11},
        {"temperature": 0.8, "presence_penalty": 0.4, "logit_bias": ((7, 2.0),), "seed": 6},
        {"temperature": 1.3, "top_k": 9, "top_p": 0.8, "repetition_penalty": 1.2, "seed": 2},
    ]
    return [
        frontend.prepare_chat(
            str(n),
            "m",
            ChatInput((ChatMessage(Role.USER, TEXTS[n]),), max_new_tokens=24, **one, **more),
        )
        for n, one in enumerate(params)
    ]


def alone(folder: Path, backend: str, **more: Any) -> dict[str, list[int]]:
    """What each request gives by itself, in an engine of its own."""
    found: dict[str, list[int]] = {}
    for n in range(len(TEXTS)):
        loop = Loop(folder, backend)
        found |= loop.run(asks(loop.frontend, **more)[n])
    return found


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, list[int]]:
    """Torch's answers, each alone."""
    found = alone(folder, "torch")
    assert len({tuple(ids) for ids in found.values()}) == len(TEXTS)
    assert sum(map(len, found.values())) > 60
    return found


@each_backend
def test_answers_are_those_of_torch_alone_and_together(folder, expected, backend) -> None:
    assert alone(folder, backend) == expected
    loop = Loop(folder, backend)
    assert loop.run(*asks(loop.frontend)) == expected


@each_and_ahead
def test_log_probabilities_are_returned(folder, backend) -> None:
    logprobs = []
    for name in ("torch", backend):
        loop = Loop(folder, name)
        loop.run(*asks(loop.frontend, logprobs=True, top_logprobs=2))
        logprobs.append(loop.logprobs)
    assert all(logprobs[0].values())
    for name, values in logprobs[0].items():
        np.testing.assert_allclose(logprobs[1][name], values, rtol=1e-4, atol=1e-4)


@each_backend
def test_logits_are_those_of_torch(folder, backend) -> None:
    ids = np.random.default_rng(0).integers(0, 256, 37).tolist()
    found = []
    for name in ("torch", backend):
        made = backend_of(name)
        (frontend, model), kept = load_checkpoint(FAMILY, folder, made), []
        request = frontend.prepare_chat("r", "m", ChatInput((), token_ids=tuple(ids)))
        sequence = Sequence(request, 0)
        kv = made.paged_kv(KVSpec.from_layers(model.layers), 12, PAGE, "auto")
        # what lies behind a sequence's end may be no number
        nans = np.full((12, made.page_bytes(kv.spec, PAGE, "auto") // 4), np.nan, np.float32)
        kv.write_pages(list(range(12)), nans.view(np.uint8))
        sequence.kv.pages = list(range(10))[::-1]
        for start, stop in ((0, 14), (14, 15), (15, 37)):  # in chunks, over the same pages
            rows = [row_of(sequence, start, stop)]
            hidden = model.run(model.embed(rows), kv.context(rows))
            model.draw(hidden, lambda logits, _, kept=kept: kept.append(logits) or logits[:, 0])
        found.append(np.concatenate([made.ops.numpy(logits) for logits in kept]))
    assert found[0].shape == (37, model.tracks[0].vocabulary)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-4)


@each_backend
def test_a_known_prefix_is_found_and_changes_nothing(folder, expected, backend) -> None:
    loop = Loop(folder, backend)
    loop.run(*asks(loop.frontend))
    before = loop.engine.load["m"]["prefix_positions_hit"]
    again = [replace(r, request_id=f"again {r.request_id}") for r in asks(loop.frontend)]
    loop.run(*again)
    assert loop.engine.load["m"]["prefix_positions_hit"] > before + 40
    assert all(loop.got[f"again {name}"] == ids for name, ids in expected.items())


@examples(6)
@given(seed=st.integers(0, 10_000), host_bytes=st.sampled_from([0, 1 << 14, 1 << 20]))
@pytest.mark.parametrize("backend", ["mlx", AHEAD] if HAS_MLX else ["torch"])
def test_whatever_happens_the_answers_are_the_same(
    folder, expected, backend, seed, host_bytes
) -> None:
    """Pauses, memory for a part of the requests, prompts in chunks, pages in lower tiers."""
    rng = random.Random(seed)
    page_bytes = 2 * 3 * 2 * 16 * 4 * PAGE * backend_of(backend).page_copies
    loop = Loop(
        folder,
        backend,
        kv_bytes=rng.randint(24, 60) * page_bytes,
        host_bytes=2 * host_bytes,
        max_running=rng.randint(1, 4),
        max_step_tokens=rng.randint(5, 64),
    )
    names = [request.request_id for request in asks(loop.frontend)]
    loop.submit(*asks(loop.frontend))
    for _ in range(rng.randint(0, 40)):
        action = rng.choice(("step", "step", "pause", "resume"))
        if action == "step":
            loop.step()
        else:
            getattr(loop.engine, action)(rng.choice(names))
    for name in names:
        loop.engine.resume(name)
    assert loop.run() == expected


@each_and_ahead
def test_a_row_that_fails_fails_alone(folder, expected, backend, monkeypatch) -> None:
    loop = Loop(folder, backend)
    embed, requests = loop.model.embed, asks(loop.frontend)

    def poisoned(rows: Any) -> Any:
        if any(row.request.request_id == "2" for row in rows):
            raise RuntimeError("poisoned row")
        return embed(rows)

    monkeypatch.setattr(loop.model, "embed", poisoned)
    loop.submit(*requests)
    failed = []
    while loop.engine.has_work:
        for chunk in loop.engine.step():
            failed += [chunk.request_id] if chunk.error is not None else []
            if chunk.error is None:
                loop.deliver([chunk])
    assert failed == ["2"]
    assert {n: loop.got[n] for n in "013"} == {n: expected[n] for n in "013"}


@each_backend
def test_half_precision_answers_too(folder, backend) -> None:
    """Two bytes a number; the ids are the backend's own, the same alone and together."""
    made = backend_of(backend, "bfloat16")
    answers = []
    for at_once in (True, False):
        frontend, model = load_checkpoint(FAMILY, folder, made)
        engine = Engine({"m": model}, made, EngineConfig(page_size=PAGE, kv_bytes=1 << 20))
        assert engine.load["m"]["page_bytes"] == 2 * 3 * 2 * 16 * 2 * PAGE
        got: dict[str, list[int]] = {}
        for request in asks(frontend):
            engine.submit(request)
            while not at_once and engine.has_work:
                _add_step(engine, got)
        while engine.has_work:
            _add_step(engine, got)
        answers.append(got)
    assert sum(map(len, answers[0].values())) > 60
    if backend == "mlx" and "cpu" in made.library:  # elsewhere products round by their batch
        assert answers[0] == answers[1]


def _add_step(engine: Engine, got: dict[str, list[int]]) -> None:
    for chunk in engine.step():
        assert chunk.error is None
        got.setdefault(chunk.request_id, []).extend(chunk.entries.ravel().tolist())


@pytest.mark.skipif(not HAS_MLX, reason="mlx is not installed")
def test_what_mlx_cannot_do_is_refused_at_the_start() -> None:
    from izwi.backends.mlx.backend import mlx_backend

    for asked in ({"dtype": "int3"}, {"weights": "fp8"}, {"attention": "triton"}):
        with pytest.raises(InvalidRequest, match=next(iter(asked.values()))):
            mlx_backend(**asked)
