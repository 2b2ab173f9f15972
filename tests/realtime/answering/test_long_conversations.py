"""A conversation that outgrows the model's context goes on without its oldest turns."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.errors import ContextTooLong
from izwi_api.realtime.answering.context_window import answer_room, open_within, without_oldest
from izwi_api.realtime.protocol import items as items_module
from izwi_api.realtime.protocol.errors import EventError
from izwi_api.realtime.protocol.items import Content, Conversation, Item
from tests.realtime.test_conversations import talking


def message(role, text):
    kind = "output_text" if role == "assistant" else "input_text"
    return Item("message", role=role, content=[Content(kind, text)])


def call():
    return Item("function_call", name="f", arguments="{}", call_id="c")


def output():
    return Item("function_call_output", call_id="c", output="1")


ITEMS = st.lists(
    st.one_of(
        st.builds(message, st.sampled_from(["system", "user", "assistant"]), st.text(max_size=40)),
        st.builds(call),
        st.builds(output),
    ),
    max_size=12,
)


@given(ITEMS, st.floats(0, 1))
def test_a_cut_keeps_whole_turns_and_the_system_messages(items, ratio):
    kept = without_oldest(items, ratio)
    if not kept:
        users = [n for n, item in enumerate(items) if item.role == "user"]
        before_last = items[: users[-1]] if users else []
        assert all(item.role == "system" for item in before_last)
        return
    assert len(kept) < len(items)
    assert [item for item in items if item.role == "system"] == [
        item for item in kept if item.role == "system"
    ]
    turns = [item for item in kept if item.role != "system"]
    assert turns[0].role == "user"
    assert turns == [item for item in items if item.role != "system"][-len(turns) :]
    if sum(item.role == "user" for item in turns) > 1:
        sizes = [item.num_characters + 16 for item in items if item.role != "system"]
        assert sum(sizes[-len(turns) :]) <= ratio * sum(sizes)


class Model:
    """Refuses prompts of more than 100 characters, and counts one as a token."""

    def __init__(self):
        self.opened, self.aborted = [], 0

    async def start(self, items):
        size = sum(item.num_characters for item in items)
        self.opened.append(size)
        if size > 100:
            raise ContextTooLong("too long", param="messages")
        return SimpleNamespace(answer=SimpleNamespace(num_prompt_tokens=size), abort=self.abort)

    def abort(self):
        self.aborted += 1


async def test_a_prompt_leaves_room_for_the_answer_and_later_ones_begin_where_it_does():
    model, conversation = Model(), Conversation()
    firsts = []
    for _ in range(12):
        conversation.add(message("user", "x" * 20))
        items = conversation.remembered
        answer = await open_within(items, 0.5, 80, model.start)
        assert answer.answer.num_prompt_tokens <= 80
        firsts.append(conversation.remembered[0].item_id)
    assert len(conversation.items) == 12
    assert 2 < len(set(firsts)) < 7, "several answers between two cuts"
    assert model.aborted == len(set(firsts)) - 1


@pytest.mark.parametrize(("most_tokens", "is_cut"), [(79, True), (80, False), (81, False)])
async def test_a_prompt_that_just_fits_is_not_cut(most_tokens, is_cut):
    model = Model()
    items = [message("user", "x" * 40), message("user", "x" * 40)]
    answer = await open_within(items, 0.8, most_tokens, model.start)
    assert answer.answer.num_prompt_tokens == (40 if is_cut else 80)
    assert [item.is_left_out for item in items] == [is_cut, False]
    assert model.aborted == is_cut


@pytest.mark.parametrize(("size", "is_cut"), [(100, False), (101, True)])
async def test_a_prompt_as_long_as_the_context_is_not_cut(size, is_cut):
    model = Model()
    items = [message("user", "x" * (size - 30)), message("user", "x" * 30)]
    answer = await open_within(items, 0.8, 100, model.start)
    assert answer.answer.num_prompt_tokens == (30 if is_cut else 100)


async def test_conversation_that_cannot_be_cut_is_refused():
    model = Model()
    items = [message("user", "x" * 60), message("user", "x" * 60)]
    with pytest.raises(ContextTooLong):
        await open_within(items, None, 80, model.start)
    assert not any(item.is_left_out for item in items)
    with pytest.raises(ContextTooLong):
        await open_within([message("system", "x" * 60), items[0]], 0.8, 80, model.start)
    alone = await open_within([message("user", "x" * 90)], 0.8, 80, model.start)
    assert alone.answer.num_prompt_tokens == 90, "a short answer is better than none"


@pytest.mark.parametrize(
    ("max_positions", "max_tokens", "room"),
    [(2048, None, 256), (2048, 100, 100), (131_072, None, 4096), (131_072, 4000, 4000)],
)
def test_the_room_of_an_answer(max_positions, max_tokens, room):
    assert answer_room(max_positions, max_tokens) == room


def test_a_full_conversation_takes_turns_but_no_more_items_of_the_client(monkeypatch):
    monkeypatch.setattr(items_module, "_MAX_ITEMS", 3)
    conversation = Conversation()
    made = [message("user", str(n)) for n in range(4)]
    for item in made[:3]:
        conversation.add(item)
    with pytest.raises(EventError):
        conversation.add(made[3])
    assert conversation.append(made[3]) == made[2].item_id
    assert conversation.items == made[1:]


async def test_a_session_goes_on_beyond_the_context(client, served):
    """The model has 1024 positions; each question takes about 120."""
    async with talking(client, output_modalities=["text"], instructions="Be short.") as talk:
        for n in range(16):
            said = [{"type": "input_text", "text": f"{n}: " + "x" * 90}]
            item = {"type": "message", "role": "user", "content": said}
            await talk.connection.conversation.item.create(item=item)
            await talk.connection.response.create()
            done = await talk.until("response.done")
            assert done.response.status_details.type != "failed", n
    last = served.prompts[-1]
    assert [message.role for message in last[:2]] == ["system", "user"]
    assert last[-1].content.startswith("15: ")
    assert len(last) < 16


async def test_a_session_may_refuse_to_forget(client):
    async with talking(client, output_modalities=["text"], truncation="disabled") as talk:
        for n in range(2):
            said = [{"type": "input_text", "text": f"{n}: " + "x" * 700}]
            item = {"type": "message", "role": "user", "content": said}
            await talk.connection.conversation.item.create(item=item)
        await talk.connection.response.create()
        done = await talk.until("response.done")
        error = done.response.status_details.error
        assert error.code == "context_length_exceeded"
        assert "room for 1024 tokens" in error.message
        keep = {"type": "retention_ratio", "retention_ratio": 0.5}
        await talk.connection.session.update(session={"type": "realtime", "truncation": keep})
        await talk.connection.response.create()
        done = await talk.until("response.done")
        assert done.response.status_details.type != "failed"
        wrong = {"type": "retention_ratio", "retention_ratio": 2}
        await talk.connection.session.update(session={"type": "realtime", "truncation": wrong})
        assert (await talk.until("error")).error.param == "session.truncation.retention_ratio"
