"""The result of a function that arrives while the user speaks is answered when they have spoken."""

from __future__ import annotations

import numpy as np
import pytest

from tests.realtime.scenes import happened
from tests.realtime.test_scenes import session
from tests.realtime.world import World, recorded


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield World(tmp_path_factory.mktemp("world"), patch)


def tell_result(phone):
    item = {"type": "function_call_output", "call_id": "call-1", "output": "It is 7."}
    phone.send_event("conversation.item.create", item=item)
    phone.send_event("response.create", response={"metadata": {"for": "call-1"}})


@pytest.mark.parametrize("at_share", [0.6, pytest.param(1.0, marks=pytest.mark.slow)])
def test_a_result_waits_for_the_end_of_the_turn(world, at_share):
    """While the user speaks, and in the silence in which an answer is prepared."""

    async def script(phone, engine):
        await phone.be_silent(0.4)
        question = recorded("question")
        end = int(np.flatnonzero(np.abs(question) > 0.02)[-1])
        place = int(at_share * end)
        await phone.hear(question[:place])
        if at_share == 1.0:
            await phone.be_silent(0.32)
        tell_result(phone)
        await phone.hear(question[place:])
        await phone.until_answered()

    phone = world.talk(script, session=session())
    assert happened(phone) == "SERD"
    assert at_share < 1.0 or phone.prepared[-2:] == [False, True]
    (created,) = phone.of("response.created")
    assert created.event["response"]["metadata"] == {"for": "call-1"}
    roles = [message.role.value for message in world.prompts[-1]]
    assert sorted(roles) == ["tool", "user"]


def test_a_result_in_silence_is_answered_at_once(world):
    async def script(phone, engine):
        await phone.be_silent(0.4)
        tell_result(phone)
        await phone.until("response.created")
        await phone.until_answered()

    assert happened(world.talk(script, session=session())) == "RD"
