"""The engine over transformers without its loops: what waits too long, and which loop is chosen."""

from __future__ import annotations

import numpy as np
import pytest

from izwi.config import EngineConfig
from izwi.errors import Overloaded
from izwi.request.request import Reason, Request
from izwi_models.qwen3_chat.prompt import ChatPrompt

pytest.importorskip("psutil")  # which transformers' batching needs
from izwi_models.borrowed_chat import engine as borrowed
from izwi_models.borrowed_chat import generators
from izwi_models.borrowed_chat.engine import TransformersEngine
from izwi_models.borrowed_chat.generators import Output


class SlowGenerator:
    """Generates what it is told, when it is told."""

    is_alive, max_positions = True, None

    def __init__(self):
        self.jobs, self.cancelled, self.ready = [], [], []

    def add(self, job):
        self.jobs.append(job)

    def cancel(self, key):
        self.cancelled.append(key)

    def outputs(self, timeout_s):
        ready, self.ready = self.ready, []
        return ready


def request(name, priority=0):
    prompt = ChatPrompt(np.array([1, 2, 3], np.int64), False)
    return Request(name, "m", prompt, max_entries=4, priority=priority)


def test_a_request_that_waits_too_long_is_refused(monkeypatch):
    now_s = 100.0
    monkeypatch.setattr(borrowed.time, "monotonic", lambda: now_s)
    generator = SlowGenerator()
    engine = TransformersEngine({"m": generator}, {}, EngineConfig(max_wait_s=5.0))
    for one in (request("begun"), request("late"), request("idle", priority=-1)):
        engine.submit(one)
    begun, late, _ = (job.key for job in generator.jobs)
    generator.ready.append(Output(begun, [7], False))
    assert [chunk.request_id for chunk in engine.step()] == ["begun"]
    now_s = 106.0
    engine.submit(request("new"))
    (chunk,) = engine.step()
    assert (chunk.request_id, chunk.reason) == ("late", Reason.ERROR)
    assert isinstance(chunk.error, Overloaded)
    assert "within 5 s" in str(chunk.error)
    assert generator.cancelled == [late]
    generator.ready.append(Output(late, [1], False))  # which may still come
    assert engine.step() == []


class Model:
    """A model whose loop fails with some attentions."""

    class Config:
        _attn_implementation = "sdpa"

    def __init__(self):
        self.config = self.Config()

    def set_attn_implementation(self, name):
        self.config._attn_implementation = name


@pytest.mark.parametrize(("fails", "kind"), [({True}, "Loop"), ({True, False}, "OneByOne")])
def test_without_flash_attention_requests_are_still_batched(monkeypatch, fails, kind):
    """Flash attention takes no float32, and its kernels may be a download."""
    tried = []

    class Loop:
        def __init__(self, model, kv_bytes, share, *, switches_to_flash):
            tried.append((switches_to_flash, model.config._attn_implementation))
            self.fails = switches_to_flash in fails
            model.set_attn_implementation("flash_attention_2" if switches_to_flash else "sdpa")

        def start(self):
            pass

        def stop(self):
            pass

    monkeypatch.setattr(generators, "Batched", Loop)
    monkeypatch.setattr(generators, "_probed", lambda loop: "no float32" if loop.fails else None)
    model = Model()
    found = generators.open_generator(model, 0, 0.5)
    assert type(found).__name__ == kind
    assert tried == [(True, "sdpa"), (False, "sdpa")]
    assert model.config._attn_implementation == "sdpa"
