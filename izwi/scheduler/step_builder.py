"""Build one step within its budgets; shared by all policies. Pure: no clock, no tensor, no I/O.

A policy decides which sequence is next and which may be preempted for it. The step builder knows
the cost of each part of a step, and makes room. It enforces these rules for every policy:

* a plan never exceeds the budgets plus what preemption frees;
* no sequence of the step is preempted, and no preempted sequence joins it;
* a row takes pages only from sequences worth less than its own, in one fixed order a step;
* a new request starts only if its whole prompt and one more position fit beside what prompts in
  flight still need, so that starting alone never leads to preemption; it has a part in the step in
  which it starts, and never takes pages of sequences worth more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from operator import itemgetter

from izwi.cache.pages import pages_for
from izwi.scheduler.plan import Budgets, Forward, Plan, Rank, View

# Shorter parts of a prompt are not worth a row, unless they are its end.
LEAST_CHUNK_TOKENS = 64

_Grade = tuple[bool, tuple[float, ...]]


def is_decode(view: View) -> bool:
    """Whether the sequence's share of a step is one position that emits."""
    progress = view.progress
    return (
        progress.num_positions - progress.num_computed == 1
        and not progress.backpressured
        and not progress.num_encodes
        and not progress.ended
        and not progress.encode_only
    )


def is_due(view: View) -> bool:
    """Whether the sequence has the frames for its next chunk of audio."""
    audio = view.audio
    return 0 < audio.chunk <= audio.frames or (view.progress.ended and audio.frames > 0)


def is_stuck(view: View) -> bool:
    """Whether the sequence holds pages and can run nothing, because it may not emit."""
    progress = view.progress
    return progress.backpressured and progress.num_missing <= 1 and not progress.num_encodes


class StepBuilder:
    """Builds a plan.

    Args:
        running: Sequences that hold pages, in any order.
        budgets: The budgets of the step.
        worth: Order in which sequences lose their pages, the largest first. It must not change
            while sequences wait for each other's pages, or they would take them in turns forever.
    """

    def __init__(self, running: Sequence[View], budgets: Budgets, worth: Rank):
        self._preempted: list[int] = []
        self._admitted: list[int] = []
        self._slots = budgets.running - len(running)
        self._tokens = budgets.tokens
        self.seconds = 0.0
        self._budgets, self._running, self._worth = budgets, running, worth
        self._cost, self._page_size = budgets.cost, budgets.page_size
        self._free_pages, self._encodes = budgets.free_pages, budgets.encodes
        self._encode: list[tuple[int, int]] = []
        self._forward: list[Forward] = []
        self._has_prompt = False
        self._due: list[tuple[View, int]] = []
        self._chunk_sizes: set[int] = set()
        self._settled: set[int] = set()  # preempted, or part of the step
        self._victims: list[tuple[_Grade, View]] | None = None
        self._best_preempted: _Grade | None = None
        self._reserved: dict[int, int] = {}  # pages that prompts in flight still need
        self._num_reserved = 0

    def build_plan(self, vocode_order: Rank) -> Plan:
        """Limit the due chunks to the codec's budget, in the order of `vocode_order`."""
        due = self._due
        if len(due) > self._budgets.vocodes:
            due = sorted(due, key=lambda piece: vocode_order(piece[0]))[: self._budgets.vocodes]
        return Plan(
            tuple(self._preempted),
            tuple(self._admitted),
            tuple(self._encode),
            tuple(self._forward),
            tuple([(view.key, frames) for view, frames in due]),
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing runs yet."""
        return not (self._forward or self._encode or self._due)

    @property
    def num_admitted(self) -> int:
        """New requests so far."""
        return len(self._admitted)

    def set_aside(self, view: View) -> None:
        """Reserve the pages that a running sequence still needs for its prompt."""
        progress = view.progress
        computing = progress.num_missing > 1 or progress.num_encodes
        if computing and not progress.encode_only and not progress.ended:
            self._reserve(view.key, self._pages_short(view, progress.num_positions + 1))

    def take_share(
        self, view: View, limit_s: float = inf, least_tokens: int = 0, with_audio: bool = True
    ) -> bool:
        """Plan a running sequence's share: encodes, a row, and the audio that the row makes due.

        Args:
            view: The sequence.
            limit_s: Skip work that would make the predicted step longer than this.
            least_tokens: If not 0, the sequence gets a share despite the limit: this many positions
                of a prompt, or one piece of audio.
            with_audio: False leaves the audio that its row makes due to another step.

        Returns:
            Whether anything was planned.
        """
        if view.key in self._settled:
            return False
        if is_decode(view):
            return self.take_row(view, inf if least_tokens else limit_s, with_audio)
        if view.progress.ended or is_stuck(view):
            return self._take_vocoding(view, inf if least_tokens else limit_s)
        return self._take_prompt(view, limit_s, least_tokens, with_audio)

    def take_row(self, view: View, limit_s: float = inf, with_audio: bool = True) -> bool:
        """`take` for a sequence that decodes; without a page, its due audio only."""
        if self._tokens <= 0 or view.key in self._settled:
            return False
        progress, pending, cost = view.progress, view.audio, self._cost
        whole = pending.frames + pending.next_frames >= pending.chunk
        due = pending.chunk if with_audio and whole else 0
        seconds = self.seconds + cost.decode_row_s + (0.0 if self._forward else cost.base_s)
        if due:
            seconds += self._vocode_s(due)
        if seconds > limit_s:
            return False
        if progress.num_positions > view.num_pages * self._page_size:
            pages = self._pages_short(view, progress.num_positions)
            if pages > self._free_pages and not self._make_room(view, pages):
                return with_audio and self._take_vocoding(view, limit_s)
            self._free_pages -= pages
        self._tokens -= 1
        self.seconds = seconds
        self._settled.add(view.key)
        self._forward.append(Forward(view.key, progress.num_computed, progress.num_positions))
        if due:
            self._due.append((view, due))
            self._chunk_sizes.add(due)
        return True

    def take_vocoding(self, view: View, limit_s: float = inf) -> bool:
        """Plan only the due chunk of audio of a running sequence, if any."""
        return view.key not in self._settled and self._take_vocoding(view, limit_s)

    def admit(
        self,
        view: View,
        victims: Iterable[View] = (),
        limit_s: float = inf,
        least_tokens: int = 0,
        with_audio: bool = True,
    ) -> bool:
        """Start a waiting sequence with its first share, if there is room for both.

        Args:
            view: The sequence.
            victims: Sequences to preempt for it, in order, if there is no room. None is preempted
                if that would not help.
            limit_s: As for `take`.
            least_tokens: As for `take`.
            with_audio: As for `take`.
        """
        overtakes = self._best_preempted is not None and self._best_preempted < self._grade(view)
        if overtakes or not self._has_share(view, limit_s, least_tokens):
            return False
        if not self._make_way(view, victims):
            return False
        free_before = self._free_pages
        self._take_prompt(view, limit_s, least_tokens, with_audio)
        self._admitted.append(view.key)
        self._slots -= 1
        self._reserve(view.key, self._pages_to_start(view) - (free_before - self._free_pages))
        return True

    def _make_way(self, view: View, victims: Iterable[View]) -> bool:
        slots = 1 - self._slots
        pages = self._pages_to_start(view) - (self._free_pages - self._num_reserved)
        if slots <= 0 and pages <= 0:
            return True
        chosen: dict[int, View] = {}
        for victim in victims:
            frees = victim.num_pages - victim.num_shared + self._reserved.get(victim.key, 0)
            if victim.progress.ended or victim.key in self._settled or victim.key in chosen:
                continue
            if slots <= 0 and frees <= 0:
                continue
            chosen[victim.key] = victim
            slots -= 1
            pages -= frees
            if slots <= 0 and pages <= 0:
                for one in chosen.values():
                    self._preempt(one)
                return True
        return False

    def _take_vocoding(self, view: View, limit_s: float, emitted: int = 0) -> bool:
        frames, chunk = view.audio.frames + emitted, view.audio.chunk
        due = min(frames, chunk) if view.progress.ended or frames >= chunk else 0
        if due <= 0 or self.seconds + self._vocode_s(due) > limit_s:
            return False
        self.seconds += self._vocode_s(due)
        self._settled.add(view.key)
        self._due.append((view, due))
        self._chunk_sizes.add(due)
        return True

    def _take_prompt(self, view: View, limit_s: float, least_tokens: int, with_audio: bool) -> bool:
        """Encode the remaining audio, then run as much of the prompt as fits."""
        if view.progress.num_encodes:
            count = self._encodes_within(view, limit_s, least_tokens)
            if count <= 0:
                return False
            self._encodes -= count
            self.seconds += self._encode_call_s + count * self._cost.encode_s
            self._settled.add(view.key)
            self._encode.append((view.key, count))
            if count < view.progress.num_encodes:
                return True
        stop = view.progress.num_computed + self._tokens_within(view, limit_s, least_tokens)
        pages = self._pages_short(view, stop)
        if pages > self._free_pages:
            self._make_room(view, pages)
            stop = min(stop, (view.num_pages + self._free_pages) * self._page_size)
            pages = self._pages_short(view, stop)
        tokens = stop - view.progress.num_computed
        if tokens <= 0:
            return view.progress.num_encodes > 0
        cost = self._cost
        self.seconds += 0.0 if self._forward else cost.base_s
        if tokens == 1:
            self.seconds += cost.decode_row_s
        else:
            self.seconds += self._prefill_call_s + cost.prefill_token_s * tokens
            self._has_prompt = True
        self._free_pages -= pages
        self._tokens -= tokens
        self._reserve(view.key, max(0, self._reserved.get(view.key, 0) - pages))
        self._settled.add(view.key)
        self._forward.append(Forward(view.key, view.progress.num_computed, stop))
        if with_audio and stop == view.progress.num_positions:
            self._take_vocoding(view, inf, emitted=view.audio.next_frames)
        return True

    def _has_share(self, view: View, limit_s: float, least_tokens: int) -> bool:
        if view.progress.num_encodes:
            return self._encodes_within(view, limit_s, least_tokens) > 0
        return self._tokens_within(view, limit_s, least_tokens) > 0

    def _encodes_within(self, view: View, limit_s: float, least_tokens: int) -> int:
        count = min(view.progress.num_encodes, self._encodes)
        encode_s = self._cost.encode_s
        if encode_s == 0.0 or limit_s == inf:
            return count
        affordable = int((limit_s - self.seconds - self._encode_call_s) / encode_s)
        return min(count, max(affordable, 1 if least_tokens else 0))

    def _tokens_within(self, view: View, limit_s: float, least_tokens: int) -> int:
        """Return positions of a prompt to run; 0 if the part would be too short for a row."""
        if view.progress.encode_only:
            return 0
        # the last position emits, so a sequence with backpressure runs all except that
        most = min(self._tokens, view.progress.num_missing - view.progress.backpressured)
        cost = self._cost
        spare_s = limit_s - self.seconds - (0.0 if self._forward else cost.base_s)
        spare_s -= self._prefill_call_s
        if spare_s < 0.0:
            tokens = least_tokens
        elif limit_s == inf or cost.prefill_token_s == 0.0:
            return max(0, most)
        else:
            affordable = spare_s / cost.prefill_token_s  # infinite under a limit for high priority
            tokens = max(int(min(affordable, most)), least_tokens)
        return min(tokens, most) if tokens >= min(most, LEAST_CHUNK_TOKENS) else 0

    @property
    def _prefill_call_s(self) -> float:
        return 0.0 if self._has_prompt else self._cost.prefill_call_s

    @property
    def _encode_call_s(self) -> float:
        return 0.0 if self._encode else self._cost.encode_call_s

    def _vocode_s(self, frames: int) -> float:
        cost = self._cost
        call_s = 0.0 if frames in self._chunk_sizes else cost.vocode_call_s
        return call_s + frames * cost.vocode_frame_s

    def _pages_short(self, view: View, stop: int) -> int:
        return max(0, pages_for(stop, self._page_size) - view.num_pages)

    def _pages_to_start(self, view: View) -> int:
        progress = view.progress
        return 0 if progress.encode_only else self._pages_short(view, progress.num_positions + 1)

    def _reserve(self, key: int, pages: int) -> None:
        self._num_reserved += pages - self._reserved.get(key, 0)
        self._reserved[key] = pages

    def _grade(self, view: View) -> _Grade:
        """Return the order in which sequences keep their pages; stuck ones lose them first."""
        return (is_stuck(view), self._worth(view))

    def _make_room(self, view: View, pages: int) -> bool:
        """Preempt sequences worth less than `view` until `pages` are free; False if too few are."""
        if self._victims is None:
            graded = [(self._grade(v), v) for v in self._running if not v.progress.ended]
            self._victims = sorted(graded, key=itemgetter(0))
        mine = self._grade(view)
        while pages > self._free_pages:
            if not self._victims or self._victims[-1][0] <= mine:
                return False
            _, victim = self._victims.pop()
            if victim.num_pages and victim.key not in self._settled:
                self._preempt(victim)
        return True

    def _preempt(self, victim: View) -> None:
        self._preempted.append(victim.key)
        self._settled.add(victim.key)
        self._free_pages += victim.num_pages - victim.num_shared
        self._slots += 1
        self._reserve(victim.key, 0)
        grade = self._grade(victim)
        if self._best_preempted is None or grade < self._best_preempted:
            self._best_preempted = grade
