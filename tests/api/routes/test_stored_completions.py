"""Completions with `store` are found, listed, labelled and deleted by their caller only."""

from __future__ import annotations

import httpx
import openai
import pytest

from izwi_api.serve.app import create_app
from izwi_api.settings import Access, Settings
from izwi_api.usage.keys import add_key
from izwi_api.usage.limits import KeyLimits
from tests.api.conftest import FakeChat, FakeEngine, FakeRegistry, FakeSpeech, listening

PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The address of a server with a model that repeats, and the keys of two callers."""
    home = tmp_path_factory.mktemp("home")
    keys = [add_key(home / "keys.toml", name, KeyLimits()) for name in ("ada", "bob")]
    settings = Settings(home=home, access=Access(api_keys_file=home / "keys.toml"))
    registry = FakeRegistry(chat=FakeChat(), other=FakeChat(), tts=FakeSpeech())
    with listening(create_app(FakeEngine(), registry, settings)) as port:
        yield f"http://127.0.0.1:{port}", keys


@pytest.fixture
def http(world):
    url, keys = world
    headers = {"authorization": f"Bearer {keys[0]}"}
    with httpx.Client(base_url=url, timeout=60, headers=headers) as client:
        yield client
        for completion in client.get(PATH, params={"limit": 100}).json()["data"]:
            client.delete(f"{PATH}/{completion['id']}").raise_for_status()


@pytest.fixture
def sdk(world, http):
    url, keys = world
    with openai.OpenAI(base_url=f"{url}/v1", api_key=keys[0], max_retries=0) as client:
        yield client.chat.completions


def stored(sdk, text, **more):
    options = {"model": "chat", "store": True} | more
    return sdk.create(messages=[{"role": "user", "content": text}], **options)


def test_it_comes_back_as_it_was_answered(sdk):
    answer = stored(sdk, "Hello", metadata={"topic": "greeting"}, n=2)
    found = sdk.retrieve(answer.id)
    assert found.model_dump() == answer.model_dump() | {"metadata": {"topic": "greeting"}}
    assert [choice.message.content for choice in found.choices] == ["Hello", "Hello"]


def test_a_stream_is_stored_when_it_is_complete(sdk):
    chunks = list(stored(sdk, "one two three", stream=True, logprobs=True))
    found = sdk.retrieve(chunks[0].id)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert found.choices[0].message.content == text == "one two three"
    assert found.object == "chat.completion"
    assert found.usage.completion_tokens > 0


def test_only_what_should_be_stored_is(sdk, http):
    for more in ({}, {"store": False}, {"store": None}):
        body = {"model": "chat", "messages": [{"role": "user", "content": "x"}], **more}
        name = http.post(PATH, json=body).raise_for_status().json()["id"]
        assert http.get(f"{PATH}/{name}").status_code == 404
    assert list(sdk.list()) == []


def test_labels(sdk):
    answer = stored(sdk, "Hello", metadata={"topic": "greeting"})
    assert sdk.update(answer.id, metadata={"a": "b"}).metadata == {"a": "b"}
    assert sdk.retrieve(answer.id).metadata == {"a": "b"}
    assert sdk.update(answer.id, metadata=None).metadata == {}


def test_a_list_is_read_page_by_page(sdk):
    names = [stored(sdk, str(place), metadata={"n": str(place % 2)}).id for place in range(5)]
    stored(sdk, "x", model="other")
    assert [each.id for each in sdk.list(limit=2, model="chat")] == names
    assert [each.id for each in sdk.list(limit=2, model="chat", order="desc")] == names[::-1]
    odd = sdk.list(limit=1, model="chat", metadata={"n": "1"})
    assert [each.id for each in odd.data] == names[1:2]
    assert odd.has_more
    assert [each.id for each in odd] == [names[1], names[3]]
    assert [each.id for each in sdk.list(after=names[3], model="chat")] == names[4:]
    page = sdk.list(limit=0)
    assert (page.data, page.has_more) == ([], True)


def test_the_messages_that_it_answers(sdk, http):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    answer = sdk.create(model="chat", messages=messages, store=True)
    listed = http.get(f"{PATH}/{answer.id}/messages").json()
    system, user = listed["data"]
    assert (system["role"], system["content"]) == ("system", "Be brief.")
    assert (user["content"], user["content_parts"]) == ("one\ntwo", parts)
    assert (listed["first_id"], listed["has_more"]) == (system["id"], False)
    last = http.get(f"{PATH}/{answer.id}/messages", params={"order": "desc", "limit": 1}).json()
    assert (last["data"], last["has_more"]) == ([user], True)
    behind = sdk.messages.list(answer.id, after=system["id"]).data
    assert [message.id for message in behind] == [user["id"]]
    assert http.get(f"{PATH}/{answer.id}/messages", params={"after": "x"}).status_code == 404


def test_messages_are_listed_with_the_keys_that_they_were_sent_with(sdk, http):
    called = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    refusal = [{"type": "refusal", "refusal": "No."}, {"type": "text", "text": "Sorry."}]
    messages = [
        {"role": "user", "content": "one", "name": "Ada"},
        {"role": "assistant", "content": None, "tool_calls": [called], "audio": None},
        {"role": "tool", "content": "", "tool_call_id": "c"},
        {"role": "assistant", "content": refusal},
        {"role": "user", "content": "two"},
    ]
    answer = sdk.create(model="chat", messages=messages, store=True)
    listed = http.get(f"{PATH}/{answer.id}/messages").json()["data"]
    assert [message.pop("id") for message in listed] == [f"{answer.id}-{n}" for n in range(5)]
    more = {"content_parts": None, "refusal": None}
    expected = [message | more for message in messages]
    expected[3] |= {"content": "No.\nSorry.", "content_parts": refusal}
    assert listed == expected


def test_a_deleted_one_is_gone(sdk):
    answer = stored(sdk, "Hello")
    deleted = sdk.delete(answer.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (
        answer.id,
        True,
        "chat.completion.deleted",
    )
    for again in (sdk.retrieve, sdk.delete, sdk.messages.list):
        with pytest.raises(openai.NotFoundError) as refused:
            again(answer.id)
        assert refused.value.code == "completion_not_found"


def test_another_caller_finds_nothing(sdk, world):
    url, keys = world
    answer = stored(sdk, "a secret")
    with openai.OpenAI(base_url=f"{url}/v1", api_key=keys[1], max_retries=0) as other:
        theirs = other.chat.completions
        assert list(theirs.list()) == []
        for attempt in (
            lambda: theirs.retrieve(answer.id),
            lambda: theirs.update(answer.id, metadata={"a": "b"}),
            lambda: theirs.delete(answer.id),
            lambda: theirs.messages.list(answer.id),
            lambda: theirs.list(after=answer.id),
        ):
            with pytest.raises(openai.NotFoundError):
                attempt()
    assert sdk.retrieve(answer.id).metadata == {}


@pytest.mark.parametrize(
    ("query", "param"),
    [({"limit": -1}, "limit"), ({"limit": 101}, "limit"), ({"order": "up"}, "order")],
)
def test_a_list_that_cannot_be_read(http, query, param):
    refused = http.get(PATH, params=query)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    "metadata", [{"k" * 65: "v"}, {"k": "v" * 513}, {str(n): "v" for n in range(17)}, {"k": 1}]
)
def test_labels_have_limits(http, sdk, metadata):
    answer = stored(sdk, "Hello")
    for path, more in ((PATH, {"messages": [{"role": "user", "content": "x"}]}), (answer.id, {})):
        body = {"metadata": metadata} | (more and {"model": "chat", "store": True, **more})
        refused = http.post(path if more else f"{PATH}/{path}", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "metadata")
