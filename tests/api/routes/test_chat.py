"""Chat completions as the openai SDK requests them, and their refusals."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from types import SimpleNamespace

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.inputs.chat import NO_PARAMETERS
from izwi_api.serve.app import create_app
from izwi_api.services.chat.answer import StopText
from izwi_api.settings import Access, Settings
from izwi_api.usage.keys import add_key
from izwi_api.usage.limits import KeyLimits
from tests.api.conftest import FakeChat, FakeEngine, FakeRegistry, FakeSpeech, listening, wait_for

PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    engine, registry = FakeEngine(), FakeRegistry(chat=FakeChat(), tts=FakeSpeech())
    settings = Settings(home=tmp_path_factory.mktemp("home"))
    with listening(create_app(engine, registry, settings)) as port:
        url = f"http://127.0.0.1:{port}"
        yield SimpleNamespace(url=url, engine=engine, asked=registry.models["chat"].asked)


@pytest.fixture
def http(world):
    with httpx.Client(base_url=world.url, timeout=60) as client:
        yield client
    world.engine.step_s = 0.001
    wait_for(lambda: not world.engine.live)


@pytest.fixture
def sdk(world, http):
    with openai.OpenAI(base_url=f"{world.url}/v1", api_key="none", max_retries=0) as client:
        yield client.chat.completions


def user(text, **more):
    return {"model": "chat", "messages": [{"role": "user", "content": text}], **more}


def events_of(answer):
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


# -- answers ---------------------------------------------------------------------------------
def test_an_answer(sdk, world):
    answer = sdk.create(
        model="chat",
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi", "name": "Ada"},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "How are you?"},
        ],
        temperature=0.5,
        top_p=0.9,
        seed=7,
        max_completion_tokens=100,
        extra_body={"top_k": 4},
    )
    choice = answer.choices[0]
    assert (answer.object, answer.model, choice.index) == ("chat.completion", "chat", 0)
    assert (choice.message.role, choice.message.content) == ("assistant", "How are you?")
    assert choice.finish_reason == "stop"
    assert "reasoning_content" not in choice.message.model_extra
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (29, 12, 41)
    assert usage.completion_tokens_details.reasoning_tokens == 0
    ask = world.asked[-1]
    assert [message.role for message in ask.messages] == ["system", "user", "assistant", "user"]
    assert (ask.temperature, ask.top_p, ask.top_k, ask.seed) == (0.5, 0.9, 4, 7)
    assert (ask.max_new_tokens, ask.thinking) == (100, None)


def test_a_stream(sdk, http):
    pieces = list(
        sdk.create(**user("one two"), stream=True, stream_options={"include_usage": True})
    )
    assert len({piece.id for piece in pieces}) == 1
    assert {piece.object for piece in pieces} == {"chat.completion.chunk"}
    *grown, bill = pieces
    assert grown[0].choices[0].delta.role == "assistant"
    assert "".join(piece.choices[0].delta.content or "" for piece in grown) == "one two"
    assert [piece.choices[0].finish_reason for piece in grown] == [None] * (len(grown) - 1) + [
        "stop"
    ]
    assert all(piece.usage is None for piece in grown)
    assert bill.choices == []
    assert (bill.usage.prompt_tokens, bill.usage.completion_tokens) == (7, 7)
    assert len(grown) == 7 + 2

    plain = events_of(http.post(PATH, json=user("one two", stream=True)))
    assert all("usage" not in event and len(event["choices"]) == 1 for event in plain)


@pytest.mark.parametrize("stream", ["whole", "halves"])
def test_obfuscation_hides_how_long_a_piece_is(http, stream):
    said = "a " + "long" * 20 + " word" if stream == "halves" else "one"
    options = {"include_obfuscation": True, "include_usage": True}
    answer = http.post(PATH, json=user(said, stream=True, stream_options=options))
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n")[:-2]]
    *grown, bill = lines
    assert {len(line.encode()) % 256 for line in grown} == {0}
    fillers = [json.loads(line)["obfuscation"] for line in grown]
    assert len(set(fillers)) == len(fillers)
    assert all(filler.isalnum() for filler in fillers)
    assert "obfuscation" not in bill
    off = user(said, stream=True, stream_options={"include_obfuscation": False})
    plain = [http.post(PATH, json=body).text for body in (off, user(said, stream=True))]
    assert all("obfuscation" not in text for text in plain)


HALF = "\\ud83d"  # of a pair
HALVES = {
    "messages": '"messages": [{"role": "user", "content": "a %s"}]',
    "tools": '"tools": [{"type": "function", "function": {"name": "f", "description": "%s"}}]',
    "metadata": '"metadata": {"%s": "a"}',
    "stop": '"stop": ["%s"]',
}


@pytest.mark.parametrize("param", HALVES)
def test_an_unpaired_surrogate_is_rejected(http, param):
    rest = '"model": "chat", "messages": [{"role": "user", "content": "a"}], '
    body = "{" + rest + HALVES[param] % HALF + "}"
    answer = http.post(PATH, content=body, headers={"content-type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert "surrogate" in error["message"]
    both = "{" + rest + HALVES["messages"] % f"{HALF}\\ude00" + "}"
    answer = http.post(PATH, content=both, headers={"content-type": "application/json"})
    assert answer.json()["choices"][0]["message"]["content"] == "a \U0001f600"


def test_a_refusal_is_what_was_said(http, world):
    parts = [{"type": "refusal", "refusal": "No."}, {"type": "text", "text": "Sorry."}]
    for refused in ({"content": parts}, {"content": None, "refusal": "No.\nSorry."}):
        messages = [{"role": "assistant"} | refused, {"role": "user", "content": "hi"}]
        http.post(PATH, json={"model": "chat", "messages": messages}).raise_for_status()
        assert world.asked[-1].messages[0].content == "No.\nSorry."
    messages[-1]["refusal"] = "no"
    answer = http.post(PATH, json={"model": "chat", "messages": messages})
    assert answer.json()["error"]["param"] == "messages"


def test_the_stream_helper_of_the_sdk(sdk):
    with sdk.stream(**user("one two")) as stream:
        done = [event for event in stream if event.type == "content.done"]
        assert [event.content for event in done] == ["one two"]
        assert stream.get_final_completion().choices[0].message.content == "one two"


async def test_the_async_sdk(world, http):
    async with openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key="none") as client:
        stream = await client.chat.completions.create(**user("one"), stream=True)
        text = [piece.choices[0].delta.content or "" async for piece in stream]
        assert "".join(text) == "one"


@pytest.mark.parametrize(
    "switch", [{"enable_thinking": True}, {"chat_template_kwargs": {"enable_thinking": True}}]
)
def test_thoughts_are_separate_from_the_answer(sdk, world, switch):
    message = sdk.create(**user("hello"), extra_body=switch).choices[0].message
    assert (message.content, message.reasoning_content) == ("hello", "5 long")
    assert world.asked[-1].thinking is True
    pieces = list(sdk.create(**user("hello"), extra_body=switch, stream=True))
    deltas = [piece.choices[0].delta for piece in pieces]
    thought = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
    assert "".join(thought) == "5 long"
    assert "".join(delta.content or "" for delta in deltas) == "hello"
    cut = sdk.create(**user("hello"), extra_body=switch, max_tokens=3)
    assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == ("", "stop")
    assert cut.usage.completion_tokens_details.reasoning_tokens == 3


def test_an_answer_sent_back_is_the_next_turns_history(sdk, world):
    answer = sdk.create(**user("hello"), extra_body={"enable_thinking": True})
    messages = [*user("hello")["messages"], answer.choices[0].message, *user("more")["messages"]]
    assert sdk.create(model="chat", messages=messages).choices[0].message.content == "more"
    heard = world.asked[-1].messages[1]
    assert (heard.role, heard.content, heard.reasoning) == ("assistant", "hello", "5 long")
    whole = answer.choices[0].message.model_dump()  # every key that the SDK knows, null or not
    assert whole["tool_calls"] is None
    messages[1] = whole
    assert sdk.create(model="chat", messages=messages).choices[0].message.content == "more"


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        ("three", "one two "),
        (["nothing", "two", "one two t"], "one "),
        (["four"], "one two three"),
        ("threefold", "one two three"),
        ([], "one two three"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_stops(http, world, stop, said, stream):
    answer = http.post(PATH, json=user("one two three", stop=stop, stream=stream))
    if stream:
        choices = [event["choices"][0] for event in events_of(answer)]
        text = "".join(choice["delta"].get("content", "") for choice in choices)
        reason = choices[-1]["finish_reason"]
    else:
        choice = answer.json()["choices"][0]
        text, reason = choice["message"]["content"], choice["finish_reason"]
    assert (text, reason) == (said, "stop")
    wait_for(lambda: not world.engine.live)


def test_a_thought_does_not_stop(sdk):
    body = user("hello") | {"stop": "long", "extra_body": {"enable_thinking": True}}
    assert sdk.create(**body).choices[0].message.content == "hello"


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 30), max_size=6),
)
def test_stops_do_not_depend_on_how_the_text_is_cut(text, stops, cuts):
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    ended = [stop for stop in stops if ends and text[: min(ends)].endswith(stop)]
    expected = text[: min(ends) - max(map(len, ended))] if ends else text
    finder, out, at = StopText(stops), "", 0
    for cut in [*sorted(min(cut, len(text)) for cut in cuts), len(text)]:
        if not finder.matched:
            out += finder.write(text[at:cut])
        at = cut
    assert bool(finder.matched) is bool(ends)
    assert out + finder.close() == expected


def test_parts_of_text_are_text(http, world):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "developer", "content": parts[:1]}, {"role": "user", "content": parts}]
    answer = http.post(PATH, json={"model": "chat", "messages": messages})
    assert answer.json()["choices"][0]["message"]["content"] == "one\ntwo"
    assert [message.role for message in world.asked[-1].messages] == ["system", "user"]


def test_without_a_seed_each_answer_has_its_own(http, world):
    for _ in range(3):
        http.post(PATH, json=user("hi"))
    seeds = [ask.seed for ask in world.asked[-3:]]
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    "more",
    [
        {"max_tokens": 5},
        {"max_tokens": 9, "max_completion_tokens": 5},
        {"max_completion_tokens": 5, "n": 1, "frequency_penalty": 0, "presence_penalty": 0.0},
    ],
)
def test_limits(http, world, more):
    http.post(PATH, json=user("hello there", **more)).raise_for_status()
    assert world.asked[-1].max_new_tokens == 5


def test_chat_fields_with_default_values_are_accepted(http):
    more = {
        "logprobs": False,
        "modalities": ["text"],
        "response_format": {"type": "text"},
        "tools": [],
        "tool_choice": "none",
        "parallel_tool_calls": True,
        "store": False,
        "metadata": {"a": "b"},
        "service_tier": "flex",
        "verbosity": "low",
        "prompt_cache_retention": "24h",
        "user": "ada",
        "stream_options": {"include_usage": None, "include_obfuscation": False},
        "seed": None,
        "stop": None,
        "prediction": {"type": "content", "content": [{"type": "text", "text": "hi"}]},
        "reasoning_effort": None,
    }
    http.post(PATH, json=user("hi", **more)).raise_for_status()


@pytest.mark.parametrize(
    ("more", "thinking"),
    [
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "minimal"}, True),
        ({"reasoning_effort": "high"}, True),
        ({"reasoning_effort": "none", "enable_thinking": True}, True),
        ({"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}}, False),
        ({}, None),
    ],
)
def test_effort_says_whether_to_think(http, world, more, thinking):
    http.post(PATH, json=user("hi", **more)).raise_for_status()
    assert world.asked[-1].thinking is thinking


# -- tools, choices, log probabilities -------------------------------------------------------
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": [1, "é"]}}\n</tool_call>'


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("said", "content", "calls", "reason"),
    [
        (f"Well.\n{CALL}", "Well.", [("f", '{"a": [1, "é"]}')], "tool_calls"),
        (f"{CALL}\n{CALL}", None, [("f", '{"a": [1, "é"]}')] * 2, "tool_calls"),
        (CALL[:-20], None, [("f", '{"a": [1,')], "stop"),
        (CALL[:20], CALL[:20], [], "stop"),
        ("no call", "no call", [], "stop"),
    ],
)
def test_calls(sdk, world, stream, said, content, calls, reason):
    body = user(said) | {"tools": [TOOL, OTHER]}
    if not stream:
        choice = sdk.create(**body).choices[0]
        got = [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or []]
        assert (choice.message.content, choice.finish_reason) == (content, reason)
        assert len({call.id for call in choice.message.tool_calls or []}) == len(calls)
    else:
        pieces = [piece.choices[0] for piece in sdk.create(**body, stream=True)]
        joined, got, ids = "", {}, {}
        for piece in pieces:
            joined += piece.delta.content or ""
            # pipecat reads the first of a delta alone
            assert len(piece.delta.tool_calls or []) < 2
            for call in piece.delta.tool_calls or []:
                name, arguments = got.get(call.index, ("", ""))
                ids.setdefault(call.index, call.id)
                got[call.index] = (
                    name + (call.function.name or ""),
                    arguments + (call.function.arguments),
                )
        assert (joined, pieces[-1].finish_reason) == (content or "", reason)
        assert all(ids.values())
        got = [got[place] for place in sorted(got)]
    assert got == calls
    assert json.loads(world.asked[-1].tools) == [TOOL, OTHER]


@pytest.mark.parametrize("given", [{}, {"parameters": None}])
def test_a_function_without_parameters_takes_an_empty_object(sdk, world, given):
    tool = {"type": "function", "function": {"name": "f", "description": "d"} | given}
    sdk.create(**user("no call"), tools=[tool])
    (asked,) = json.loads(world.asked[-1].tools)
    assert asked["function"].pop("parameters") == NO_PARAMETERS
    assert asked == {"type": "function", "function": {"name": "f", "description": "d"}}


@pytest.mark.parametrize("stream", [True, False])
def test_a_tag_before_another_is_no_content(sdk, stream):
    answer = sdk.create(**user(f"<tool_call>\n{CALL}"), tools=[TOOL], stream=stream)
    if stream:
        assert not any(piece.choices[0].delta.content for piece in answer)
    else:
        assert answer.choices[0].message.content is None
        assert len(answer.choices[0].message.tool_calls) == 1


def test_the_sdk_parses_calls_while_they_are_streamed(sdk):
    with sdk.stream(**user(CALL), tools=[TOOL]) as stream:
        events = [event for event in stream if event.type.startswith("tool_calls")]
        message = stream.get_final_completion().choices[0].message
    assert events[-1].type == "tool_calls.function.arguments.done"
    assert json.loads(events[-1].arguments) == {"a": [1, "é"]}
    assert message.tool_calls[0].function.name == "f"


def test_one_call_is_enough_where_one_is_asked_for(sdk, world):
    answer = sdk.create(**user(f"{CALL}\n{CALL}"), tools=[TOOL], parallel_tool_calls=False)
    assert len(answer.choices[0].message.tool_calls) == 1
    assert answer.choices[0].finish_reason == "tool_calls"
    assert world.asked[-1].parallel_tool_calls is False


def test_without_tools_a_call_is_text(sdk):
    for more in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        said = "a\n<tool_call>\nb\n</tool_call>"
        message = sdk.create(**user(said), **more).choices[0].message
        assert (message.content, message.tool_calls) == (said, None)


def test_a_tools_answer_is_part_of_the_history(sdk, world):
    message = sdk.create(**user(CALL), tools=[TOOL]).choices[0].message
    call = message.tool_calls[0]
    history = [*user("on!")["messages"], message]
    history.append({"role": "tool", "tool_call_id": call.id, "content": "done"})
    answer = sdk.create(model="chat", messages=history, tools=[TOOL])
    assert answer.choices[0].message.content == "done"
    asked = world.asked[-1].messages
    assert [m.role for m in asked] == ["user", "assistant", "tool"]
    assert asked[1].tool_calls[0].call_id == asked[2].call_id == call.id
    assert asked[1].tool_calls[0].arguments == call.function.arguments
    whole = message.model_dump()  # every key that the SDK knows, null or not
    history[1] = whole
    assert sdk.create(model="chat", messages=history).choices[0].message.content == "done"


@pytest.mark.parametrize("stream", [True, False])
def test_choices(sdk, world, http, stream):
    body = user("one two") | {"n": 3, "seed": 2**63 - 2}
    if stream:
        pieces = list(sdk.create(**body, stream=True, stream_options={"include_usage": True}))
        texts, usage = {}, pieces[-1].usage
        for piece in pieces[:-1]:
            (choice,) = piece.choices
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        ends = [p.choices[0].index for p in pieces[:-1] if p.choices[0].finish_reason == "stop"]
        assert sorted(ends) == [0, 1, 2]
        texts = [texts[place] for place in range(3)]
    else:
        answer = sdk.create(**body)
        texts, usage = [choice.message.content for choice in answer.choices], answer.usage
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert texts == ["one two"] * 3
    assert (usage.prompt_tokens, usage.completion_tokens) == (7, 21)
    assert [seed - 2**63 for seed in world.engine.seeds[-3:]] == [-2, -1, -(2**64)]


def test_a_choice_that_fails_stops_the_others(http, world):
    assert http.post(PATH, json=user("hel\x01lo", n=4)).status_code == 500
    wait_for(lambda: not world.engine.live)
    answer = http.post(PATH, json=user("hel\x01lo", n=4, stream=True))
    assert '"error"' in answer.text
    assert "[DONE]" not in answer.text


@pytest.mark.parametrize("stream", [True, False])
def test_log_probabilities(sdk, world, stream):
    body = user("hé") | {"logprobs": True, "top_logprobs": 2}
    if stream:
        pieces = [piece.choices[0] for piece in sdk.create(**body, stream=True)]
        tokens = [t for p in pieces if p.logprobs for t in p.logprobs.content]
    else:
        tokens = sdk.create(**body).choices[0].logprobs.content
    assert [token.token for token in tokens] == ["h", "é"]
    assert [token.logprob for token in tokens] == [-ord("h") / 1024, -ord("é") / 1024]
    assert [bytes(token.bytes) for token in tokens] == [b"h", "é".encode()]
    assert [[other.token for other in token.top_logprobs] for token in tokens] == [["a", "b"]] * 2
    ask = world.asked[-1]
    assert (ask.logprobs, ask.top_logprobs) == (True, 2)
    assert sdk.create(**user("h")).choices[0].logprobs is None


def test_chat_sampling_fields_reach_the_model(sdk, world):
    more = {"min_p": 0.1, "repetition_penalty": 1.1}
    sdk.create(
        **user("hi"),
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"7": -100, "3": 2.5},
        extra_body=more,
    )
    ask = world.asked[-1]
    assert (ask.presence_penalty, ask.frequency_penalty) == (0.5, -0.5)
    assert (ask.min_p, ask.repetition_penalty) == (0.1, 1.1)
    assert ask.logit_bias == ((3, 2.5), (7, -100.0))


# -- refusals --------------------------------------------------------------------------------
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
OTHER = {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "f"}}
CALLED = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}


@pytest.mark.parametrize(
    ("more", "param", "message"),
    [
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "hello"}, "messages", "list"),
        ({"messages": [{"content": "a"}]}, "messages", "'messages[0].role'"),
        ({"messages": [{"role": "tool", "content": "3"}]}, "messages", "tool_call_id"),
        ({"messages": [{"role": "user", "tool_call_id": "x"}]}, "messages", "tool_call_id"),
        ({"messages": [{"role": "user", "tool_calls": [CALLED]}]}, "messages", "assistant"),
        ({"messages": [{"role": "owner", "content": "3"}]}, "messages", "'user'"),
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            "messages[0].content[0]",
            "'image_url'",
        ),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages", "object"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages", "string"),
        ({"messages": [{"role": "assistant", "tool_calls": [TOOL]}]}, "messages", "id"),
        ({"tools": [{"type": "web_search"}]}, "tools", "'function'"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "pattern"),
        ({"tools": [TOOL] * 129}, "tools", "128"),
        ({"tool_choice": "required"}, "tools", "no tools"),
        ({"tool_choice": NAMED, "tools": [OTHER]}, "tool_choice", "names no tool"),
        ({"tool_choice": "always", "tools": [TOOL]}, "tool_choice", '"type": "allowed_tools"'),
        ({"tool_choice": 1, "tools": [TOOL]}, "tool_choice", '"type": "function", "function"'),
        ({"tool_choice": {"type": "mcp"}, "tools": [TOOL]}, "tool_choice", "'required'"),
        ({"tool_choice": {}, "tools": [TOOL]}, "tool_choice", "'required'"),
        (
            {"tool_choice": {"type": "function", "name": "f"}, "tools": [TOOL]},
            "tool_choice",
            "'tool_choice.function'",
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto"}, "tools": [TOOL]},
            "tool_choice",
            "'tool_choice.allowed_tools'",
        ),
        ({"n": 9}, "n", "equal to 8"),
        ({"n": True}, "n", "integer"),
        ({"frequency_penalty": 2.5}, "frequency_penalty", "2"),
        ({"presence_penalty": -2.5}, "presence_penalty", "2"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "pattern"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "100"),
        ({"min_p": 1.5}, "min_p", "1"),
        ({"repetition_penalty": 0}, "repetition_penalty", "0"),
        ({"store": 0}, "store", "boolean"),
        ({"response_format": {"type": "xml"}}, "response_format", "'text'"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
        ({"modalities": ["text", "audio"]}, "audio", "belong together"),
        ({"max_tokens": 0}, "max_tokens", "1"),
        ({"temperature": 2.5}, "temperature", "2"),
        ({"top_p": 0}, "top_p", "0"),
        ({"stop": ""}, "stop", "at least 1"),
        ({"stop": ["a"] * 5}, "stop", "at most 4"),
        ({"stream": "yes"}, "stream", "boolean"),
        ({"pitch": 3}, "pitch", "unknown"),
        ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs", "'chat_template_kwargs.x'"),
        ({"model": "tts"}, "model", "not chat"),
    ],
)
def test_unsupported_chat_fields_are_400(http, more, param, message):
    answer = http.post(PATH, json=user("hi") | more)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"


def test_other_refusals(http, sdk):
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.create(model="none", messages=user("hi")["messages"])
    assert caught.value.code == "model_not_found"
    assert http.put(PATH).status_code == 405
    with pytest.raises(openai.InternalServerError) as bug:
        sdk.create(**user("PREPARE"))
    assert "/etc/x" not in str(bug.value)


@pytest.mark.parametrize("stream", [True, False])
def test_before_the_first_word_there_is_a_status(http, stream):
    full = http.post(PATH, json=user("a\x02", stream=stream))
    assert (full.status_code, full.headers["retry-after"]) == (503, "7")
    assert http.post(PATH, json=user("\x01", stream=stream)).status_code == 500


def test_a_failure_on_the_way_is_the_last_event(http, sdk):
    assert http.post(PATH, json=user("hel\x01lo")).status_code == 500
    answer = http.post(PATH, json=user("hel\x01lo", stream=True))
    assert "[DONE]" not in answer.text
    last = json.loads(answer.text.strip().split("\n\n")[-1].removeprefix("data: "))
    assert last["error"]["type"] == "server_error"
    with pytest.raises(openai.APIError):
        list(sdk.create(**user("hel\x01lo"), stream=True))


@pytest.mark.parametrize("stream", [True, False])
def test_disconnect_stops_the_answer(http, world, stream):
    world.engine.step_s = 0.02
    aborted = len(world.engine.aborted)
    if stream:
        with http.stream("POST", PATH, json=user("x" * 500, stream=True)) as answer:
            next(answer.iter_bytes())
    else:
        connection = HTTPConnection("127.0.0.1", http.base_url.port, timeout=60)
        connection.request(
            "POST", PATH, json.dumps(user("x" * 500)), {"content-type": "application/json"}
        )
        wait_for(lambda: world.engine.live)
        connection.close()
    wait_for(lambda: len(world.engine.aborted) > aborted and not world.engine.live)


def test_a_key_is_charged_for_what_is_read(tmp_path):
    path = tmp_path / "keys.toml"
    key = add_key(path, "ada", KeyLimits(characters_per_day=12))
    settings = Settings(home=tmp_path, access=Access(api_keys_file=path))
    app = create_app(FakeEngine(), FakeRegistry(chat=FakeChat()), settings)
    with listening(app) as port:
        ask = {"url": f"http://127.0.0.1:{port}{PATH}", "timeout": 60}
        ask["headers"] = {"authorization": f"Bearer {key}"}
        assert httpx.post(**ask, json=user("seven..")).status_code == 200
        refused = httpx.post(**ask, json=user("and six"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
        assert httpx.post(**ask, json=user("five.")).status_code == 200
