"""Batching delay: how long new requests and due vocoder work wait to form a larger batch. Pure.

Prompts in a step have a cost besides their length (`StepCost.prefill_call_s`), and so have pieces
of audio. If a new request arrives in nearly every step, nearly every step pays it. If passes with
new requests are w steps apart, a step pays P / w for them, and each new request loses w / 2 steps
on average, each worth a row's share of a step: d / n, for n rows that take d together. With a new
requests per step, the sum

    P / w  +  a * w / 2 * d / n        is least at        w = sqrt(2 * P * n / (a * d)).

All of these are known: the costs are measured, the rest is counted. With few rows a row's share is
expensive and new requests are rare, so none is delayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt

from izwi.scheduler.cost import StepWork
from izwi.scheduler.plan import Budgets, View
from izwi.scheduler.playback import FAR_S

# Maximum steps between passes with new requests: interactive, and background.
MOST_STEPS = 4
MOST_BACKGROUND_STEPS = 8
# Below this expected number of new requests in a pass, none is delayed.
LEAST_BATCH = 1.5
# A request is delayed only while its slack exceeds this times the predicted next two steps.
SPARE = 2.0
# Maximum steps that a chunk of audio is delayed while no stream is near a gap.
MOST_VOCODE_STEPS = 3
# The same for a stream that has ended, while a request waits for its place.
MOST_ENDED_STEPS = 1


def should_delay_requests(
    new_requests: Sequence[View], num_rows: int, budgets: Budgets, limit_s: float
) -> bool:
    """Whether to delay new requests to a later step, to form a larger batch.

    Args:
        new_requests: Those that could start, in any order.
        num_rows: Rows of one position that the step could run.
        budgets: The budgets of the step.
        limit_s: Maximum time of a step of background work.
    """
    cost, rate = budgets.cost, budgets.new_requests
    slack_s = min([view.urgency.slack_s for view in new_requests], default=0.0)
    if slack_s < FAR_S:
        # requests that are far ahead do not count: they join whenever this one starts
        rate -= budgets.far_new_requests
    most = MOST_BACKGROUND_STEPS if slack_s == inf else MOST_STEPS
    if budgets.since_start + 1 >= most or rate * most < LEAST_BATCH:
        return False
    encodes = sum([view.progress.num_encodes for view in new_requests])
    call_s = cost.prefill_call_s + (cost.encode_call_s if encodes else 0.0)
    rows_s = cost.seconds(StepWork(decode_rows=num_rows))
    if rate * rows_s <= 0.0:
        return False  # nothing else runs, or nothing was measured yet
    interval = min(most, sqrt(2.0 * call_s * num_rows / (rate * rows_s)))
    if budgets.since_start + 1 >= interval or rate * interval < LEAST_BATCH:
        return False
    tokens = sum([view.progress.num_missing for view in new_requests])
    if num_rows + tokens >= budgets.tokens or encodes >= budgets.encodes:
        return False  # no more would fit
    together_s = call_s + tokens * cost.prefill_token_s + encodes * cost.encode_s
    if slack_s == inf:
        return rows_s + together_s < limit_s  # otherwise they would not fit into a step
    return slack_s > SPARE * (2.0 * rows_s + together_s)


def should_delay_vocoding(rows: Sequence[View], ends: Sequence[View], crowded: bool) -> bool:
    """Whether to delay due chunks of audio, to compute them together in a later step.

    A call of the codec costs as much as some of its rows, and chunks become due in every step. When
    the first one has waited long enough, all are computed.

    Args:
        rows: Sequences that decode and can wait.
        ends: Sequences that have ended and still have audio to compute.
        crowded: A waiting request needs the place of a stream that ends.
    """
    most = MOST_ENDED_STEPS if crowded else MOST_VOCODE_STEPS
    if len(rows) < 2 or any(view.urgency.idle_steps >= most for view in ends):
        return False
    due = [view.audio for view in rows if view.audio.chunk]
    return all(audio.frames + 1 - audio.chunk < MOST_VOCODE_STEPS for audio in due)
