"""Models that izwi has no family for: what transformers generates, through izwi's engine thread."""

from __future__ import annotations

import pytest
import torch

from izwi.checkpoints.registry import Registry, family_of
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.errors import CheckpointError, InvalidRequest, UnsupportedParameter
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.request.request import Reason
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.serve.local_services import open_engine
from tests.models.any_checkpoint import END, write_llama, write_mamba

RUNTIME = RuntimeOptions("cpu", "float32", runner="transformers")


def ask(text="Hi there", **more):
    return ChatInput((ChatMessage(Role.USER, text),), **{"temperature": 0.0} | more)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")
    models = {"llama": write_llama(folder / "llama"), "mamba": write_mamba(folder / "mamba")}
    return folder, models


@pytest.fixture
def frontend(folders):
    registry = Registry(runner="transformers")
    registry.load(str(folders[0] / "llama"))
    return registry.chat("llama")


def test_prompt_is_that_of_transformers(folders, frontend):
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(folders[0] / "llama")
    turns = [{"role": "user", "content": "Hé, there"}, {"role": "assistant", "content": "Yes."}]
    messages = tuple(ChatMessage(Role(turn["role"]), turn["content"]) for turn in turns)
    request = frontend.prepare_chat("r", "llama", ChatInput(messages))
    wanted = reference.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    assert request.prompt.token_ids.tolist() == wanted
    assert request.stop_ids == (256,)
    assert request.sampling.temperature == 0.0  # as `generate` without a generation_config.json


def test_control_tokens_of_a_caller_are_text(frontend):
    ids = frontend.prepare_chat("r", "llama", ask(f"Hi{END}")).prompt.token_ids.tolist()
    assert ids.count(256) == 1


def test_what_transformers_lacks_is_refused(frontend):
    for more in ({"logprobs": True}, {"min_p": 0.1}, {"presence_penalty": 1.0}, {"tools": "[{}]"}):
        with pytest.raises(UnsupportedParameter) as refused:
            frontend.prepare_chat("r", "llama", ask(**more))
        assert refused.value.param == next(iter(more))


def test_answer_is_spelled_byte_by_byte(frontend):
    request = frontend.prepare_chat("r", "llama", ask())
    reader = frontend.open_answer(request)
    ids = frontend._template.tokenizer.encode("é…")
    assert "".join(reader.read([index]).content for index in ids) == "é…"


def test_izwi_reads_such_a_checkpoint_by_no_family_of_its_own(folders):
    with pytest.raises(CheckpointError, match="model_type 'llama'"):
        family_of(folders[0] / "llama")
    with pytest.raises(InvalidRequest, match="there is no runner 'vllm'"):
        family_of(folders[0] / "llama", "vllm")


@pytest.fixture(scope="module")
def opened(folders):
    folder, models = folders
    sources = [str(folder / name) for name in models]
    registry, backend, engine = open_engine(sources, RUNTIME, EngineConfig())
    assert backend is None
    return registry, engine, models


@pytest.fixture
async def running(opened):
    registry, stepped, models = opened
    engine = AsyncEngine(stepped)
    if not hasattr(stepped, "was_started"):
        engine.start()
        stepped.was_started = engine
    return registry, stepped.was_started, models


async def ids_of(answer):
    chunks = [chunk async for chunk in answer]
    ids = [index for chunk in chunks for index in chunk.entries[:, 0].tolist()]
    return ids, chunks[-1].reason


def greedy(model, request, count):
    prompt = torch.tensor([request.prompt.token_ids.tolist()])
    ids = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=count
    )
    return ids[0, prompt.shape[1] :].tolist()


@pytest.mark.slow
async def test_ids_seeds_stops_pauses_and_aborts(running):
    """One test, because each engine loads transformers' loops anew."""
    registry, engine, models = running
    for name, model in models.items():
        front = registry.chat(name)

        def prepared(place, front=front, name=name, **more):
            return front.prepare_chat(f"{name}-{place}", name, ask(**more))

        # greedy ids are those of `generate`, also beside others
        several = [
            prepared(n, text=text, max_new_tokens=12) for n, text in enumerate(("Hi", "Why?"))
        ]
        answers = engine.submit_all(several)
        for request, answer in zip(several, answers, strict=True):
            assert await ids_of(answer) == (greedy(model, request, 12), Reason.LENGTH)
        # a stop id ends the answer, and is not part of it
        wanted = greedy(model, several[0], 12)
        stop = wanted[3]
        stopping = type(several[0])(
            *("s", name, several[0].prompt), max_entries=12, stop_ids=(stop,)
        )
        ids, reason = await ids_of(engine.submit(stopping))
        assert (ids, reason) == (wanted[: wanted.index(stop)], Reason.STOP)
        # the same seed gives the same answer, also beside others
        drawn = {"temperature": 1.0, "top_k": 0, "max_new_tokens": 12}
        alone, _ = await ids_of(engine.submit(prepared("a", seed=5, **drawn)))
        pair = [prepared("b", seed=5, **drawn), prepared("c", seed=6, **drawn)]
        first, second = [await ids_of(answer) for answer in engine.submit_all(pair)]
        assert first[0] == alone
        assert second[0] != alone
        # a paused answer goes on where it was, and one that is left ends
        paused = prepared("p", max_new_tokens=12)
        answer = engine.submit(paused)
        answer.pause()
        answer.resume()
        assert (await ids_of(answer))[0] == greedy(model, paused, 12)
        async with engine.submit(prepared("x", max_new_tokens=300)) as answer:
            await anext(answer)
        assert engine.load[name]["weight_bytes"] > 0
    await engine.stop()
    assert not engine.alive
