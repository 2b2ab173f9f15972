"""Sample the entries of one step for a model with several tracks."""

from __future__ import annotations

from collections import defaultdict

from izwi.backends.protocol import Sampling
from izwi.model.protocol import Model
from izwi.model.step_batch import StepBatch, places_drawn
from izwi.ops.protocol import Array, Ops
from izwi.sampling.draws import Logprobs


def draw_by_track(
    model: Model,
    ops: Ops,
    batch: StepBatch,
    hidden: Array,
    sampling: Sampling,
) -> tuple[list[list[int]], dict[int, Logprobs]]:
    """Sample the entries of a batch; those of one track are sampled together.

    Args:
        model: A model with several tracks.
        ops: Its operations.
        batch: What ran.
        hidden: (positions, width) output of `Model.run` for it.
        sampling: The model's samplers.

    Returns:
        Ids of each entry, in row order, and `Sampler.logprobs` by index of the entry.
    """
    places, draws = places_drawn(batch.rows), batch.draws
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for place, row in enumerate(draws):
        groups[row.track].append(place)
    entries: list[list[int]] = [[] for _ in draws]
    logprobs: dict[int, Logprobs] = {}
    for track, members in sorted(groups.items()):
        sampler = sampling.of([draws[n] for n in members], track)
        states = ops.take(hidden, ops.array(places[members]))
        drawn = ops.numpy(model.draw(states, sampler.pick, track)).tolist()
        for place, ids in zip(members, drawn, strict=True):
            entries[place] = ids
        logprobs.update((members[row], value) for row, value in sampler.logprobs().items())
    return entries, logprobs
