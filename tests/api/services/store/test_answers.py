"""Earlier answers are found by id for an hour, for the same caller and model only."""

from __future__ import annotations

import asyncio
import stat

import pytest

from izwi.errors import InvalidRequest
from izwi.inputs.chat import ChatMessage, Role
from izwi.inputs.conversation import AnswerContent
from izwi_api.services.store.answers import StoredAnswers
from izwi_api.services.store.items import Item, Range, StoredItems
from izwi_api.services.store.responses import StoredConversation, StoredResponses

ANSWER = AnswerContent(((200,), (1, 2, 3, 4, 5, 6, 7, 8), (2048,) * 8, (0,)))


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize("answer", [ANSWER, AnswerContent(()), "At séven.", ""])
async def test_an_answer_comes_back_as_it_was(clock, answer):
    kept = StoredAnswers(StoredItems(clock=clock))
    name, expires_at = await kept.store_answer("anna", "s2s", answer)
    assert name.startswith("audio_")
    assert expires_at == 1000 + 3600
    assert await kept.find("anna", "s2s", name) == answer
    other, _ = await kept.store_answer("anna", "s2s", "No.")
    assert other != name
    assert await kept.find("anna", "s2s", other) == "No."
    assert await kept.find("anna", "s2s", name) == answer


@pytest.mark.parametrize(
    ("owner", "model", "match"), [("ben", "s2s", "no answer"), ("anna", "other", "'s2s'")]
)
async def test_an_answer_belongs_to_its_key_and_model(clock, owner, model, match):
    kept = StoredAnswers(StoredItems(clock=clock))
    name, _ = await kept.store_answer("anna", "s2s", ANSWER)
    with pytest.raises(InvalidRequest, match=match) as reported:
        await kept.find(owner, model, name)
    assert reported.value.param == "messages"
    assert await kept.find("anna", "s2s", name) == ANSWER


async def test_stored_answer_expires_after_an_hour(clock):
    items = StoredItems(clock=clock)
    kept = StoredAnswers(items)
    name, _ = await kept.store_answer("", "s2s", ANSWER)
    clock.now += 3599.9
    assert await kept.find("", "s2s", name) == ANSWER
    clock.now += 0.1
    with pytest.raises(InvalidRequest, match="60 minutes"):
        await kept.find("", "s2s", name)
    assert items.num_bytes("audio") == 0


async def test_memory_is_bounded(clock):
    measured = StoredItems(clock=clock)
    await StoredAnswers(measured).store_answer("", "s2s", ANSWER)
    one_bytes = measured.num_bytes("audio")
    assert one_bytes < 4 * 8 * 4  # less than ids of four bytes
    items = StoredItems(clock=clock, max_bytes=10 * one_bytes)
    kept = StoredAnswers(items)
    names = [(await kept.store_answer("", "s2s", ANSWER))[0] for _ in range(25)]
    assert items.num_bytes("audio") == 10 * one_bytes
    for name in names[:15]:
        with pytest.raises(InvalidRequest):
            await kept.find("", "s2s", name)
    assert [await kept.find("", "s2s", name) for name in names[15:]] == [ANSWER] * 10


async def test_a_caller_who_keeps_much_displaces_only_its_own(clock):
    items = StoredItems(clock=clock, max_bytes=1000)
    for owner in ("anna", "ben"):
        clock.now += 1
        await items.put("audio", owner, Item(owner, "m", b"x" * 200))
    for n in range(50):
        clock.now += 1
        await items.put("audio", f"greedy-{n}", Item("greedy", "m", b"x" * 100))
    assert items.num_bytes("audio") == 1000
    found = [n for n in range(50) if await items.get("audio", f"greedy-{n}")]
    assert found == list(range(44, 50))
    # who has less gets room from who has most, and the oldest of it goes
    await items.put("audio", "anna-2", Item("anna", "m", b"x" * 100))
    assert await items.get("audio", "greedy-44") is None
    for name in ("anna", "ben", "anna-2", "greedy-45"):
        assert await items.get("audio", name), name


async def test_answer_larger_than_its_share_is_not_stored(clock):
    items = StoredItems(clock=clock, max_bytes=1000)
    for owner in ("anna", "ben"):
        await items.put("audio", owner, Item(owner, "m", b"x" * 400))
    await items.put("audio", "small", Item("greedy", "m", b"x" * 100))
    assert await items.put("audio", "large", Item("greedy", "m", b"x" * 700)) == clock.now
    for name in ("anna", "ben", "small"):
        assert await items.get("audio", name), name


async def test_room_is_divided_evenly_among_requests_that_could_use_it_all(clock):
    items = StoredItems(clock=clock, max_bytes=1200)
    owners = ("anna", "ben", "carl")
    for owner in owners:
        for n in range(40):
            clock.now += 1
            await items.put("audio", f"{owner}-{n}", Item(owner, "m", b"x" * 100))
    kept = {o: [n for n in range(40) if await items.get("audio", f"{o}-{n}")] for o in owners}
    assert kept == {owner: [36, 37, 38, 39] for owner in owners}
    clock.now += 3600
    assert await items.get("audio", "anna-39") is None
    assert items.num_bytes("audio") == 0


async def test_an_id_that_never_was(clock):
    for name in ("", "audio_x", "x" * 10_000, "\ud800", "\0"):
        with pytest.raises(InvalidRequest, match="no answer") as reported:
            await StoredAnswers(StoredItems(clock=clock)).find("", "s2s", name)
        assert len(str(reported.value)) < 300


# -- the file that processes share -----------------------------------------------------------
async def test_stored_answers_are_shared_between_processes(clock, tmp_path):
    first, second = (StoredItems(tmp_path / "kept.sqlite3", clock=clock) for _ in range(2))
    name, expires_at = await StoredAnswers(first).store_answer("anna", "s2s", ANSWER)
    assert await StoredAnswers(second).find("anna", "s2s", name) == ANSWER
    messages = ChatMessage(Role.USER, "Hé"), ChatMessage(Role.ASSISTANT, "Yes.")
    said = StoredConversation("conv_1", messages)
    await StoredResponses(second).store_response("", "resp_1", said)
    assert await StoredResponses(first).conversation("", "resp_1") == said
    with pytest.raises(InvalidRequest):
        await StoredResponses(first).conversation("ben", "resp_1")
    assert stat.S_IMODE((tmp_path / "kept.sqlite3").stat().st_mode) == 0o600
    clock.now = expires_at
    with pytest.raises(InvalidRequest):
        await StoredAnswers(first).find("anna", "s2s", name)
    assert second.num_bytes("audio") == 0
    for items in (first, second):
        items.close()


async def test_room_is_shared_and_kinds_are_apart(clock, tmp_path):
    stores = [StoredItems(tmp_path / "kept", clock=clock, max_bytes=1000) for _ in range(2)]
    for n in range(20):
        clock.now += 1
        await stores[n % 2].put("audio", str(n), Item("", "m", b"x" * 300))
        await stores[n % 2].put("response", str(n), Item("", "m", b"x" * 90))
    for items in stores:
        assert items.num_bytes("audio") == 900
        assert items.num_bytes("response") == 990
        found = [n for n in range(20) if await items.get("audio", str(n))]
        assert found == [17, 18, 19]
    expires_at = await stores[0].put("audio", "large", Item("", "m", b"x" * 1001))
    assert expires_at == clock.now
    assert await stores[1].get("audio", "large") is None
    for items in stores:
        items.close()


async def test_many_writers_lose_nothing(tmp_path):
    stores = [StoredItems(tmp_path / "kept") for _ in range(4)]
    puts = [stores[n % 4].put("audio", str(n), Item("", "m", bytes([n]))) for n in range(80)]
    await asyncio.gather(*puts)
    assert [(await stores[0].get("audio", str(n))).content[0] for n in range(80)] == list(range(80))
    assert stores[1].num_bytes("audio") == 80
    for items in stores:
        items.close()


async def test_an_answer_that_cannot_be_kept_is_given_all_the_same(clock, tmp_path, caplog):
    items = StoredItems(tmp_path / "nowhere" / "kept", clock=clock)
    name, expires_at = await StoredAnswers(items).store_answer("", "s2s", ANSWER)
    assert expires_at == 1000
    with pytest.raises(InvalidRequest):
        await StoredAnswers(items).find("", "s2s", name)
    assert "cannot be kept" in caplog.text
    (tmp_path / "damaged").write_bytes(b"no database at all" * 99)
    damaged = StoredItems(tmp_path / "damaged", clock=clock)
    assert await damaged.put("audio", "a", Item("", "m", b"x")) == 1000
    assert await damaged.get("audio", "a") is None


# -- items that their owner lists, changes and removes -------------------------------------------
async def put_all(items, *names, owner="anna", model="chat"):
    for name in names:
        await items.put("completion", name, Item(owner, model, name.encode() * 10))


async def names_of(items, *wanted):
    page = await items.page("completion", "anna", Range(*wanted))
    return None if page is None else [name for name, _ in page]


async def test_items_are_listed_in_the_order_in_which_they_came(clock):
    items = StoredItems(clock=clock)
    await put_all(items, "b", "a", "c")  # all of one moment
    clock.now += 1
    await put_all(items, "d", model="other")
    await put_all(items, "e", owner="ben")
    assert await names_of(items) == ["b", "a", "c", "d"]
    assert await names_of(items, None, 100, True) == ["d", "c", "a", "b"]
    assert await names_of(items, "a", 1) == ["c"]
    assert await names_of(items, "c", 100, True) == ["a", "b"]
    assert await names_of(items, None, 100, False, "other") == ["d"]
    assert await names_of(items, "d") == []
    for unknown in ("e", "nothing", "\ud800"):
        assert await names_of(items, unknown) is None
    clock.now += 3599.5
    assert await names_of(items) == ["d"]


async def test_an_item_is_changed_by_its_owner_and_its_size_counts(clock):
    items = StoredItems(clock=clock, max_bytes=100)
    await put_all(items, "a", "b")
    assert await items.change("completion", "a", "ben", lambda _: b"") is None
    assert await items.change("completion", "x", "anna", lambda _: b"") is None
    assert await items.change("completion", "b", "anna", lambda old: old + b"!" * 50) is not None
    assert items.num_bytes("completion") == 10 + 60
    assert await names_of(items) == ["a", "b"]
    clock.now += 3600  # it expires when it did
    assert await names_of(items) == []
    assert items.num_bytes("completion") == 0
    await put_all(items, "a", "b")
    assert await items.change("completion", "a", "anna", lambda _: b"!" * 101) is None
    assert await names_of(items) == ["a", "b"]
    assert await items.change("completion", "a", "anna", lambda _: b"!" * 100) is not None
    assert await names_of(items) == ["a"]


async def test_an_item_is_removed_by_its_owner(clock):
    items = StoredItems(clock=clock)
    await put_all(items, "a")
    assert not await items.remove("completion", "a", "ben")
    assert await items.remove("completion", "a", "anna")
    assert not await items.remove("completion", "a", "anna")
    assert items.num_bytes("completion") == 0


async def test_a_file_that_cannot_be_opened_lists_nothing(tmp_path):
    items = StoredItems(tmp_path / "nowhere" / "kept")
    assert await names_of(items) is None
    assert not await items.remove("completion", "a", "anna")
    assert await items.change("completion", "a", "anna", lambda old: old) is None
