"""Draw the entries of one step on the tracks that its rows are on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Seq

from izwi.backends.protocol import Sampling
from izwi.model import Model, Row, last_positions
from izwi.ops.protocol import Array, Ops
from izwi.runner.logprobs import Logprobs


def draw_by_track(
    model: Model,
    ops: Ops,
    batch: Seq[Row],
    hidden: Array,
    sampling: Sampling,
) -> tuple[list[list[int]], dict[int, Logprobs]]:
    """Draw an entry for each row that emits, those of one track together.

    Args:
        model: One with several tracks.
        ops: Its operations.
        batch: Rows that ran.
        hidden: (positions, width) what `Model.run` gave for them.
        sampling: The model's.

    Returns:
        Ids of each entry, in row order, and `Sampler.logprobs` by place among them.
    """
    places = last_positions(batch)
    emitting = [row.sequence for row in batch if row.emits]
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for place, sequence in enumerate(emitting):
        assert sequence.tracks is not None
        groups[sequence.tracks.next].append(place)
    entries: list[list[int]] = [[] for _ in emitting]
    logprobs: dict[int, Logprobs] = {}
    for track, members in sorted(groups.items()):
        sampler = sampling.of([emitting[n] for n in members], track)
        states = ops.take(hidden, ops.array(places[members]))
        drawn = ops.numpy(model.draw(states, sampler.pick, track)).tolist()
        for place, ids in zip(members, drawn, strict=True):
            entries[place] = ids
        logprobs.update((members[row], value) for row, value in sampler.logprobs().items())
    return entries, logprobs
