"""Draw the entries of one step on the tracks that its rows are on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Seq

from torch import Tensor

from izwi.model import Model, Row, last_positions
from izwi.ops.torch_ops import TorchOps
from izwi.runner.adjust import Logprobs
from izwi.runner.sampler import Sampler, Suppressed


def draw_by_track(
    model: Model,
    ops: TorchOps,
    batch: Seq[Row],
    hidden: Tensor,
    suppressed: Seq[Suppressed | None],
) -> tuple[list[list[int]], dict[int, Logprobs]]:
    """Draw an entry for each row that emits, those of one track together.

    Args:
        model: One with several tracks.
        ops: Its operations.
        batch: Rows that ran.
        hidden: (positions, width) what `Model.run` gave for them.
        suppressed: Of each track.

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
        sampler = Sampler([emitting[n] for n in members], suppressed[track], track)
        states = ops.take(hidden, ops.array(places[members]))
        drawn = ops.numpy(model.draw(states, sampler.pick, track)).tolist()
        for place, ids in zip(members, drawn, strict=True):
            entries[place] = ids
        logprobs.update((members[row], value) for row, value in sampler.logprobs().items())
    return entries, logprobs
