"""An answer that follows a grammar resumes from its log without a change."""

from __future__ import annotations

import json
import threading

import msgspec
import numpy as np
import pytest
import torch

from izwi.backends.torch.backend import torch_backend
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.inputs.grammar import compile_grammar
from izwi.request.log import Log
from izwi.request.request import Reason
from izwi.sampling import grammars
from izwi.sandbox import grammar_check
from izwi_models.qwen3_chat import FAMILY
from izwi_models.qwen3_chat.prompt import ChatPrompt
from tests.engine.follower import PAGE, follow, messages_of_steps, runner_of
from tests.models.loading import load_checkpoint
from tests.models.tiny_chat import write_tiny_chat

BACKEND = torch_backend("cpu")
SAID = ChatMessage(Role.USER, "tell me")
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 20}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.set_num_threads(1)
    return load_checkpoint(
        FAMILY, write_tiny_chat(tmp_path_factory.mktemp("tiny") / "chat"), BACKEND
    )


def request(model, name="r", seed=3, **more):
    ask = ChatInput(
        (SAID,),
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        seed=seed,
        response_schema=json.dumps(SCHEMA),
        **more,
    )
    return model.frontend.prepare_chat(name, "tiny", ask)


def checked(request, **more):
    grammar = msgspec.structs.replace(request.grammar, is_checked=True, **more)
    return msgspec.structs.replace(request, grammar=grammar)


def engine_of(model, **settings):
    return Engine({"tiny": model.model}, BACKEND, EngineConfig(kv_bytes=1 << 22, **settings))


def run(engine, steps=10**6):
    """Ids by request, and those that have ended."""
    ids, reasons = {}, {}
    while engine.has_work and steps:
        for chunk in engine.step():
            assert chunk.error is None, chunk.error
            ids.setdefault(chunk.request_id, []).extend(chunk.entries[:, 0].tolist())
            if chunk.reason is not None:
                reasons[chunk.request_id] = chunk.reason
        steps -= 1
        if not any(ids.values()):  # it is still being compiled
            steps += 1
    return ids, reasons


@pytest.fixture(scope="module")
def undisturbed(model):
    engine = engine_of(model)
    engine.submit(request(model))
    ids, reasons = run(engine)
    assert reasons["r"] is Reason.STOP
    reader = model.frontend.open_answer(request(model))
    said = reader.read(ids["r"]).content + reader.close().content
    assert json.loads(said).keys() == {"a", "b"}
    return ids["r"]


@pytest.mark.parametrize("known", [0, 1, 7])
def test_another_engine_goes_on_from_the_log(model, undisturbed, known):
    engine = engine_of(model)
    log = Log(np.array(undisturbed[:known], np.int64).reshape(-1, 1))
    engine.submit(request(model), log)
    assert run(engine)[0]["r"] == undisturbed[known:]


def test_a_step_sent_elsewhere_has_the_masks(model):
    """Who runs it has no grammar to follow."""
    with messages_of_steps() as steps:
        engine = engine_of(model, page_size=PAGE)
        engine.submit(request(model))
        engine.submit(request(model, "other", seed=8))
        run(engine)
    follower = runner_of(model.model, EngineConfig(kv_bytes=1 << 22, page_size=PAGE))
    found = follow(follower, ChatPrompt, [frames for frames, _ in steps])
    assert found == [drawn for _, drawn in steps]
    assert len(found) > 20


def test_a_pause_changes_nothing(model, undisturbed):
    engine = engine_of(model)
    engine.submit(request(model))
    ids = run(engine, steps=4)[0].get("r", [])
    engine.pause("r")
    engine.submit(request(model, "other", seed=8, max_new_tokens=5))
    run_other = 0
    while run_other < 5:
        run_other += sum(len(chunk.entries) for chunk in engine.step())
    engine.resume("r")
    assert ids + run(engine)[0]["r"] == undisturbed


def test_pages_that_went_to_others_change_nothing(model, undisturbed):
    engine = engine_of(model, max_running=1, page_size=4)
    engine.submit(request(model))
    engine.submit(request(model, "other", seed=8))
    assert run(engine)[0]["r"] == undisturbed


def test_a_draw_looks_at_penalties_and_the_grammar(model):
    engine = engine_of(model)
    more = {"presence_penalty": 2.0, "min_p": 0.01, "logit_bias": ((65, 5.0),)}
    for seed in range(3):
        engine.submit(request(model, str(seed), seed=seed, **more))
    ids, reasons = run(engine)
    assert set(reasons.values()) == {Reason.STOP}
    for tokens in ids.values():
        reader = model.frontend.open_answer(request(model))
        json.loads(reader.read(tokens).content + reader.close().content)


def test_a_grammar_that_no_server_has_checked_is_compiled_elsewhere_first(model, monkeypatch):
    monkeypatch.setattr(grammar_check, "CPU_LIMIT_S", 0.2)
    engine = engine_of(model)
    schema = {"allOf": [{"type": "integer", "multipleOf": n} for n in (2, 3, 5, 7, 11, 13, 17)]}
    ask = ChatInput((ChatMessage(Role.USER, "a"),), response_schema=json.dumps(schema))
    engine.submit(model.frontend.prepare_chat("r", "tiny", ask))
    compiled = []
    monkeypatch.setattr(grammars, "compile_grammar", lambda *what: compiled.append(what))
    chunks = []
    while engine.has_work:
        chunks += engine.step()
    assert chunks[-1].reason is Reason.ERROR
    assert "too expensive" in str(chunks[-1].error)
    assert not compiled


def test_a_request_that_ended_is_not_compiled(model, monkeypatch):
    engine = engine_of(model)
    entered, leave = threading.Event(), threading.Event()
    compiled = []

    def compile_slowly(tokenizer, text):
        compiled.append(text)
        entered.set()
        leave.wait(60)
        return compile_grammar(tokenizer, text)

    monkeypatch.setattr(grammars, "compile_grammar", compile_slowly)
    for name in ("a", "b", "c"):
        engine.submit(checked(request(model, name)))
    entered.wait(60)
    engine.abort("b")
    leave.set()
    ids, reasons = run(engine)
    assert len(compiled) == 2
    assert {*ids} == {*reasons} == {"a", "c"}


def test_slow_grammars_wait_elsewhere(model, monkeypatch):
    engine = engine_of(model)
    entered, leave = threading.Event(), threading.Event()

    def compile_slowly(tokenizer, text):
        if "slow" in text:
            entered.set()
            leave.wait(60)
        return compile_grammar(tokenizer, text)

    monkeypatch.setattr(grammars, "compile_grammar", compile_slowly)
    slow = checked(request(model, "slow"), text='start: "slow"', is_slow=True)
    engine.submit(slow)
    entered.wait(60)
    engine.submit(checked(request(model, "quick")))
    reasons = {}
    while "quick" not in reasons:
        reasons |= {chunk.request_id: chunk.reason for chunk in engine.step() if chunk.reason}
    assert "slow" not in reasons
    leave.set()
    assert run(engine)[1] == {"slow": Reason.STOP}
