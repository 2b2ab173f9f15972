"""Sample the entries of one step for a model with several tracks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Seq

from izwi.backends.protocol import Sampling
from izwi.model.protocol import Model, Row, last_positions
from izwi.ops.protocol import Array, Ops
from izwi.sampling.logprobs import Logprobs


def draw_by_track(
    model: Model,
    ops: Ops,
    batch: Seq[Row],
    hidden: Array,
    sampling: Sampling,
) -> tuple[list[list[int]], dict[int, Logprobs]]:
    """Sample an entry for each row that emits; the rows of one track are sampled together.

    Args:
        model: A model with several tracks.
        ops: Its operations.
        batch: Rows of the forward pass.
        hidden: (positions, width) output of `Model.run` for these rows.
        sampling: The model's samplers.

    Returns:
        Ids of each entry, in row order, and `Sampler.logprobs` by index of the entry.
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
