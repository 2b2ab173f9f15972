"""Chat before the real engine, over a checkpoint of random weights: nothing is faked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from izwi_api.http.app import create_app
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.serve.local_services import open_services
from tests.api.conftest import listening, wait_for
from tests.models.tiny_chat import write_tiny_chat

GREEDY = {"model": "chat", "temperature": 0.0, "max_tokens": 16}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("real")
    folder = write_tiny_chat(root / "chat")
    thinker = write_tiny_chat(root / "thinker", thinking="ALWAYS")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IZWI_HOME", str(root / "home"))
        services = open_services(
            [str(folder), str(thinker)], RuntimeOptions(device="cpu", dtype="float32")
        )
    app = create_app(services.engine, services.registry, services.settings)
    with listening(app) as port:
        yield f"http://127.0.0.1:{port}", services


@pytest.fixture
def sdk(served):
    with openai.OpenAI(base_url=f"{served[0]}/v1", api_key="none", max_retries=0) as client:
        yield client


def messages(*contents):
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(contents)]


def test_it_is_listed_with_its_task(sdk):
    assert [model.task for model in sdk.models.list()] == ["chat", "chat"]


def test_a_stream_says_what_the_whole_says(sdk):
    whole = sdk.chat.completions.create(messages=messages("tell me"), **GREEDY)
    pieces = sdk.chat.completions.create(messages=messages("tell me"), stream=True, **GREEDY)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == whole.choices[0].message.content != ""
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 16


def test_answers_do_not_depend_on_their_company(sdk):
    def ask(seed):
        answer = sdk.chat.completions.create(
            model="chat", messages=messages(f"question {seed}"), seed=seed, max_tokens=24
        )
        return answer.choices[0].message.content

    alone = [ask(seed) for seed in range(4)]
    assert len(set(alone)) == 4
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == alone


def test_the_next_turn_reads_only_what_is_new(sdk, served):
    def found():
        return served[1].engine.load["chat"]["prefix_positions_hit"]

    first = "a long question about the system and the user, and the rest of it"
    answer = sdk.chat.completions.create(messages=messages(first), **GREEDY)
    before = found()
    said = answer.choices[0].message.content
    sdk.chat.completions.create(messages=messages(first, said, "and?"), **GREEDY)
    assert found() - before >= answer.usage.prompt_tokens - 24


def test_a_model_that_always_thinks_says_so(sdk):
    ask = {"model": "thinker", "messages": messages("hm"), "temperature": 0.0, "max_tokens": 8}
    answer = sdk.chat.completions.create(**ask)
    assert answer.choices[0].message.content == ""
    assert answer.choices[0].message.reasoning_content
    assert answer.usage.completion_tokens_details.reasoning_tokens == 8
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.chat.completions.create(**ask, extra_body={"enable_thinking": False})
    assert refused.value.param == "enable_thinking"


def test_a_conversation_that_is_too_long(sdk):
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.chat.completions.create(messages=messages("word " * 2000), **GREEDY)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")


def test_who_leaves_frees_the_engine(sdk, served):
    stream = sdk.chat.completions.create(
        model="chat", messages=messages("tell me all"), temperature=0.0, stream=True
    )
    next(iter(stream))
    assert served[1].engine.load["chat"]["running"] == 1
    stream.close()
    wait_for(lambda: served[1].engine.load["chat"]["running"] == 0)
