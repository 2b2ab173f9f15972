"""Batching delay: how long new requests and due vocoder work wait to form a larger batch. Pure.

Prompts in a step cost something beside their length (`StepCost.prefill_call_s`), and so do pieces
of audio. Where a new request comes in nearly every step, nearly every step pays that. If passes
with new requests are w steps apart, a step pays P / w for them, and each new request loses w / 2
steps on average, each of them worth what a row's share of a step is: d / n, for n rows that take d
together. With a new requests a step the sum

    P / w  +  a * w / 2 * d / n        is least at        w = sqrt(2 * P * n / (a * d)).

All of these are known: the prices are measured, the rest is counted. Where few rows run a row's
share is expensive and new requests are rare, so that none is delayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt

from izwi.scheduler.cost import StepWork
from izwi.scheduler.plan import Budgets, View
from izwi.scheduler.playback import FAR_S

# Most steps between passes with new requests: interactive, and background.
MOST_STEPS = 4
MOST_BACKGROUND_STEPS = 8
# New requests expected to share a pass, below which none is delayed.
LEAST_BATCH = 1.5
# A listener waits only while this times what the next two steps take is left until he is late.
SPARE = 2.0
# Most steps that a chunk of audio is delayed while no stream is near a gap.
MOST_SOUND_STEPS = 3
# The same for a stream that has ended, while a request waits for its place.
MOST_ENDED_STEPS = 1


def should_delay_requests(
    new_requests: Sequence[View], num_rows: int, budgets: Budgets, limit_s: float
) -> bool:
    """Whether new requests are delayed to a later step, to form a larger batch.

    Args:
        new_requests: Those that could start, in any order.
        num_rows: Rows of one position that the step could run.
        budgets: Of the step.
        limit_s: What a step of background work may take.
    """
    cost, rate = budgets.cost, budgets.new_requests
    slack_s = min([view.urgency.slack_s for view in new_requests], default=0.0)
    if slack_s < FAR_S:
        # what is far ahead is no company to wait for: it goes along whenever this one starts
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
        return False  # no more would go together
    together_s = call_s + tokens * cost.prefill_token_s + encodes * cost.encode_s
    if slack_s == inf:
        return rows_s + together_s < limit_s  # nor here: they would not fit into a step
    return slack_s > SPARE * (2.0 * rows_s + together_s)


def should_delay_vocoding(rows: Sequence[View], ends: Sequence[View], crowded: bool) -> bool:
    """Whether the chunks of sound that are due are to be made together in a later step.

    A call of the codec costs as much as some rows of it do, and chunks come due in all steps. The
    first that has waited for long enough takes the others along.

    Args:
        rows: Sequences that decode and can wait.
        ends: Those that have ended and owe sound.
        crowded: A waiting request needs the place of a stream that ends.
    """
    most = MOST_ENDED_STEPS if crowded else MOST_SOUND_STEPS
    if len(rows) < 2 or any(view.urgency.idle_steps >= most for view in ends):
        return False
    sounds = [view.sound for view in rows if view.sound.chunk]
    return all(sound.frames + 1 - sound.chunk < MOST_SOUND_STEPS for sound in sounds)
