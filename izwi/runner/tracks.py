"""Models with several tracks: draws by track, and audio of a codec that lags its frames."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial
from typing import TypeAlias

from izwi.arrays import Float32
from izwi.backends.protocol import Sampling
from izwi.model.protocol import Model
from izwi.model.step_batch import StepBatch, places_drawn
from izwi.model.tracks import END, Codec, Track, frame_track
from izwi.ops.protocol import Array, Ops
from izwi.request.sequence import Sequence
from izwi.request.track_log import Entry, TrackLog, TrackProgress
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
        sampler = sampling.for_step([draws[n] for n in members], track)
        states = ops.take(hidden, ops.array(places[members]))
        drawn = ops.numpy(model.draw(states, sampler.pick, track)).tolist()
        for place, ids in zip(members, drawn, strict=True):
            entries[place] = ids
        logprobs.update((members[row], value) for row, value in sampler.logprobs().items())
    return entries, logprobs


Pending: TypeAlias = Callable[[], Float32]  # waits for samples


def begun_tracks(tracks: Seq[Track], progress: TrackProgress) -> TrackLog:
    """Create the log of a sequence of a model with several tracks.

    Args:
        tracks: The model's tracks.
        progress: Track and position of the first entry.
    """
    place = frame_track(tracks)
    if place is None:
        return TrackLog(progress, None)
    track, end = tracks[place], None
    if track.codec is not None and track.codec.lookahead_samples:
        end = (END,) * track.num_codebooks
    return TrackLog(progress, place, track.silent_ids, end)


def in_place(
    codec: Codec | None,
    pieces: Seq[tuple[Sequence, int]],
    pending: Seq[Pending | BaseException],
) -> list[Pending | BaseException]:
    """Drop samples before the start and after the end of each stream's audio.

    Args:
        codec: The codec that made the audio; None returns `pending` unchanged.
        pieces: Streams before this chunk, each with the number of frames vocoded in it.
        pending: For each stream, a function that waits for its samples, or an error.
    """
    if codec is None or not codec.lookahead_samples:
        return list(pending)
    return [
        audio
        if isinstance(audio, BaseException)
        else partial(
            _part, audio, *_bounds(codec, sequence.frames, sequence.audio.num_vocoded, frames)
        )
        for (sequence, frames), audio in zip(pieces, pending, strict=True)
    ]


def _bounds(codec: Codec, log: Seq[Entry], first: int, frames: int) -> tuple[int, int]:
    """Return [start, stop) of a stream's audio within the samples of its next frames."""
    lag, stop = codec.lookahead_samples, frames * codec.frame_samples
    if log[first + frames - 1][0] == END:
        stop -= codec.frame_samples - lag
    return (0 if first else lag), stop


def _part(audio: Pending, start: int, stop: int) -> Float32:
    return audio()[start:stop]
