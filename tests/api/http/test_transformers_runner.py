"""`izwi serve --runner transformers` over HTTP: what transformers generates itself, and no more."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import pytest
import torch

from tests.api.conftest import wait_for
from tests.api.served import served
from tests.models.any_checkpoint import write_llama

pytestmark = pytest.mark.slow

NUM_PAGES, PAGE = 16, 256
LONGEST = NUM_PAGES * PAGE  # positions of the smallest cache that both models have here
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


def write_pair(folder):
    """Write a Llama, and the same one without an id that ends its answers."""
    model = write_llama(folder / "llama")
    path = folder / "llama" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": 1 << 16}))
    shutil.copytree(folder / "llama", folder / "endless")
    path = folder / "endless" / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": 9999}))
    return model


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The server, a client of it, and transformers' model and tokenizer."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("any")
    model = write_pair(folder)
    names = ("--model", str(folder / "llama"), "--model", str(folder / "endless"))
    # a page has 128 KiB
    with (
        served(folder, "--runner", "transformers", "--kv-mib", "4", *names) as server,
        httpx.Client(base_url=server.url, timeout=120) as client,
    ):
        tokenizer = AutoTokenizer.from_pretrained(folder / "llama")
        yield SimpleNamespace(client=client, model=model, tokenizer=tokenizer, server=server)


def body_of(text, **more):
    messages = [{"role": "user", "content": text}]
    return {"model": "llama", "messages": messages, "temperature": 0} | more


def ask(world, text="Hi there", **more):
    return world.client.post("/v1/chat/completions", json=body_of(text, **more))


def answer(world, text="Hi there", **more):
    """Return text, reason and usage of a whole answer."""
    response = ask(world, text, **more)
    assert response.status_code == 200, response.text
    whole = response.json()
    choice, usage = whole["choices"][0], whole["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    counts = usage["prompt_tokens"], usage["completion_tokens"]
    return choice["message"]["content"], choice["finish_reason"], counts


def streamed(world, text, **more):
    """Return the same of a streamed one, with the number of its pieces."""
    body = body_of(text, stream=True, stream_options={"include_usage": True}, **more)
    pieces, reasons, usage = [], [], None
    with world.client.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines.pop() == "data: [DONE]"
    for line in lines:
        chunk = json.loads(line.removeprefix("data: "))
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            pieces.append(choice["delta"].get("content") or "")
            reasons.append(choice["finish_reason"])
    counts = usage["prompt_tokens"], usage["completion_tokens"]
    return ("".join(pieces), reasons[-1], counts), sum(map(bool, pieces))


def expected(world, text, count):
    """Return the text of transformers' own greedy ids, their number, and that of the prompt."""
    turns = [{"role": "user", "content": text}]
    ids = world.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    prompt = torch.tensor([ids])
    made = world.model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=count
    )[0, len(ids) :].tolist()
    return world.tokenizer.decode(made, skip_special_tokens=True), len(made), len(ids)


@pytest.mark.parametrize("text", ["Hi there", "Why?", "Hé, who is it"])
def test_answers_are_those_of_generate(world, text):
    content, num_ids, num_prompt = expected(world, text, 40)
    assert num_ids == 40
    wanted = content, "length", (num_prompt, 40)
    assert answer(world, text, max_tokens=40) == wanted
    assert answer(world, text, max_completion_tokens=40, max_tokens=2) == wanted
    whole, num_pieces = streamed(world, text, max_tokens=40)
    assert whole == wanted
    assert num_pieces > 1


def test_an_answer_ends_where_the_model_ends_it(world):
    content, num_ids, num_prompt = expected(world, "Why?", 400)
    assert num_ids < 400  # it has drawn its end
    found, reason, (asked, answered) = answer(world, "Why?", max_tokens=400)
    assert (found, reason, asked) == (content, "stop", num_prompt)
    assert answered in (num_ids - 1, num_ids)
    assert streamed(world, "Why?", max_tokens=400)[0] == (found, reason, (asked, answered))


def test_stop_strings(world):
    content, *_ = expected(world, "Hi there", 40)
    # two letters that no earlier place has
    place = next(
        n
        for n in range(5, len(content))
        if (two := content[n : n + 2]).isascii() and len(two) == 2 and content.find(two) == n
    )
    stop = content[place : place + 2]
    found, reason, (_, answered) = answer(world, stop=["never", stop], max_tokens=40)
    assert (found, reason) == (content[:place], "stop")
    assert answered < 40
    assert streamed(world, "Hi there", stop=stop, max_tokens=40)[0][:2] == (found, reason)


def test_a_seed_gives_the_same_answer_again(world):
    drawn = {"temperature": 1.0, "top_p": 0.95, "max_tokens": 20}
    first = answer(world, seed=7, **drawn)
    assert answer(world, seed=7, **drawn) == first
    assert answer(world, seed=8, **drawn) != first


def test_the_list_of_models_tells_who_runs_them(world):
    listed = world.client.get("/v1/models").json()["data"]
    assert [(one["id"], one["task"], one["runner"]) for one in listed] == [
        ("llama", "chat", "transformers"),
        ("endless", "chat", "transformers"),
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [("tools", [TOOL]), ("response_format", SCHEMA), ("logprobs", True), ("min_p", 0.1)],
)
def test_what_it_lacks_is_refused(world, name, value):
    response = ask(world, **{name: value})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert error["message"] == f"a model that transformers runs has no {name}"


def running(world):
    lines = world.client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("izwi_engine_running{"))


def test_a_caller_that_leaves_frees_the_engine(world):
    body = body_of("Why?", model="endless", stream=True, max_tokens=LONGEST - 100)
    with world.client.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        for _ in range(4):
            next(lines)
        wait_for(lambda: running(world) == 1)
    content, *_ = expected(world, "Hi there", 8)
    assert answer(world, max_tokens=8)[0] == content
    wait_for(lambda: running(world) == 0)
    ended = 'gen_ai_request_model="endless",reason="aborted"} 1.0'
    wait_for(lambda: ended in world.client.get("/metrics").text)


def test_what_the_cache_cannot_hold_ends_nothing_else(world):
    """transformers' loop ends at the first request that outgrows its pages."""
    refused = ask(world, "a" * (LONGEST + 1))
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    words = "a" * (LONGEST - 60)
    _, reason, (asked, answered) = answer(world, words, model="endless", max_tokens=1000)
    assert (reason, asked + answered) == ("length", LONGEST)
    assert answer(world, max_tokens=8)[0] == expected(world, "Hi there", 8)[0]
    # two that fit alone, and not together
    half = [first * (LONGEST // 2 - 100) for first in "bc"]
    alone = [answer(world, text, model="endless", max_tokens=150) for text in half]
    with ThreadPoolExecutor(2) as threads:
        both = threads.map(lambda text: answer(world, text, model="endless", max_tokens=150), half)
        assert list(both) == alone
    metrics = world.client.get("/metrics").text
    assert 'izwi_restarts_total{process="engine",replica="0"} 0.0' in metrics


@pytest.mark.parametrize(
    "options",
    [
        ("--tensor-parallel", "2"),
        ("--manage-models",),
        ("--record", "all.jsonl"),
        ("--weights", "int8"),
        ("--kv-dtype", "int8"),
        ("--speculate", "ngram"),
        ("--policy", "fcfs"),
        ("--replicas", "2", "--prefill-replicas", "1"),
    ],
)
def test_options_that_only_izwi_has_are_refused(cli, options):
    refused = cli("serve", "--runner", "transformers", "--model", "any", *options, code=2)
    name = options[2] if len(options) > 2 else options[0]
    assert f"{name} needs izwi's own runner" in refused.stderr


def test_a_runner_has_a_known_name_and_a_model(cli):
    unknown = cli("serve", "--runner", "vllm", "--model", "any", code=2)
    assert "runner must be one of izwi, transformers, got 'vllm'" in unknown.stderr
    assert (
        "--runner transformers needs --model"
        in cli("serve", "--runner", "transformers", code=2).stderr
    )


def test_two_replicas_answer_as_one_does(tmp_path):
    """Long and short prompts together, and a caller that leaves."""
    write_pair(tmp_path)
    names = ("--model", str(tmp_path / "llama"), "--model", str(tmp_path / "endless"))
    options = ("--runner", "transformers", "--kv-mib", "4", "--replicas", "2")
    with (
        served(tmp_path, *options, "--max-queue-s", "20", *names) as server,
        httpx.Client(base_url=server.url, timeout=120) as client,
    ):
        world = SimpleNamespace(client=client)
        texts = ["Hi there", "a" * 2000, "Why?", "b" * 1500]
        alone = [answer(world, text, max_tokens=8) for text in texts]
        with ThreadPoolExecutor(4) as threads:
            together = threads.map(lambda text: answer(world, text, max_tokens=8), texts)
            assert list(together) == alone
        body = body_of("Why?", model="endless", stream=True, max_tokens=3000)
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            next(response.iter_lines())
        wait_for(lambda: running(world) == 0)
        lines = client.get("/metrics").text.splitlines()
        restarts = [
            line for line in lines if line.startswith('izwi_restarts_total{process="engine"')
        ]
        assert restarts
        assert all(line.endswith(" 0.0") for line in restarts)
