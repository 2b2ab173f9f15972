"""With a `seed`, the same conversation gets the same answers (an extension)."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from izwi.errors import InvalidRequest
from izwi_api.realtime import response_maker
from izwi_api.realtime.settings import RealtimeSettings, as_json, updated
from tests.realtime.world import World


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        made = World(tmp_path_factory.mktemp("world"), patch)
        made.answer = "At seven."
        yield made


async def ask_twice(phone, engine):
    for seed in ({}, {"seed": 12}):
        phone.tell("response.create", response={"conversation": "none", "input": [], **seed})
        await phone.until_answered()


def test_answers_with_the_same_seed_are_the_same(world, monkeypatch):
    drawn = itertools.count(100)
    monkeypatch.setattr(response_maker, "secrets", SimpleNamespace(randbits=lambda _: next(drawn)))

    def audio(**session):
        phone = world.talk(ask_twice, session=session)
        ids = [e.event["response"]["id"] for e in phone.of("response.created")]
        return [phone.audio(response_id) for response_id in ids]

    (first, other), (again, same) = audio(seed=11), audio(seed=11)
    assert first == again
    assert other == same
    assert first != other
    assert next(drawn) == 100, "a seed was drawn"


@pytest.mark.parametrize("seed", [-1, 2**63, "x"])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(InvalidRequest) as refused:
        updated(RealtimeSettings(), {"seed": seed})
    assert refused.value.param == "session.seed"


def test_clients_that_set_no_seed_see_none():
    assert "seed" not in as_json(RealtimeSettings())
    assert as_json(updated(RealtimeSettings(), {"seed": 5}))["seed"] == 5
