"""Structured output with the real engine and random weights: nothing is faked."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import jsonschema_rs
import openai
import pytest

from tests.api.in_process import serving
from tests.models.tiny_chat import write_tiny_chat

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["friend", "family", None]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 3},
        "home": {"$ref": "#/$defs/place"},
    },
    "required": ["name", "age", "kind", "home"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"x": {"type": "integer", "minimum": -9, "maximum": 9}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
LIGHT = {
    "type": "function",
    "function": {
        "name": "set_light",
        "parameters": {
            "type": "object",
            "properties": {"on": {"type": "boolean"}, "room": {"enum": ["kitchen", "küche"]}},
            "required": ["on", "room"],
            "additionalProperties": False,
        },
    },
}
TIMER = {
    "type": "function",
    "function": {
        "name": "set_timer",
        "parameters": {
            "properties": {"at": {"$ref": "#/$defs/time"}},
            "required": ["at"],
            "additionalProperties": False,
            "$defs": {"time": {"type": "integer", "minimum": 0, "maximum": 59}},
        },
    },
}
HOT = {"model": "chat", "temperature": 1.0, "top_p": 1.0, "extra_body": {"top_k": 0}}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("real")
    folder = write_tiny_chat(root / "chat")
    thinker = write_tiny_chat(root / "thinker", thinking="ALWAYS")
    with serving(root / "home", folder, thinker) as (url, _):
        yield url


@pytest.fixture
def chat(served):
    with openai.OpenAI(base_url=f"{served}/v1", api_key="none", max_retries=0, timeout=60) as sdk:
        yield sdk.chat.completions


def ask(chat, text="tell me", **more):
    return chat.create(messages=[{"role": "user", "content": text}], **HOT | more)


def test_answers_follow_the_schema_and_their_neighbours_do_not_notice(chat):
    valid = jsonschema_rs.validator_for(SCHEMA)

    def free(seed):
        return ask(chat, seed=seed, max_tokens=40).choices[0].message.content

    alone = [free(seed) for seed in range(4)]
    with ThreadPoolExecutor(12) as pool:
        answers = pool.map(lambda seed: ask(chat, seed=seed, response_format=FORMAT), range(16))
        beside = list(pool.map(free, range(4)))
        answers = [answer.choices[0] for answer in answers]
    assert beside == alone
    assert {choice.finish_reason for choice in answers} == {"stop"}
    for choice in answers:
        valid.validate(json.loads(choice.message.content))
    assert len({choice.message.content for choice in answers}) == 16


@pytest.mark.slow
def test_the_same_seed_gives_the_same_answer_streamed(chat):
    whole = ask(chat, seed=5, response_format=FORMAT).choices[0].message.content
    pieces = ask(chat, seed=5, response_format=FORMAT, stream=True)
    assert "".join(p.choices[0].delta.content or "" for p in pieces) == whole


def test_any_object(chat):
    bias = {str(ord("}")): 4, str(ord('"')): 4}  # or it would not end
    answers = [
        ask(chat, seed=n, response_format={"type": "json_object"}, logit_bias=bias).choices[0]
        for n in range(4)
    ]
    ended = [choice for choice in answers if choice.finish_reason == "stop"]
    assert ended
    assert all(isinstance(json.loads(c.message.content), dict) for c in ended)


def test_a_call_that_must_be(chat):
    for choice, names in (
        ("required", {"set_light", "set_timer"}),
        ({"type": "function", "function": {"name": "set_timer"}}, {"set_timer"}),
    ):
        seen = set()
        for seed in range(6):
            answer = ask(
                chat, seed=seed, tools=[LIGHT, TIMER], tool_choice=choice, parallel_tool_calls=False
            ).choices[0]
            assert answer.finish_reason == "tool_calls"
            (call,) = answer.message.tool_calls
            tool = {"set_light": LIGHT, "set_timer": TIMER}[call.function.name]
            jsonschema_rs.validate(
                tool["function"]["parameters"], json.loads(call.function.arguments)
            )
            seen.add(call.function.name)
        assert seen == names


def test_a_call_without_parameters_has_an_empty_object(chat):
    tool = {"type": "function", "function": {"name": "ping"}}
    for seed in range(3):
        answer = ask(chat, seed=seed, tools=[tool], tool_choice="required", max_tokens=100)
        assert {c.function.arguments for c in answer.choices[0].message.tool_calls} == {"{}"}


def test_several_calls_that_must_be(chat):
    for seed in range(4):
        choice = ask(chat, seed=seed, tools=[LIGHT, TIMER], tool_choice="required").choices[0]
        assert choice.message.tool_calls
        assert not choice.message.content
        if choice.finish_reason == "tool_calls":
            for call in choice.message.tool_calls:
                json.loads(call.function.arguments)


def test_formats_that_restrict_no_text_are_taken(chat):
    """Of OpenAPI and pydantic; other formats that are not supported are still refused."""
    kinds = {"byte": "string", "binary": "string", "password": "string", "path": "string",
             "regex": "string", "int32": "integer"}  # fmt: skip
    schema = {
        "type": "object",
        "properties": {f"a_{name}": {"type": kind, "format": name} for name, kind in kinds.items()},
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    assert ask(chat, response_format=wanted, max_tokens=5).choices[0].message.content
    function = {"type": "function", "function": {"name": "f", "parameters": schema}}
    assert ask(chat, tools=[function], tool_choice="required", max_tokens=5).choices
    schema["properties"]["b"] = {"type": "string", "format": "nonsense"}
    with pytest.raises(openai.BadRequestError, match="nonsense"):
        ask(chat, response_format=wanted, max_tokens=5)


def test_errors_name_the_field_that_the_caller_wrote(served):
    """Those that are found before a request runs, and those that are found while it runs."""
    for schema in ({"not": {}}, {"$ref": "#"}):
        written = {"type": "json_schema", "name": "n", "schema": schema}
        wrapped = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        call = {"type": "function", "function": {"name": "f", "parameters": {"allOf": [schema]}}}
        said = [{"role": "user", "content": "tell me"}]
        for path, body, param in (
            ("responses", {"input": "tell me", "text": {"format": written}}, "text.format"),
            ("chat/completions", {"messages": said, "response_format": wrapped}, "response_format"),
            ("chat/completions", {"messages": said, "tools": [call], "tool_choice": "required"},
             "tools"),
        ):  # fmt: skip
            answer = httpx.post(f"{served}/v1/{path}", json={"model": "chat"} | body, timeout=60)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"] == param


def test_a_response_to_nothing_names_its_input(served):
    answer = httpx.post(f"{served}/v1/responses", json={"model": "chat", "input": []}, timeout=60)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")


EXPENSIVE = {"type": "string", "pattern": "^(a{900}){900}$"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_whose_schema_becomes_too_expensive_says_so(served, stream):
    written = {"type": "json_schema", "name": "n", "schema": EXPENSIVE}
    body = {"model": "chat", "input": "tell me", "text": {"format": written}, "stream": stream}
    answer = httpx.post(f"{served}/v1/responses", json=body, timeout=60)
    if not stream:
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == "text.format"
    else:
        last = json.loads(answer.text.strip().split("data: ")[-1])
        assert last["type"] == "response.failed"
        error = last["response"]["error"]
        assert error["code"] == "invalid_prompt"
    assert "too expensive" in error["message"]


def test_a_thought_is_free_and_the_answer_is_not(served, chat):
    answer = ask(
        chat,
        model="thinker",
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"const": 7}},
        },
        logit_bias={"275": 100},  # </think>
    ).choices[0]
    assert (answer.message.content.strip(), answer.finish_reason) == ("7", "stop")


def deep(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


HOSTILE = {
    "endless": {"$ref": "#"},
    "never ends": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "deep": deep(90),
    "large": {"enum": [f"value number {n}" for n in range(9000)]},
    "a regex of regexes": {"type": "string", "pattern": "^(((a{90}){90}){90}){90}$"},
    "from elsewhere": {"$ref": "http://127.0.0.1:1/schema"},
    "no type": {"type": "nothing"},
    "not supported": {"not": {"type": "string"}},
    "no value": {"type": "string", "minLength": 3, "maxLength": 1},
    "many": {"type": "array", "minItems": 10**9, "items": {"type": "integer"}},
    "many patterns": {
        "allOf": [{"type": "string", "pattern": f".*{a}b.*"} for a in "abcdefghijklmnop"]
    },
    "many multiples": {"allOf": [{"type": "integer", "multipleOf": n} for n in range(2, 20)]},
}


@pytest.mark.parametrize(
    "name",
    # tests/sandbox/test_grammar_check.py refuses multiples by day
    [pytest.param(n, marks=[pytest.mark.slow] * (n == "many multiples")) for n in HOSTILE],
)
def test_a_hostile_schema_does_not_affect_others(chat, name):
    schema = {"type": "json_schema", "json_schema": {"name": "h", "schema": HOSTILE[name]}}
    done = threading.Event()

    def other():
        ask(chat, max_tokens=10)
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    error = None
    try:
        answer = ask(chat, response_format=schema, max_tokens=30)
    except openai.BadRequestError as refused:
        error = refused
    if error is None:
        assert name in ("never ends", "many", "deep", "a regex of regexes")
        assert answer.choices[0].finish_reason in ("stop", "length")
    else:
        assert name != "many"
        assert error.param == "response_format"
    thread.join(60)
    assert done.is_set()
    assert ask(chat, max_tokens=5).choices[0].finish_reason in ("stop", "length")


def test_disconnect_during_a_constrained_answer_ends_it(chat):
    stream = ask(chat, response_format=FORMAT, stream=True)
    next(iter(stream))
    stream.close()
    answer = ask(chat, response_format=FORMAT, seed=9).choices[0]
    json.loads(answer.message.content)


# -- grammars of /generate ------------------------------------------------------------------------
def generate(served, *, stream=False, **params):
    body = {
        "text": "tell me",
        "stream": stream,
        "sampling_params": {"max_new_tokens": 60, "sampling_seed": 3} | params,
    }
    return httpx.post(f"{served}/generate", json=body, timeout=60)


ANSWERS = 'root ::= yes | "no" " " digit{2,3}\nyes ::= "yes"\ndigit ::= [0-9]'


@pytest.mark.parametrize(("params", "pattern"), [
    ({"regex": "(a/b|c d)-[0-9]{3}"}, "(a/b|c d)-[0-9]{3}"),
    ({"regex": "x\ny|z{4}"}, "x\ny|z{4}"),
    ({"ebnf": ANSWERS}, r"yes|no \d{2,3}"),
    ({"json_schema": '{"enum": ["left", "right"]}'}, '"left"|"right"'),
])  # fmt: skip
def test_generated_text_follows_a_grammar(served, params, pattern):
    texts = set()
    for seed in range(6):
        answer = generate(served, **params | {"sampling_seed": seed})
        assert answer.status_code == 200, answer.text
        assert answer.json()["meta_info"]["finish_reason"]["type"] == "stop"
        texts.add(answer.json()["text"])
    assert all(re.fullmatch(pattern, text) for text in texts), texts
    assert len(texts) > 1


def test_a_model_that_always_thinks_generates_by_a_grammar_at_once(served):
    body = {"model": "thinker", "text": "a", "sampling_params": {"regex": "b{3}"}}
    answer = httpx.post(f"{served}/generate", json=body, timeout=60)
    assert answer.json()["text"] == "bbb"


@pytest.mark.parametrize(("params", "param", "reason"), [
    ({"regex": "(a"}, "regex", "cannot be used: unclosed group"),
    ({"regex": r"(?=a)b"}, "regex", "cannot be used: look-around"),
    ({"regex": r"a\bb"}, "regex", "cannot be used: lookarounds not supported"),
    ({"regex": r"a[^\s\S]"}, "regex", "allows no answer"),
    ({"regex": "[a-z&&[^a-z]]"}, "regex", "allows no answer"),
    ({"regex": ""}, "regex", "empty"),
    ({"regex": "a\\"}, "regex", "escape"),
    ({"regex": "[" * 60_000}, "regex", "cannot be used"),
    ({"regex": "a" * 65_537}, "regex", "characters"),
    ({"ebnf": "root = 1"}, "ebnf", "cannot be read"),
    ({"ebnf": "root ::= other"}, "ebnf", "cannot be read"),
    ({"ebnf": "root ::= " + "(" * 4_000}, "ebnf", "cannot be read"),
    ({"ebnf": "root ::= " + '"a" ' * 4_000}, "ebnf", "characters"),
    ({"json_schema": "{"}, "json_schema", "JSON object"),
    ({"json_schema": "[1]"}, "json_schema", "JSON object"),
    ({"json_schema": '{"not": {}}'}, "json_schema", "cannot be used"),
    ({"json_schema": '{"$ref": "#"}'}, "json_schema", "allows no answer"),
    ({"json_schema": '{"enum": []}'}, "json_schema", "cannot be used"),
    ({"ebnf": "root ::= a\na ::= root"}, "ebnf", "allows no answer"),
    ({"json_schema": "{}", "regex": "a"}, "regex", "not both"),
])  # fmt: skip
def test_a_grammar_that_cannot_be_used_is_refused(served, params, param, reason):
    answer = generate(served, **params)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (f"sampling_params.{param}", "invalid_request")
    assert error["type"] == "invalid_request_error"
    assert reason in error["message"]
    assert "start:" not in error["message"], "the caller wrote no Lark"
    assert len(answer.text) < 600


@pytest.mark.parametrize(("params", "param", "reason"), [
    ({"regex": "(((a{90}){90}){90}){90}"}, "regex", "too expensive"),
    ({"regex": "a{1000000}"}, "regex", "too expensive"),
    ({"ebnf": 'root ::= "a"{1000000000}'}, "ebnf", ""),
    ({"ebnf": 'root ::= "a" root'}, "ebnf", "too expensive"),
    ({"json_schema": '{"type": "string", "pattern": "^(a{900}){900}$"}'}, "json_schema",
     "too expensive"),
])  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_is_too_expensive_is_refused_and_the_server_goes_on(
    served, params, param, reason, stream
):
    answer = generate(served, stream=stream, **params)
    if stream and answer.status_code == 200:  # it was too expensive only after some text
        error = json.loads(answer.text.split("data: ")[-1])["error"]
    else:
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
    assert error["param"] == f"sampling_params.{param}"
    assert reason in error["message"]
    assert generate(served, regex="a").json()["text"] == "a"


def test_half_a_surrogate_pair_is_no_regex(served):
    body = b'{"text": "a", "sampling_params": {"regex": "\\ud83d"}}'
    assert httpx.post(f"{served}/generate", content=body).status_code == 400


# -- some of the tools ----------------------------------------------------------------------------
def test_only_allowed_tools_are_called(chat):
    allowed = {"type": "function", "function": {"name": "set_light"}}
    choice = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [allowed]},
    }
    names = set()
    for seed in range(4):
        answer = ask(chat, tools=[TIMER, LIGHT], tool_choice=choice, seed=seed, max_tokens=100)
        names |= {call.function.name for call in answer.choices[0].message.tool_calls or ()}
    assert names == {"set_light"}
    choice["allowed_tools"]["tools"].append({"type": "function", "function": {"name": "other"}})
    with pytest.raises(openai.BadRequestError, match="other") as caught:
        ask(chat, tools=[TIMER, LIGHT], tool_choice=choice)
    assert caught.value.param == "tool_choice"


def test_a_model_is_not_told_of_tools_that_are_not_allowed(chat):
    def size(tools, **more):
        return ask(chat, tools=tools, max_tokens=1, **more).usage.prompt_tokens

    allowed = {"type": "function", "function": {"name": "set_light"}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [allowed]}}
    assert size([TIMER, LIGHT], tool_choice=choice) == size([LIGHT]) < size([TIMER, LIGHT])


def test_only_allowed_tools_are_called_in_responses(served):
    tools = [{"type": "function", **tool["function"]} for tool in (TIMER, LIGHT)]
    for tool in tools:
        tool["strict"] = False
    choice = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "set_light"}],
    }
    with openai.OpenAI(base_url=f"{served}/v1", api_key="none", max_retries=0) as sdk:
        given = {"model": "chat", "input": "tell me", "tools": tools, "tool_choice": choice}
        made = sdk.responses.create(**given)
        assert {item.name for item in made.output if item.type == "function_call"} == {"set_light"}
        assert made.tool_choice.type == "allowed_tools"
        with pytest.raises(openai.BadRequestError, match="tool_choice"):
            sdk.responses.create(**given | {"tools": tools[:1]})
