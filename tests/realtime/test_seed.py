"""With a `seed`, the same conversation gets the same answers (an extension)."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from izwi.errors import InvalidRequest
from izwi_api.realtime.answering import response_maker
from izwi_api.realtime.protocol.settings import RealtimeSettings, as_json, updated
from tests.realtime.world import World


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        made = World(tmp_path_factory.mktemp("world"), patch)
        made.answer = "At seven."
        yield made


async def ask(phone, engine):
    phone.send_event("response.create")
    await phone.until("response.created")
    await phone.until_answered()


def test_answers_with_the_same_seed_are_the_same(world, monkeypatch):
    drawn = itertools.count(100)
    monkeypatch.setattr(response_maker, "secrets", SimpleNamespace(randbits=lambda _: next(drawn)))

    first, again, other = (world.talk(ask, session={"seed": seed}).audio() for seed in (1, 1, 2))
    assert first == again != other
    assert next(drawn) == 100, "a seed was drawn"


@pytest.mark.parametrize("seed", [-1, 2**63, "x"])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(InvalidRequest) as refused:
        updated(RealtimeSettings(), {"seed": seed})
    assert refused.value.param == "session.seed"


def test_clients_that_set_no_seed_see_none():
    assert "seed" not in as_json(RealtimeSettings())
    assert as_json(updated(RealtimeSettings(), {"seed": 5}))["seed"] == 5
