"""The deadline policy: compute goes to the stream with the least playback slack. Pure.

A step is filled in this order:

1. urgent rows: streams without their first audio, or with a gap ahead; decodes, then prompts;
2. one row of background work that has been idle for long;
3. new urgent streams, which may take the pages and places of background work, and of streams
   that are far ahead of playback (`FAR_S`);
4. within the predicted time of the step, work that can wait: streams that are ahead, least slack
   first, then background work in arrival order. Within each: due vocoder work, then prompts, then
   rows (see `_fill`). Streams that are far ahead make a step no longer than background work does.

If passes with prompts are expensive, new requests and due vocoder work may be delayed to form
larger batches (see `batching_delay.py`).

Preemption follows slack as well: background work first, latest arrival first, then the stream that
is furthest ahead.

With several callers, text beyond the first request of each comes after all of this, with a share of
the step (`callers.py`).

A request's priority affects only text, which has no playback clock: each level counts as
`PRIORITY_S` less slack, and new text may preempt text of lower priority (ADR 27).

Background work finishes under any load of streams, one sequence at a time: one starts within
`PATIENCE_STEPS`, new requests do not preempt it, and its rows are at most `BACKGROUND_STEPS` steps
apart. Only running streams that exceed the memory can still take its pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from operator import attrgetter
from typing import NamedTuple

from msgspec.structs import replace

from izwi.scheduler.batching_delay import should_delay_requests, should_delay_vocoding
from izwi.scheduler.cost import StepWork
from izwi.scheduler.plan import EXCESS_SHARE, Budgets, Plan, Urgency, View
from izwi.scheduler.playback import FAR_S, URGENT_S, margin_s
from izwi.scheduler.step_builder import LEAST_CHUNK_TOKENS, StepBuilder, is_decode, is_due, is_stuck

# After this many idle steps a running background sequence runs regardless of the step's time, one
# sequence per step, so that each of n waits at most BACKGROUND_STEPS + n steps. The number exceeds
# the steps that a full batch of chunks takes one by one; otherwise background rows that wait for
# the codec would lengthen the steps of streams.
BACKGROUND_STEPS = 128
# Steps after which the first waiting background sequence starts ahead of new streams, if none runs.
PATIENCE_STEPS = 1000
# Streams that are ahead may make a step longer than `step_s` by this factor while no stream waits
# for its first audio: in a batch they are far cheaper. Background work may not.
AHEAD_STRETCH = 4.0
# Without streams, background work may make a step longer than `step_s` by this factor.
ALONE_STRETCH = 1.5
# Rows that can wait run together up to this number if nothing else runs, whatever the prediction.
LEAST_ROWS = 2
# Work that can wait lengthens a step with a stream's first audio by at most this factor, or to this
# share of the time left until that audio is late: on a GPU a full batch costs little beside a new
# request, and leaving it out would halve throughput.
FIRST_AUDIO_STRETCH = 1.1
HURRY_SHARE = 0.15
# Without urgent rows a step may always take this times a step of one row: on a machine so slow that
# the time allows one row, work that can wait would otherwise run one by one.
ONE_ROW_STRETCH = 1.25
# Slack that each level of priority subtracts from text. A request of priority 0 that has waited
# this long comes before a new one of priority 1, and running text of priority 1 runs in every step.
PRIORITY_S = 1.0

slack_order = attrgetter("urgency.slack_s", "key")


def rank_deadline(view: View) -> tuple[float, ...]:
    """Order streams by slack, then background work by arrival; late background work comes first."""
    return _rank(_prioritized(view))


def _rank(view: View) -> tuple[float, ...]:
    urgency = view.urgency
    if urgency.slack_s < inf:
        return (1, urgency.slack_s, urgency.turn, view.key)
    return (0 if urgency.idle_steps >= PATIENCE_STEPS else 2, 0.0, urgency.turn, view.key)


def text_slack_s(urgency: Urgency) -> float:
    """Return the slack used to schedule text.

    Before the first token, slack falls with time. Afterwards it does not, so text that has been
    idle for long comes first.
    """
    slack_s, idle_steps = urgency.slack_s, urgency.idle_steps
    if urgency.started and idle_steps >= BACKGROUND_STEPS and slack_s < inf:
        return -float(idle_steps)
    return slack_s - PRIORITY_S * urgency.priority


def plan_deadline(running: Sequence[View], waiting: Sequence[View], budgets: Budgets) -> Plan:
    """Fill one step by slack: first avoid gaps and late first audio, then maximize throughput."""
    if any(view.urgency.priority for view in (*running, *waiting)):
        running, waiting = list(map(_prioritized, running)), list(map(_prioritized, waiting))
    builder = StepBuilder(running, budgets, worth=slack_order)
    if budgets.excess_s == inf:
        favoured = _build(builder, running, waiting, running, budgets)
        return builder.build_plan(lambda view: (view.key != favoured, *slack_order(view)))
    for view in running:
        if view.urgency.excess and not is_decode(view):
            builder.set_aside(view)
    own = [view for view in running if not view.urgency.excess]
    new = [view for view in waiting if not view.urgency.excess]
    favoured = _build(builder, own, new, running, budgets)
    _fill_excess(builder, running, waiting, budgets)
    return builder.build_plan(lambda view: (view.key != favoured, *slack_order(view)))


def _build(
    builder: StepBuilder,
    running: Sequence[View],
    waiting: Sequence[View],
    holders: Sequence[View],
    budgets: Budgets,
) -> int | None:
    """Fill the step with all work that is not excess; `holders` are all that hold pages.

    Returns the key of the background sequence whose vocoder work goes first, or None.
    """
    crowd = _Crowd.from_views(running, waiting, budgets)
    near = _any_near(crowd.ahead) or _any_near(crowd.patient)
    alone = not (crowd.urgent or crowd.pressing or near)
    limit_s = budgets.step_s * (ALONE_STRETCH if alone else 1.0)
    new_requests = [*crowd.pressing, *crowd.patient, *crowd.idle]
    num_rows = sum(map(is_decode, running)) if new_requests else 0
    pays = not all(map(is_stuck, crowd.prompts))  # a pass with prompts runs anyway
    if not pays and should_delay_requests(new_requests, num_rows, budgets, limit_s):
        crowd = crowd._replace(pressing=[], patient=[], idle=[], backpressured=[])
    for view in crowd.prompts:
        builder.set_aside(view)

    # prompts may use the time until the smallest slack runs out
    patience_s = max(budgets.step_s, min(crowd.least_slack_s, budgets.prompts_s))
    least_tokens = LEAST_CHUNK_TOKENS  # so that at least one makes progress
    hurry_s = inf  # time until the earliest pending first audio would be late
    for view in filter(is_decode, crowd.urgent):
        if builder.take_row(view) and not view.urgency.started:
            hurry_s = min(hurry_s, view.urgency.slack_s)
    for view in crowd.urgent:  # the decodes are already in the step
        if builder.take_share(view, patience_s, least_tokens):
            least_tokens = 0
            hurry_s = hurry_s if view.urgency.started else min(hurry_s, view.urgency.slack_s)
    favoured = _take_idle(builder, crowd.background)
    blocked = False
    for view in crowd.pressing:
        listened = view.urgency.slack_s < inf
        victims = victims_for(holders, builder, view) if listened else stuck_of(holders)
        if not builder.admit(view, victims, patience_s, least_tokens):
            blocked = True  # no request overtakes one that does not fit yet
            break
        least_tokens = 0
        hurry_s = hurry_s if view.urgency.started else min(hurry_s, view.urgency.slack_s)

    if builder.is_empty:
        one_row_s = budgets.cost.seconds(StepWork(decode_rows=1))
        limit_s = max(limit_s, ONE_ROW_STRETCH * one_row_s)
    elif hurry_s < inf:
        limit_s = min(limit_s, max(FIRST_AUDIO_STRETCH * builder.seconds, HURRY_SHARE * hurry_s))
    near_s = limit_s if hurry_s < inf else max(limit_s, AHEAD_STRETCH * budgets.step_s)
    short = budgets.free_pages < len(running)
    limits = _Limits(limit_s, near_s, short, budgets.codec_overlaps)
    _fill(builder, crowd, holders, limits, blocked)
    return favoured


def _fill_excess(
    builder: StepBuilder, running: Sequence[View], waiting: Sequence[View], budgets: Budgets
) -> None:
    """Add excess work: what has a share of the device because others have theirs.

    It takes a share of the time of the work so far, and the credit. With a credit, one prompt may
    run that takes longer; `DeviceShares` then has a debt.
    """
    limit_s = (1.0 + EXCESS_SHARE) * builder.seconds + max(0.0, budgets.excess_s)
    least_tokens = LEAST_CHUNK_TOKENS if budgets.excess_s > 0.0 else 0
    excess = sorted([view for view in running if view.urgency.excess], key=slack_order)
    for view in excess:
        if not is_decode(view) and builder.take_share(view, limit_s, least_tokens):
            least_tokens = 0
    for view in sorted([view for view in waiting if view.urgency.excess], key=_rank):
        if not builder.admit(view, stuck_of(running), limit_s, least_tokens):
            break
        least_tokens = 0
    for view in filter(is_decode, excess):
        builder.take_row(view, limit_s)


class _Crowd(NamedTuple):
    """The views by class of service, each list in its order.

    Attributes:
        urgent: Running streams without first audio, or close to a gap.
        ahead: Running streams that can wait.
        background: Running background work.
        prompts: Those of these three whose prompt is incomplete.
        pressing: Waiting urgent streams, preceded by one background sequence if it is late.
        patient: The other waiting streams.
        idle: The other waiting background work.
        backpressured: Waiting sequences that may not emit.
        least_slack_s: Smallest slack of a running stream.
    """

    urgent: list[View]
    ahead: list[View]
    background: list[View]
    prompts: list[View]
    pressing: list[View]
    patient: list[View]
    idle: list[View]
    backpressured: list[View]
    least_slack_s: float

    @staticmethod
    def from_views(running: Sequence[View], waiting: Sequence[View], budgets: Budgets) -> _Crowd:
        """Classify and sort the views."""
        crowd = _Crowd([], [], [], [], [], [], [], [], inf)
        urgent, ahead, background, prompts = crowd[:4]
        decodes = StepWork(decode_rows=len(running))
        frame_s = min(budgets.step_s, budgets.cost.seconds(decodes))
        least_slack_s = inf
        for view in running:
            progress, slack_s = view.progress, view.urgency.slack_s
            if slack_s == inf:
                background.append(view)
            else:
                (urgent if _is_urgent(view, frame_s) else ahead).append(view)
                playing = view.urgency.started and not progress.backpressured
                if playing and slack_s < least_slack_s:
                    least_slack_s = slack_s
            missing = progress.num_positions - progress.num_computed
            if (missing > 1 or progress.num_encodes) and not progress.ended:
                prompts.append(view)
        for view in waiting:
            if view.progress.backpressured:
                crowd.backpressured.append(view)
            elif view.urgency.slack_s == inf:
                crowd.idle.append(view)
            elif _is_urgent(view, frame_s):
                crowd.pressing.append(view)
            else:
                crowd.patient.append(view)
        for views in (urgent, ahead, background):
            views.sort(key=slack_order)
        for views in (crowd.pressing, crowd.patient, crowd.idle, crowd.backpressured):
            views.sort(key=_rank)
        late = bool(crowd.idle) and crowd.idle[0].urgency.idle_steps >= PATIENCE_STEPS
        if late and all(is_stuck(view) or view.progress.ended for view in crowd.background):
            crowd.pressing.insert(0, crowd.idle.pop(0))
        return crowd._replace(least_slack_s=least_slack_s)


def _prioritized(view: View) -> View:
    """Replace the slack of text by the slack used to schedule it."""
    if view.audio.chunk:
        return view
    return replace(view, urgency=replace(view.urgency, slack_s=text_slack_s(view.urgency)))


def _is_urgent(view: View, frame_s: float) -> bool:
    if not view.urgency.started:
        return True
    missing = view.audio.chunk - view.audio.frames
    return margin_s(view.urgency.slack_s, missing if missing > 0 else 0, frame_s) < URGENT_S


def _any_near(views: Sequence[View]) -> bool:
    """Return whether any stream is not far ahead; they are ordered by slack."""
    return bool(views) and views[0].urgency.slack_s < FAR_S


def _take_idle(builder: StepBuilder, background: Sequence[View]) -> int | None:
    """Run the longest-idle background sequence if it is overdue; return its key."""
    idle = [view for view in background if view.urgency.idle_steps >= BACKGROUND_STEPS]
    for view in sorted(idle, key=lambda view: (-view.urgency.idle_steps, view.key)):
        if builder.take_share(view, least_tokens=LEAST_CHUNK_TOKENS):
            return view.key
    return None


class _Limits(NamedTuple):
    """Limits of a step for work that can wait.

    Attributes:
        far_s: Predicted seconds, for background work and streams that are far ahead.
        near_s: Predicted seconds, for other streams.
        pages_are_short: No request can start, and prompts must leave pages to earlier arrivals.
        codec_overlaps: The codec runs concurrently with the next step; see `Budgets`.
    """

    far_s: float
    near_s: float
    pages_are_short: bool
    codec_overlaps: bool

    def limit_s(self, view: View) -> float:
        """Return the predicted seconds that a step with this view may take."""
        return self.near_s if view.urgency.slack_s < FAR_S else self.far_s


def _fill(
    builder: StepBuilder, crowd: _Crowd, running: Sequence[View], limits: _Limits, blocked: bool
) -> None:
    """Add work that can wait while the step's predicted time stays within its limit.

    A row and the vocoder work that it makes due run in different steps, which keeps steps short,
    unless the codec overlaps with the steps. Due vocoder work goes first, then prompts: both finish
    soon, and rows then run in the largest possible batch. In the opposite order, rows would leave
    no time for the prompts that are to join them. If pages are short, rows go first.
    """

    def least_tokens() -> int:
        return LEAST_CHUNK_TOKENS if builder.is_empty else 0  # never an empty step

    overlaps = limits.codec_overlaps
    rows: list[View] = []
    due: list[View] = []
    for view in (*crowd.ahead, *crowd.background):
        if is_decode(view) and (overlaps or not is_due(view)):
            rows.append(view)
        elif is_due(view):
            due.append(view)
    crowded = bool(crowd.pressing or crowd.patient or crowd.idle)
    ends = [view for view in due if view.progress.ended]
    waits = overlaps and should_delay_vocoding(rows, ends, crowded)
    for view in due:
        # a stream that has not ended may be waiting for text, so its audio is not delayed
        if not (waits and view.progress.ended):
            builder.take_vocoding(view, inf if builder.is_empty else limits.limit_s(view))
    if limits.pages_are_short:
        _take_rows(builder, rows, limits, with_audio=overlaps and not waits)
    prompts = {view.key for view in crowd.prompts}
    for others, new_requests in ((crowd.ahead, crowd.patient), (crowd.background, crowd.idle)):
        for view in others if prompts else ():
            if view.key in prompts:
                builder.take_share(view, limits.limit_s(view), least_tokens(), with_audio=False)
        for view in new_requests:
            if blocked:
                break
            limit_s = limits.limit_s(view)
            blocked = not builder.admit(
                view, stuck_of(running), limit_s, least_tokens(), with_audio=False
            )
    _take_rows(builder, rows, limits, with_audio=overlaps and not waits)
    for view in crowd.backpressured if not blocked else ():
        builder.admit(view, (), limits.far_s)


def _take_rows(
    builder: StepBuilder, rows: Sequence[View], limits: _Limits, with_audio: bool
) -> None:
    # always run two rows: a single one does not show the cost of another
    num_free = LEAST_ROWS if builder.is_empty else 0
    for view in rows:
        limit_s = limits.limit_s(view)
        if builder.take_row(view, inf if num_free else limit_s, with_audio=with_audio):
            num_free = max(0, num_free - 1)
        elif builder.seconds >= limit_s:
            return


def victims_for(running: Sequence[View], builder: StepBuilder, new: View) -> Iterator[View]:
    """Return what to preempt for a new stream: what cannot run, then the latest background work.

    Then streams that are far ahead, the furthest first. New text may preempt text of callers who
    have more than this one, and text of lower priority that can wait, except the first such
    sequence, which might otherwise be restarted forever.

    The earliest background sequence is spared while streams run that will end and make room.
    Otherwise a burst of streams could restart it forever.
    """
    yield from stuck_of(running)
    background = sorted((v for v in running if v.urgency.slack_s == inf), key=slack_order)
    streams = builder.num_admitted + len(running) - len(background)
    yield from reversed(background[1:] if streams else background)
    far = [view for view in running if FAR_S <= view.urgency.slack_s < inf]
    yield from sorted(far, key=slack_order, reverse=True)
    if not new.audio.chunk:
        excess = [view for view in running if view.urgency.excess and not new.urgency.excess]
        yield from sorted(excess, key=slack_order, reverse=True)
        lower = [view for view in running if _is_lower_text(view, new.urgency.priority)]
        yield from reversed(sorted(lower, key=slack_order)[1:])


def _is_lower_text(view: View, priority: int) -> bool:
    urgency = view.urgency
    return not view.audio.chunk and urgency.priority < priority and urgency.slack_s >= URGENT_S


def stuck_of(running: Sequence[View]) -> Iterator[View]:
    """Return the sequences that can run nothing, the furthest from their deadline first."""
    yield from sorted(filter(is_stuck, running), key=slack_order, reverse=True)
