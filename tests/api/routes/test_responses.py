"""Responses as the openai SDK requests them, and their refusals."""

from __future__ import annotations

import json
from types import SimpleNamespace

import httpx
import openai
import pytest

from izwi.errors import InvalidRequest
from izwi.inputs.chat import NO_PARAMETERS, ChatMessage, Role
from izwi_api.serve.app import create_app
from izwi_api.services.store.items import KEPT_S, StoredItems
from izwi_api.services.store.responses import StoredConversation, StoredResponses
from izwi_api.settings import Settings
from tests.api.conftest import FakeChat, FakeEngine, FakeRegistry, listening, wait_for

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    engine, registry = FakeEngine(), FakeRegistry(chat=FakeChat())
    settings = Settings(home=tmp_path_factory.mktemp("home"))
    with listening(create_app(engine, registry, settings)) as port:
        url = f"http://127.0.0.1:{port}/v1"
        yield SimpleNamespace(url=url, engine=engine, asked=registry.models["chat"].asked)


@pytest.fixture
def sdk(world):
    with openai.OpenAI(base_url=world.url, api_key="none", max_retries=0) as client:
        yield client.responses
    wait_for(lambda: not world.engine.live)


def test_a_response(sdk, world):
    got = sdk.create(model="chat", input="Hello", instructions="Be brief.", max_output_tokens=50)
    assert (got.output_text, got.status, got.object) == ("Hello", "completed", "response")
    assert (got.usage.input_tokens, got.usage.output_tokens) == (14, 5)
    assert [(m.role, m.content) for m in world.asked[-1].messages] == [
        (Role.SYSTEM, "Be brief."),
        (Role.USER, "Hello"),
    ]


def test_a_stream(sdk):
    events = list(sdk.create(model="chat", input="one two", stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    grown = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(grown) == "one two" == events[-1].response.output_text
    assert len(grown) == 7


def test_obfuscation_hides_how_long_a_delta_is(world):
    for options, hides in (({"include_obfuscation": True}, True), ({}, False)):
        body = {"model": "chat", "input": "one two", "stream": True, "stream_options": options}
        lines = httpx.post(f"{world.url}/responses", json=body).text.split("\n\n")[:-1]
        grown = [line.partition("data: ")[2] for line in lines if ".delta\n" in line]
        assert len(grown) == 7
        assert all(("obfuscation" in line) is hides for line in grown)
        assert hides is ({len(line) % 256 for line in grown} == {0})
        assert sum("obfuscation" in line for line in lines) == len(grown) * hides


def test_a_call_and_its_answer(sdk, world):
    asked = sdk.create(model="chat", input=f"Well.\n{CALL}", tools=[TOOL])
    said, call = asked.output
    assert (said.content[0].text, call.type, call.name) == ("Well.", "function_call", "f")
    assert json.loads(call.arguments) == {"a": 1}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    after = sdk.create(model="chat", input=[output], previous_response_id=asked.id, tools=[TOOL])
    assert after.output_text == "done"
    user, assistant, tool = world.asked[-1].messages
    assert (user.role, assistant.role, tool.role) == (Role.USER, Role.ASSISTANT, Role.TOOL)
    assert assistant.tool_calls[0].call_id == tool.call_id == call.call_id
    # the same as items of the caller's own
    items = [
        {"role": "user", "content": "x"},
        *(item.model_dump() for item in asked.output),
        output,
    ]
    assert sdk.create(model="chat", input=items, tools=[TOOL]).output_text == "done"
    assert world.asked[-1].messages[1:] == (assistant, tool)


def test_calls_are_streamed(sdk):
    events = list(sdk.create(model="chat", input=f"{CALL}\n{CALL}", tools=[TOOL], stream=True))
    done = [e for e in events if e.type == "response.function_call_arguments.done"]
    for place, end in enumerate(done):
        grown = [
            event.delta
            for event in events
            if event.type == "response.function_call_arguments.delta"
            and event.output_index == place
        ]
        assert "".join(grown) == end.arguments == '{"a": 1}'
        assert len(grown) > 3
    assert len({item.call_id for item in events[-1].response.output}) == len(done) == 2


def test_a_thought_is_an_item(sdk):
    got = sdk.create(model="chat", input="hello", extra_body={"enable_thinking": True})
    assert [item.type for item in got.output] == ["reasoning", "message"]
    assert (got.output[0].content[0].text, got.output_text) == ("5 long", "hello")


@pytest.mark.parametrize("given", [{}, {"parameters": None}])
def test_a_function_without_parameters_takes_an_empty_object(sdk, world, given):
    tool = {"type": "function", "name": "f", "strict": False} | given
    sdk.create(model="chat", input="no call", tools=[tool])
    (asked,) = json.loads(world.asked[-1].tools)
    assert asked == {"type": "function", "function": {"name": "f", "parameters": NO_PARAMETERS}}


def test_responses_fields_reach_the_model(sdk, world):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    sdk.create(
        model="chat",
        input="x",
        temperature=0.5,
        top_p=0.5,
        tools=[TOOL],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        text={"format": {"type": "json_schema", "name": "n", "schema": schema}},
        store=False,
    )
    ask = world.asked[-1]
    assert (ask.tool_name, ask.tool_choice, ask.parallel_tool_calls) == ("f", "required", False)
    assert json.loads(ask.response_schema) == schema
    assert (ask.temperature, ask.top_p) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"input": [{"type": "computer_call"}]}, "input"),
        ({"input": [{"role": "owner", "content": "x"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"background": True}, "background"),
    ],
)
def test_refusals(world, more, param):
    body = {"model": "chat", "input": "x"} | more
    answer = httpx.post(f"{world.url}/responses", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("item", [{"role": "owner", "content": "x"}, {"content": "x"}])
def test_an_item_that_lacks_a_role_is_refused_by_the_name_of_the_field(world, item) -> None:
    answer = httpx.post(f"{world.url}/responses", json={"model": "chat", "input": [item]})
    message = answer.json()["error"]["message"]
    assert "missing or has an unknown value" in message
    assert ("'role'" in message) or ("'owner'" in message)


def user(content):
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (user([{"type": "input_image"}]), "'image_url' is missing"),
        (user(["x"]), "only text parts, and images"),
        (user([{"text": "x"}]), "only text parts, and images"),
        (user([{"type": "input_text"}]), "'text' is missing or has an unknown value"),
        (user([{"type": "text", "text": 3}]), "text must be a string"),
        (user({"text": "x"}), "text must be a string or a list of parts"),
        ({"type": "function_call", "call_id": "c", "name": 3}, "name must be a string"),
        ({"type": "function_call_output", "output": "x"}, "'call_id' is missing"),
        ({"type": "computer_call"}, "items of the type 'computer_call' are not supported"),
        ({"type": ["message"]}, "are not supported"),
    ],
)
def test_bad_item_is_refused_by_its_index_and_its_fault(world, item, message):
    body = {"model": "chat", "input": [user("a"), item]}
    answer = httpx.post(f"{world.url}/responses", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert (error["param"], error["code"]) == ("input", "invalid_request")
    assert error["message"].startswith("input[1]")
    assert message in error["message"]


@pytest.mark.parametrize("given", [3, True, {"role": "user"}, [3], [user("a"), "b"], [[]]])
def test_input_that_is_neither_text_nor_items_is_an_invalid_value(world, given):
    answer = httpx.post(f"{world.url}/responses", json={"model": "chat", "input": given})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "input", "invalid_value")


def test_keys_that_a_response_adds_to_its_items_are_not_read(sdk, world):
    part = {"type": "output_text", "text": "b", "annotations": [{"a": 1}], "logprobs": [3]}
    said = {"type": "message", "id": "m", "status": "completed", "phase": None}
    items = [
        user([{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]),
        {"type": "reasoning", "id": "r", "summary": 3, "encrypted_content": None},
        said | {"role": "assistant", "content": [part]},
        {"type": "function_call_output", "call_id": "c", "output": [part, part], "status": "x"},
    ]
    sdk.create(model="chat", input=items)
    got = [(m.role, m.content, m.call_id) for m in world.asked[-1].messages]
    assert got == [
        (Role.USER, "a\nb", None),
        (Role.ASSISTANT, "b", None),
        (Role.TOOL, "b\nb", "c"),
    ]


def test_openapi_describes_the_items_of_the_input(world):
    paths = httpx.get(f"{world.url.removesuffix('/v1')}/openapi.json").json()["paths"]
    content = paths["/v1/responses"]["post"]["requestBody"]["content"]["application/json"]
    text, items = content["schema"]["properties"]["input"]["anyOf"]
    assert text == {"type": "string"}
    kinds = {one["properties"]["type"]["const"]: one for one in items["items"]["oneOf"]}
    assert kinds.keys() == {"message", "function_call", "function_call_output", "reasoning"}
    assert kinds["message"]["required"] == ["role"]
    parts = kinds["message"]["properties"]["content"]["anyOf"][1]["items"]
    text, image = parts["oneOf"]
    assert text["properties"]["type"]["enum"] == ["input_text", "output_text", "text"]
    assert image["properties"]["type"]["const"] == "input_image"


def test_a_response_with_store_false_is_not_stored(sdk):
    first = sdk.create(model="chat", input="x", store=False)
    with pytest.raises(openai.BadRequestError):
        sdk.create(model="chat", input="y", previous_response_id=first.id)


@pytest.mark.parametrize("stream", [True, False])
def test_failures(world, sdk, stream):
    with pytest.raises(openai.InternalServerError):
        sdk.create(model="chat", input="\x01", stream=stream)
    if stream:
        events = list(sdk.create(model="chat", input="hel\x01lo", stream=True))
        assert events[-1].type == "response.failed"
        assert [item.status for item in events[-1].response.output] == ["incomplete"]
    else:
        with pytest.raises(openai.InternalServerError):
            sdk.create(model="chat", input="hel\x01lo")


async def test_responses_are_kept_for_an_hour_in_bounded_memory():
    now = [0.0]
    kept = StoredResponses(StoredItems(max_bytes=1000, clock=lambda: now[0]))
    said = StoredConversation("conv_1", (ChatMessage(Role.USER, "x" * 300),))
    for name in "abcd":
        await kept.store_response("", name, said)
        now[0] += 1
    assert await kept.conversation("", "c") == await kept.conversation("", "d") == said
    with pytest.raises(InvalidRequest):  # there was no room
        await kept.conversation("", "a")
    now[0] = KEPT_S + 2.5
    assert await kept.conversation("", "d") == said
    with pytest.raises(InvalidRequest):
        await kept.conversation("", "c")
