"""Chat with the real engine and a checkpoint of random weights: nothing is faked."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from tests.api.conftest import wait_for
from tests.api.in_process import serving
from tests.models.tiny_chat import write_tiny_chat

GREEDY = {"model": "chat", "temperature": 0.0, "max_tokens": 16}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("real")
    folder = write_tiny_chat(root / "chat")
    thinker = write_tiny_chat(root / "thinker", thinking="ALWAYS")
    with serving(root / "home", folder, thinker) as served:
        yield served


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


def test_answers_do_not_depend_on_the_batch(sdk):
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


def test_disconnect_frees_the_engine(sdk, served):
    stream = sdk.chat.completions.create(
        model="chat", messages=messages("tell me all"), temperature=0.0, stream=True
    )
    next(iter(stream))
    assert served[1].engine.load["chat"]["running"] == 1
    stream.close()
    wait_for(lambda: served[1].engine.load["chat"]["running"] == 0)


def test_choices_share_one_prefill(sdk, served):
    def asked_and_found():
        load = served[1].engine.load["chat"]
        return load["prefix_positions_asked"], load["prefix_positions_hit"]

    text = "one more long question, which is about how many answers there can be to it " * 4
    _, found = asked_and_found()
    ask = {"model": "chat", "max_tokens": 12, "seed": 3, "temperature": 1.0}
    answer = sdk.chat.completions.create(messages=messages(text), n=4, **ask)
    texts = [choice.message.content for choice in answer.choices]
    assert len(set(texts)) == 4
    prompt = answer.usage.prompt_tokens
    assert asked_and_found()[1] - found >= 3 * (prompt - 16)  # all but the last, shared page
    alone = sdk.chat.completions.create(messages=messages(text), **ask | {"seed": 5})
    assert alone.choices[0].message.content == texts[2]


def test_log_probabilities_are_those_of_the_model(sdk):
    answer = sdk.chat.completions.create(
        messages=messages("tell me"), logprobs=True, top_logprobs=3, **GREEDY
    )
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == 16
    for token in tokens:  # greedy: what was drawn is the likeliest
        assert token.logprob == token.top_logprobs[0].logprob <= 0
        values = [other.logprob for other in token.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert len(values) == 3
    spelled = b"".join(bytes(token.bytes) for token in tokens)
    assert spelled.decode(errors="replace").strip("\n") == answer.choices[0].message.content


def test_penalties_bias_and_min_p_change_what_is_drawn(sdk):
    def ask(**more):
        body = GREEDY | {"max_tokens": 60, "messages": messages("tell me")}
        return sdk.chat.completions.create(**body, **more).choices[0].message.content

    plain = ask()
    assert ask(logit_bias={"65": 100}) == "A" * 60
    assert ask(extra_body={"min_p": 0.5}) == plain  # the likeliest stays
    assert ask(presence_penalty=2.0, frequency_penalty=2.0) != plain
    with pytest.raises(openai.BadRequestError, match="no token") as refused:
        ask(logit_bias={"999999": 1})
    assert refused.value.param == "logit_bias"


def test_text_and_ids_are_gone_on_with(served):
    url = f"{served[0]}/generate"
    params = {"temperature": 0, "max_new_tokens": 12}
    body = {"model": "chat", "text": "<|im_start|>user\ntell", "sampling_params": params}
    whole = httpx.post(url, json=body).raise_for_status().json()
    assert whole["meta_info"]["finish_reason"] == {"type": "length", "length": 12}
    assert whole["meta_info"]["completion_tokens"] == 12
    streamed = httpx.post(url, json=body | {"stream": True}).text.split("\n\n")
    assert streamed[-2] == "data: [DONE]"
    assert json.loads(streamed[-3].removeprefix("data: "))["text"] == whole["text"] != ""
    ids = [270, *b"abc"]
    asked = body | {"input_ids": ids, "return_logprob": True, "top_logprobs_num": 2}
    del asked["text"]
    meta = httpx.post(url, json=asked).raise_for_status().json()["meta_info"]
    assert meta["prompt_tokens"] == 4
    first, top = meta["output_token_logprobs"][0], meta["output_top_logprobs"][0]
    assert first == top[0]
    assert len(top) == 2
    for more, param in (({"input_ids": [9999]}, "input_ids"), ({"input_ids": [1]}, "text")):
        wrong = body | more if param == "text" else asked | more
        answer = httpx.post(url, json=wrong)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_several_texts_and_several_answers_are_a_list(served):
    url = f"{served[0]}/generate"
    params = {"temperature": 0, "max_new_tokens": 6, "stop": None, "skip_special_tokens": True}
    body = {"model": "chat", "sampling_params": params}
    texts = ["tell", "abc"]
    alone = [httpx.post(url, json=body | {"text": text}).json()["text"] for text in texts]
    both = httpx.post(url, json=body | {"text": texts}).raise_for_status().json()
    assert [answer["text"] for answer in both] == alone
    ids = [list(text.encode()) for text in texts]
    both = httpx.post(url, json=body | {"input_ids": ids}).raise_for_status().json()
    assert [answer["text"] for answer in both] == alone
    twice = body | {"text": "tell", "sampling_params": params | {"n": 2}}
    assert [a["text"] for a in httpx.post(url, json=twice).json()] == [alone[0]] * 2
    lines = httpx.post(url, json=body | {"text": texts, "stream": True}).text.split("\n\n")
    last = {}
    for line in lines[:-2]:
        event = json.loads(line.removeprefix("data: "))
        last[event["index"]] = event
    assert [last[place]["text"] for place in range(2)] == alone
    assert all(event["meta_info"]["finish_reason"] for event in last.values())
    one = httpx.post(url, json=body | {"text": ["tell"]}).json()
    assert [answer["text"] for answer in one] == alone[:1]
    for wrong in ({"text": []}, {"text": ["a"] * 65}, {"input_ids": [[]]}, {"text": ["a", 1]}):
        assert httpx.post(url, json=body | wrong).status_code == 400


def test_the_matched_stop_string_is_reported(served):
    params = {"temperature": 0, "max_new_tokens": 6}
    body = {"model": "chat", "text": "tell", "sampling_params": params}
    text = httpx.post(f"{served[0]}/generate", json=body).json()["text"]
    body["sampling_params"] = params | {"stop": ["no such text", text[-1]]}
    meta = httpx.post(f"{served[0]}/generate", json=body).json()["meta_info"]
    assert meta["finish_reason"] == {"type": "stop", "matched": text[-1]}


def test_a_prompt_of_a_batch_that_is_refused_stops_the_others(served):
    body = {"model": "chat", "input_ids": [[1, 2], [99999]]}
    answer = httpx.post(f"{served[0]}/generate", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input_ids")
    wait_for(lambda: served[1].engine.load["chat"]["running"] == 0)
