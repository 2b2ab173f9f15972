"""Which rows have drafts, and how long these are."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from izwi.inputs.grammar import Grammar
from izwi.request.request import Request
from izwi.request.sequence import Sequence
from izwi.scheduler.cost import StepCost
from izwi.scheduler.plan import Budgets
from izwi.scheduler.speculation import Speculation, accepted
from izwi.scheduler.work import PlannedRow
from tests.engine.toy import ToyPrompt, toy_request

PAGE = 4
# A pass over the weights costs as much as thirty positions.
CHEAP = StepCost(base_s=3e-3, decode_row_s=1e-4, prefill_token_s=1e-4)
DEAR = StepCost(base_s=1e-3, decode_row_s=1e-3, prefill_token_s=1e-3)


class Memory:
    """Counts pages."""

    def __init__(self, num_available: int):
        self.num_available = num_available

    def allocate(self, count: int) -> list[int]:
        self.num_available -= count
        assert self.num_available >= 0
        return list(range(100, 100 + count))


class Prompts:
    def prompt_ids(self, request: Request) -> list[int] | None:
        assert isinstance(request.prompt, ToyPrompt)
        return list(request.prompt.ids) if request.model == "text" else None


def row_of(num_entries: int = 4, limit: int = 99, **more: Any) -> PlannedRow:
    request = toy_request("r", 3, seed=0, frames=limit, model="text")
    sequence = Sequence(replace(request, **more), 0)
    sequence.emitted = [(7,)] * num_entries
    sequence.drawing.limit = limit
    stop = sequence.num_positions
    sequence.kv.pages = list(range(-(-stop // PAGE)))
    return PlannedRow(sequence, stop - 1, stop)


def drafts_of(
    rows: list[PlannedRow],
    mode: str = "ngram",
    tokens: int = 99,
    num_available: int = 99,
    cost: StepCost = CHEAP,
) -> list[int]:
    budgets = Budgets(PAGE, 0, tokens, 1, 8, 1, cost=cost)
    memory: Any = Memory(num_available)
    extended = Speculation(mode, Prompts()).extend(list(rows), budgets, memory)
    for before, row in zip(rows, extended, strict=True):
        assert row.stop == before.stop + len(row.draft)
        assert row.start == before.start
        assert row.emits == before.emits
        assert len(row.sequence.kv.pages) == -(-row.stop // PAGE)
    return [len(row.draft) for row in extended]


def test_right_guesses_count_up_to_the_first_wrong_one() -> None:
    draft = ((1,), (2,), (3,))
    assert accepted(draft, ((1,), (2,), (3,), (9,))) == 3
    assert accepted(draft, ((1,), (9,), (3,), (9,))) == 1
    assert accepted(draft, ((9,), (2,), (3,), (9,))) == 0


def test_rows_of_texts_that_repeat_are_drafted() -> None:
    assert drafts_of([row_of(), row_of(num_entries=1)]) == [4, 0]


@pytest.mark.parametrize(
    "more",
    [
        {"grammar": Grammar("regex", "a")},
        {"open_input": True},
        {"output_positions": (0, 0, 0, 0, 2)},
        {"model": "toy"},
    ],
)
def test_others_are_not(more: dict[str, Any]) -> None:
    assert drafts_of([row_of(**more)]) == [0]


def test_nothing_follows_an_entry_in_flight() -> None:
    row = row_of()
    row.sequence.pending.entries = 1
    ahead = row._replace(start=row.start + 1, stop=row.stop + 1)
    assert ahead.emits
    assert drafts_of([ahead]) == [0]


def test_prompts_are_not_drafted() -> None:
    row = row_of()
    assert drafts_of([row._replace(start=0)]) == [0]


def test_drafts_stay_within_limits() -> None:
    assert drafts_of([row_of(limit=7)]) == [2]  # the third is drawn without a guess
    assert drafts_of([row_of(limit=5)]) == [0]
    assert drafts_of([row_of(), row_of()], tokens=7) == [4, 1]
    assert drafts_of([row_of(), row_of()], tokens=2) == [0, 0]


def test_drafts_leave_pages_to_others() -> None:
    assert drafts_of([row_of()], num_available=7) == [4]  # 7 positions and 4, in pages of 4
    assert drafts_of([row_of()], num_available=6) == [1]
    assert drafts_of([row_of(), row_of()], num_available=9) == [4, 1]


def test_auto_drafts_where_it_pays() -> None:
    assert drafts_of([row_of()], "auto") == [4]
    assert drafts_of([row_of()], "auto", cost=DEAR) == [0]
    assert drafts_of([row_of()], "auto", cost=StepCost()) == [0]  # nothing is known yet
    few, many = ([row_of() for _ in range(count)] for count in (8, 64))
    assert sum(drafts_of(few, "auto")) > 0
    assert drafts_of(many, "auto", tokens=999, num_available=999) == [0] * 64
