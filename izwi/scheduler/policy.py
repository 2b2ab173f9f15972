"""Decide what the next step of one model runs. Pure: no clocks, no tensors, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from izwi.cache.pages import pages_for


@dataclass(frozen=True, slots=True)
class View:
    """What the policy sees of one sequence.

    Attributes:
        key: Names the sequence; a smaller key arrived earlier.
        num_positions: Positions known (prompt and log).
        num_computed: Of these, positions whose keys and values are in the pages.
        num_pages: Pages held.
        num_encodes: Pieces of audio still to encode before the first position runs.
        encode_only: It ends once its audio is encoded.
        held: Its reader is behind, so it emits nothing more for now.
    """

    key: int
    num_positions: int
    num_computed: int = 0
    num_pages: int = 0
    num_encodes: int = 0
    encode_only: bool = False
    held: bool = False


@dataclass(frozen=True, slots=True)
class Budgets:
    """What one step may spend."""

    page_size: int
    free_pages: int
    tokens: int
    encodes: int
    running: int


@dataclass(frozen=True, slots=True)
class Forward:
    """Run positions [start, stop) of a sequence, with `new_pages` pages more than it holds."""

    key: int
    start: int
    stop: int
    new_pages: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One step of one model.

    Attributes:
        preempt: Sequences whose pages are taken back first; they wait again.
        admit: Sequences that stop waiting.
        encode: How many pieces of audio of which sequence are encoded, before the forward pass.
        forward: Rows of the one forward pass.
    """

    preempt: tuple[int, ...] = ()
    admit: tuple[int, ...] = ()
    encode: tuple[tuple[int, int], ...] = ()
    forward: tuple[Forward, ...] = ()


@dataclass(slots=True)
class _Draft:
    """Budgets as they are spent."""

    page_size: int
    free_pages: int
    tokens: int
    encodes: int
    preempt: list[int] = field(default_factory=list)
    admit: list[int] = field(default_factory=list)
    encode: list[tuple[int, int]] = field(default_factory=list)
    forward: list[Forward] = field(default_factory=list)

    def pages_short(self, view: View, stop: int) -> int:
        needed = pages_for(stop, self.page_size) - view.num_pages
        return max(0, needed)

    def add_forward(self, view: View, stop: int) -> None:
        pages = self.pages_short(view, stop)
        self.free_pages -= pages
        self.tokens -= stop - view.num_computed
        self.forward.append(Forward(view.key, view.num_computed, stop, pages))


def plan_step(running: Sequence[View], waiting: Sequence[View], budgets: Budgets) -> Plan:
    """Fill one step: decodes first, then prompts under way, then new ones in arrival order.

    A voice that already plays must not starve: a missed step is audible, a late first token is
    not. When pages run out, the latest arrivals give theirs back and are rebuilt from their log
    later; the earliest running sequence always gets on, so the loop never stands still.

    Args:
        running: Sequences that hold pages, in arrival order.
        waiting: Sequences that wait, in the order in which they should start.
        budgets: What the step may spend; `running` counts sequences in all.

    Returns:
        A plan that runs at most `budgets.tokens` positions, encodes at most `budgets.encodes`
        pieces and takes at most `budgets.free_pages` pages beyond those that preemption frees.
    """
    draft = _Draft(budgets.page_size, budgets.free_pages, budgets.tokens, budgets.encodes)
    alive = sorted(running, key=lambda view: view.key)
    decodes = [view for view in alive if _decodes(view) and not view.held]
    for view in decodes:
        if view.key in draft.preempt or draft.tokens == 0:
            continue
        if not _make_room(draft, view, alive, draft.pages_short(view, view.num_positions)):
            continue
        draft.add_forward(view, view.num_positions)
    for view in alive:
        if not _decodes(view) and view.key not in draft.preempt:
            _advance_prompt(draft, view, alive)
    room = budgets.running - (len(alive) - len(draft.preempt))
    if not draft.preempt:  # what was just taken back must not be given to a newcomer
        _admit(draft, waiting, room)
    return Plan(tuple(draft.preempt), tuple(draft.admit), tuple(draft.encode), tuple(draft.forward))


def _decodes(view: View) -> bool:
    ready = view.num_encodes == 0 and not view.encode_only
    return ready and view.num_positions - view.num_computed == 1


def _make_room(draft: _Draft, view: View, alive: Iterable[View], pages: int) -> bool:
    """Take pages back from later arrivals until `pages` are free. False: `view` must wait."""
    planned = {row.key for row in draft.forward}
    for victim in sorted(alive, key=lambda other: -other.key):
        if pages <= draft.free_pages:
            return True
        if victim.key <= view.key:
            return pages <= draft.free_pages
        if victim.key in planned or victim.key in draft.preempt or victim.num_pages == 0:
            continue
        draft.preempt.append(victim.key)
        draft.free_pages += victim.num_pages
    return pages <= draft.free_pages


def _advance_prompt(draft: _Draft, view: View, alive: Sequence[View] = ()) -> None:
    """Encode what is left of the audio, then run as much of the prompt as the budgets allow.

    Later arrivals among `alive` make room for it.
    """
    if view.num_encodes > 0:
        count = min(view.num_encodes, draft.encodes)
        if count > 0:
            draft.encodes -= count
            draft.encode.append((view.key, count))
        if count < view.num_encodes:
            return
    if view.encode_only or draft.tokens == 0:
        return
    # the last position of a prompt emits, so a held sequence runs all but that
    runnable = view.num_positions - view.held
    wanted = min(runnable, view.num_computed + draft.tokens)
    _make_room(draft, view, alive, draft.pages_short(view, wanted))
    in_pages = (view.num_pages + draft.free_pages) * draft.page_size
    stop = min(wanted, in_pages)
    if stop > view.num_computed:
        draft.add_forward(view, stop)


def _admit(draft: _Draft, waiting: Iterable[View], room: int) -> None:
    """Start waiting sequences in order; none overtakes one that has no room yet."""
    for view in waiting:
        whole = 0 if view.encode_only else draft.pages_short(view, view.num_positions + 1)
        if room <= 0 or whole > draft.free_pages or draft.tokens == 0:
            return
        room -= 1
        draft.admit.append(view.key)
        after = draft.free_pages - whole
        _advance_prompt(draft, view)
        # pages of the rest of its prompt are set aside, or the next newcomer would eat them
        draft.free_pages = min(draft.free_pages, after)
