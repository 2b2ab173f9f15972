"""Out-of-band responses (`conversation: "none"`): beside the one in progress, and no part of it."""

from __future__ import annotations

from tests.realtime.conftest import LONG_ANSWER
from tests.realtime.test_conversations import talking

NOTE = {"conversation": "none", "output_modalities": ["text"], "metadata": {"for": "notes"}}


async def test_a_response_outside_the_conversation_does_not_wait_for_another(client, served):
    served.answer = LONG_ANSWER
    async with talking(client) as talk:
        await talk.connection.response.create()
        first = await talk.until("response.created")
        await talk.until("response.output_audio.delta")
        await talk.connection.response.create(response=NOTE | {"instructions": "Sum up."})
        second = await talk.until("response.created")
        done = await talk.until("response.done")
        assert done.response.id == second.response.id, "it waits for none"
        assert done.response.metadata == {"for": "notes"}
        assert done.response.conversation_id is None
        assert done.response.output[0].content[0].text == LONG_ANSWER
        ended = await talk.until("response.done")
        assert ended.response.id == first.response.id
        await talk.connection.conversation.item.retrieve(item_id=done.response.output[0].id)
        assert (await talk.until("error")).error.code == "item_retrieve_invalid_item_id"
    added = [event.item.id for event in talk.events if event.type == "conversation.item.added"]
    assert added == [ended.response.output[0].id]


async def test_a_response_outside_the_conversation_uses_only_its_input(client, served):
    said = [{"type": "input_text", "text": "Only this."}]
    async with talking(client) as talk:
        item = {"type": "message", "role": "user", "content": said}
        await talk.connection.response.create(response=NOTE | {"input": [item]})
        await talk.until("response.done")
    assert [message.content for message in served.prompts[-1]] == ["Only this."]


async def test_each_response_is_cancelled_by_its_id(client):
    async with talking(client) as talk:
        await talk.connection.response.create()
        first = await talk.until("response.created")
        await talk.until("response.output_audio.delta")
        loud = {"conversation": "none", "output_modalities": ["audio"]}
        await talk.connection.response.create(response=loud)
        second = await talk.until("response.created")
        await talk.until("response.output_audio.delta", response_id=second.response.id)
        await talk.connection.response.cancel(response_id=second.response.id)
        done = await talk.until("response.done")
        assert done.response.id == second.response.id
        assert done.response.status_details.reason == "client_cancelled"
        await talk.connection.response.cancel(response_id=second.response.id)
        assert (await talk.until("error")).error.code == "response_cancel_not_active"
        await talk.connection.response.cancel()
        done = await talk.until("response.done")
        assert done.response.id == first.response.id


async def test_responses_at_the_same_time_are_limited(client):
    async with talking(client) as talk:
        loud = {"conversation": "none", "output_modalities": ["audio"]}
        for _ in range(5):
            await talk.connection.response.create(response=loud)
        assert (await talk.until("error")).error.code == "too_many_responses"
        created = [event.response.id for event in talk.events if event.type == "response.created"]
        assert len(created) == 4
        for response_id in created:
            await talk.connection.response.cancel(response_id=response_id)
            await talk.until("response.done")
        await talk.connection.response.create(response=NOTE)
        assert (await talk.until("response.done")).response.output
