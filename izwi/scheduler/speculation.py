"""Which rows of a step run a draft of their next entries, and how long it is (ADR 44).

A row with a draft runs one position for each id of it and draws an entry at each, so a step gives
it as many entries as it guessed right, and one more.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

from izwi.cache.memory import PagedMemory
from izwi.cache.pages import pages_for
from izwi.request.request import Entries, Request
from izwi.request.sequence import Sequence
from izwi.request.track_log import ONE_TRACK
from izwi.scheduler.cost import StepCost, StepWork
from izwi.scheduler.drafts import Drafting
from izwi.scheduler.plan import Budgets
from izwi.scheduler.work import PlannedRow

# Pages that must be left after pages of a draft are allocated: for each row, and in all.
_LEFT_EACH, _LEFT = 2, 4


class PromptIds(Protocol):
    """What drafts need of a model."""

    def prompt_ids(self, request: Request) -> Seq[int] | None:
        """Return ids of the prompt's positions; None if entries must not be drafted."""
        ...


def accepted(draft: Entries, drawn: Entries) -> int:
    """Return how many of the first entries of a draft are those that were drawn."""
    pairs = zip(draft, drawn, strict=False)
    return next((n for n, (guess, entry) in enumerate(pairs) if guess != entry), len(draft))


class StepRate:
    """Entries per predicted second of a step, while drafts are added to its rows.

    Args:
        rows: The rows.
        cost: Predicts the step's time.
    """

    def __init__(self, rows: Seq[PlannedRow], cost: StepCost):
        self._work = StepWork.from_rows([row.stop - row.start for row in rows], 0, ())
        self._cost, self._entries = cost, float(sum(row.emits for row in rows))

    def add(self, length: int, expected: float) -> bool:
        """Add a draft to a row that decodes, if the step then gives more entries a second.

        Args:
            length: Ids of the draft.
            expected: How many of them will be accepted.
        """
        work = self._work._replace(
            decode_rows=self._work.decode_rows - 1,
            prefill_tokens=self._work.prefill_tokens + length + 1,
        )
        now_s, then_s = self._cost.seconds(self._work), self._cost.seconds(work)
        # prices of 0 are not known yet
        if not now_s or (self._entries + expected) * now_s <= self._entries * then_s:
            return False
        self._work, self._entries = work, self._entries + expected
        return True


class Speculation:
    """Plans the drafts of one model.

    Args:
        mode: "ngram" plans all that fit, "auto" those that make the step's entries cheaper.
        model: The model.
    """

    def __init__(self, mode: str, model: PromptIds):
        self._mode, self._model = mode, model

    def extend(
        self, rows: list[PlannedRow], budgets: Budgets, memory: PagedMemory
    ) -> list[PlannedRow]:
        """Return the rows of a step, some of them with drafts.

        A draft uses positions that the step has left, and pages that nothing else is short of.

        Args:
            rows: The planned rows, with their pages.
            budgets: Of the step.
            memory: Where further pages are allocated.
        """
        if not rows:
            return rows
        rate = StepRate(rows, budgets.cost) if self._mode == "auto" else None
        tokens = budgets.tokens - sum([row.stop - row.start for row in rows])
        reserve = _LEFT_EACH * len(rows) + _LEFT
        extended = []
        for row in rows:
            if tokens > 0 and (draft := self._draft(row, tokens, rate)):
                num_pages = len(row.sequence.kv.pages)
                spare = max(0, memory.num_available - reserve)
                room = (num_pages + spare) * budgets.page_size - row.stop
                draft = draft[: max(0, room)]
                missing = pages_for(row.stop + len(draft), budgets.page_size) - num_pages
                if missing > 0:
                    row.sequence.kv.pages += memory.allocate(missing)
                tokens -= len(draft)
                row = row._replace(stop=row.stop + len(draft), draft=draft)
            extended.append(row)
        return extended

    def _draft(self, row: PlannedRow, most: int, rate: StepRate | None) -> Entries:
        drafting = self._drafting(row)
        limit = row.sequence.drawing.limit
        if drafting is None or limit is None:
            return ()
        emitted = row.sequence.emitted
        ids = drafting.draft(emitted, min(most, limit - len(emitted) - 1))
        while rate is not None and ids and not rate.add(len(ids), drafting.expected(len(ids))):
            ids = ids[: len(ids) // 2]
        return tuple([(one,) for one in ids])

    def _drafting(self, row: PlannedRow) -> Drafting | None:
        """Return the drafts of a row; None if it cannot have one."""
        sequence = row.sequence
        if row.stop - row.start != 1 or not row.emits or not can_draft(sequence):
            return None
        drawing = sequence.drawing
        if drawing.drafting is None:
            ids = self._model.prompt_ids(sequence.request)
            drawing.drafting = False if ids is None else Drafting(ids)
        return drawing.drafting or None


def can_draft(sequence: Sequence) -> bool:
    """Whether the next entries of a sequence may be guessed.

    All earlier ones must be known. A grammar's mask is that of one entry, an output position draws
    one entry whatever was drawn before, and text that is still written is not known.
    """
    request = sequence.request
    return not (
        sequence.pending.entries
        or sequence.output_positions
        or request.grammar is not None
        or request.open_input
        or sequence.tracks is not ONE_TRACK
        or not sequence.emitted
    )
