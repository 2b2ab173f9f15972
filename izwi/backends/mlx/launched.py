"""Launch a model's steps without waiting for their results, and the next ones on what they draw.

Nothing is captured: each step is a new graph, which `mx.async_eval` hands to the device. Drawn ids
stay arrays, so that the next graph can be built on them before the host has them.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from functools import partial
from typing import Any, NamedTuple, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from izwi.backends.in_flight import InFlight
from izwi.backends.mlx.adjust import DrawnAhead
from izwi.backends.mlx.kv import MlxPagedKV
from izwi.backends.mlx.sampler import MlxSampler, MlxSampling
from izwi.backends.mlx.state import MlxStateArena
from izwi.backends.protocol import DrawnEntries, PendingAudio
from izwi.model.protocol import Capturable, CapturableModel, CapturableTracks, Model
from izwi.model.step_batch import Row, StepBatch, places_drawn
from izwi.model.tracks import Codec, frame_track
from izwi.request.request import EncodeInput
from izwi.sampling.draws import Logprobs


class _Part(NamedTuple):
    """What a step draws on one track.

    Attributes:
        track: The track.
        places: Index of each entry among the entries of the step.
        sampler: Has their log probabilities.
        entries: (entries, codebooks) int64.
    """

    track: int
    places: list[int]
    sampler: MlxSampler
    entries: mx.array


class _Source(NamedTuple):
    """Where the last step drew a row's entry.

    Attributes:
        part: The entries of one track.
        place: Index in them.
    """

    part: _Part
    place: int


class _Unawaited:
    """MLX does not tell whether an array has been computed, other than by waiting for it."""

    is_done = False


class LaunchedSteps:
    """Implements `izwi.backends.protocol.CapturedSteps` for one model."""

    def __init__(
        self, model: CapturableModel, kv: MlxPagedKV, arena: MlxStateArena, sampling: MlxSampling
    ):
        """Set up.

        Args:
            model: A model for which `can_launch` is true.
            kv: Its pages, duplicated.
            arena: States of its codec, if it has one.
            sampling: Draws its entries.
        """
        self._model, self._kv, self._arena, self._sampling = model, kv, arena, sampling
        self._columns: tuple[int, ...] = (0,)  # of `inputs`, at which the entries of a track begin
        if len(model.tracks) > 1:
            self._columns = cast(CapturableTracks, model).entry_columns
        frames = frame_track(model.tracks)
        self._codec: Codec | None = None if frames is None else model.tracks[frames].codec
        self._drawn: dict[int, _Source] = {}  # by the last step, by `Row.key`

    def takes(self, batch: StepBatch) -> bool:
        """Return whether these rows can be launched.

        Rows that draw several entries run like prompts, whose inputs the host knows. Those with
        adapters are not launched ahead.
        """
        return bool(batch.rows) and all(
            row.adapter is None and (len(row.drawn) < 2 or not row.is_ahead) for row in batch.rows
        )

    def launch(self, batch: StepBatch) -> InFlight[DrawnEntries]:
        """Launch the rows.

        The previous launch may still be in flight: its entries are read on the device.

        Returns:
            Waits for the entries of the rows, in order, and for `StepSampler.logprobs`.
        """
        before, self._drawn = self._drawn, {}
        decodes = [row for row in batch.rows if row.decodes]
        others = [row for row in batch.rows if not row.decodes]
        x = [self._embedded(decodes, before)] if decodes else []
        if others:
            x.append(self._model.embed(others))
        packed = [*decodes, *others]
        if len(x) > 1 and x[0].shape[1] < x[1].shape[1]:  # inputs of images are wider
            x[0] = mx.pad(x[0], [(0, 0), (0, x[1].shape[1] - x[0].shape[1])])
        hidden = self._model.run(mx.concatenate(x, axis=0), self._kv.context(packed))
        draws = StepBatch(tuple(packed)).draws
        parts = self._parts(draws, hidden, places_drawn(packed), before)
        # what cannot be drawn fails here; `MlxBackend.running` hands over the pages
        _start_evaluation([(part.entries, part.sampler.reported) for part in parts])
        for part in parts:
            keys = [draws[place].key for place in part.places]
            self._drawn.update((key, _Source(part, place)) for place, key in enumerate(keys))
        places = {(row.key, row.step): place for place, row in enumerate(draws)}
        order = [places[row.key, row.step] for row in batch.draws]
        return InFlight(partial(_in_order, parts, order), [_Unawaited()])

    def _embedded(self, rows: Seq[Row], before: dict[int, _Source]) -> mx.array:
        """Embed one entry each, (rows, width); those in flight are taken from the last step."""
        known = self._model.inputs(rows)
        assert known is not None  # what was emitted is ids
        inputs = mx.array(known)
        for part, members, places in _by_part(rows, before):
            column = self._columns[part.track]
            columns = mx.arange(column, column + part.entries.shape[1])
            inputs[mx.array(members)[:, None], columns] = part.entries[mx.array(places)]
        embedded: mx.array = self._model.embed_inputs(inputs)
        return embedded

    def _parts(
        self,
        draws: Seq[Row],
        hidden: mx.array,
        last: npt.NDArray[np.int64],
        before: dict[int, _Source],
    ) -> list[_Part]:
        """Draw an entry of each row, from the states at the places `last`."""
        groups: dict[int, list[int]] = {}
        for place, row in enumerate(draws):
            groups.setdefault(row.track, []).append(place)
        parts: list[_Part] = []
        for track, places in sorted(groups.items()):
            mine = [draws[place] for place in places]
            ahead = [
                DrawnAhead(members, part.entries[mx.array(sources), 0])
                for part, members, sources in _by_part(mine, before)
                if part.track == track
            ]
            sampler = self._sampling.for_step(mine, track, ahead)
            states = mx.take(hidden, mx.array(last[places]), axis=0)
            entries = self._model.draw(states, sampler.pick, track)
            parts.append(_Part(track, places, sampler, entries))
        return parts

    # -- audio -------------------------------------------------------------------------------
    def takes_chunks(self, most_frames: int) -> bool:  # noqa: ARG002
        """Return whether chunks of any size can be decoded beside the steps: yes."""
        return self._codec is not None

    def vocode(self, chunks: Seq[npt.NDArray[np.int64]], rows: Seq[int]) -> list[PendingAudio]:
        """Begin to decode the next frames of streams, (frames, codebooks) each.

        Chunks of one length are one batch.
        """
        batches: dict[int, list[int]] = {}
        for place, chunk in enumerate(chunks):
            batches.setdefault(len(chunk), []).append(place)
        begun: dict[int, PendingAudio] = {}
        for _, places in sorted(batches.items()):
            codes = mx.array(np.stack([chunks[place] for place in places]))
            audio = self._decoded(codes, [rows[place] for place in places]).astype(mx.float32)
            _start_evaluation(audio)
            begun.update((place, partial(_samples, audio, n)) for n, place in enumerate(places))
        return [begun[place] for place in range(len(chunks))]

    def advance_codec(self, codes: mx.array, row: int) -> None:
        """Decode frames, (frames, codebooks), only to advance the codec state."""
        self._decoded(codes[None], [row])

    def _decoded(self, codes: mx.array, rows: Seq[int]) -> mx.array:
        assert self._codec is not None
        audio: mx.array
        audio, state = self._codec.decode(codes, self._arena.gather(rows))
        self._arena.scatter(rows, state)
        return audio

    def encodes(self, piece: EncodeInput) -> bool:  # noqa: ARG002
        """Return whether a piece of audio can be encoded by captured steps: no."""
        return False

    def encode(self, pieces: Seq[EncodeInput]) -> list[mx.array]:
        """Encode none: `encodes` is false for all."""
        assert not pieces
        return []


def can_launch(model: Model) -> bool:
    """Return whether the next entries of a model can be drawn before the host knows the last ones.

    They cannot if entries are drawn at positions of the prompt, or do not embed as ids.
    """
    if model.tracks[0].in_prompt:
        return False
    return isinstance(model, CapturableTracks if len(model.tracks) > 1 else Capturable)


def _start_evaluation(*arrays: Any) -> None:
    """Hand arrays, in any lists, to the device. Raises RuntimeError if there is no memory."""
    mx.async_eval(*arrays)  # type: ignore[no-untyped-call]


def _by_part(
    rows: Seq[Row], before: dict[int, _Source]
) -> list[tuple[_Part, list[int], list[int]]]:
    """Find the entries in flight.

    Returns:
        For each part of the last step that drew any: the part, the indices of the rows, and the
        indices of their entries in the part.
    """
    found: dict[int, tuple[_Part, list[int], list[int]]] = {}
    for member, row in enumerate(rows):
        if row.is_ahead:
            part, place = before[row.key]
            _, members, places = found.setdefault(part.track, (part, [], []))
            members.append(member)
            places.append(place)
    return list(found.values())


def _in_order(parts: Seq[_Part], order: Seq[int]) -> DrawnEntries:
    """Wait for the entries of all parts, and sort them by row; see `LaunchedSteps.launch`."""
    entries: dict[int, list[int]] = {}
    logprobs: dict[int, Logprobs] = {}
    for part in parts:
        entries.update(zip(part.places, np.array(part.entries).tolist(), strict=True))
        logprobs.update((part.places[n], value) for n, value in part.sampler.logprobs().items())
    likely = {n: logprobs[place] for n, place in enumerate(order) if place in logprobs}
    return [entries[place] for place in order], likely


def _samples(audio: mx.array, row: int) -> npt.NDArray[np.float32]:
    samples: npt.NDArray[np.float32] = np.array(audio)[row]
    return samples
