"""Staged inputs of captured steps: filled on the host, copied to the device in one transfer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from itertools import chain
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from izwi.backends.torch.sampler import Suppressed
from izwi.backends.torch.triton.sampling import MAX_STOP_IDS, RowSampling, SamplingColumns
from izwi.model.layers import KVSpec
from izwi.model.step_batch import Row
from izwi.request.request import Request, TrackParams
from izwi.request.rotary import RotatedPrompt, rotary_positions
from izwi.sampling.draws import is_greedy, seen_ids

_ALIGN = 16  # bytes; what a kernel's vector loads want
_TABLE_STEP = 8  # pages; widths of tables are multiples of it


class StagedBuffer:
    """Named arrays in one piece of memory, on the host and on the device."""

    def __init__(
        self, fields: Mapping[str, tuple[type[Any], tuple[int, ...]]], device: torch.device
    ):
        """Allocate zeros.

        Args:
            fields: numpy type and shape by name, in order.
            device: Where the other side is.
        """
        self.starts: dict[str, int] = {}
        total = 0
        for name, (kind, shape) in fields.items():
            self.starts[name] = total
            total += -(-math.prod(shape) * np.dtype(kind).itemsize // _ALIGN) * _ALIGN
        self.num_bytes = total
        self._host = torch.zeros(total, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._device = torch.zeros(total, dtype=torch.uint8, device=device)
        self.host: dict[str, npt.NDArray[Any]] = {}
        self.device: dict[str, Tensor] = {}
        for name, (kind, shape) in fields.items():
            start = self.starts[name]
            stop = start + math.prod(shape) * np.dtype(kind).itemsize
            self.host[name] = self._host.numpy()[start:stop].view(kind).reshape(shape)
            self.device[name] = self._device[start:stop].view(_DTYPES[kind]).view(shape)

        self._sent: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._sent = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def send(self, stop: int) -> None:
        """Copy the first bytes to the device, in order on its stream."""
        self._device[:stop].copy_(self._host[:stop], non_blocking=True)
        if self._sent is not None:
            self._sent.record()

    def wait(self) -> None:
        """Wait until the last copy is complete, so that the host side may be refilled."""
        if self._sent is not None:
            self._sent.synchronize()


Fields = Mapping[str, tuple[type[Any], tuple[int, ...]]]


def rotary_fields(spec: KVSpec, size: int) -> Fields:
    """Return the field of rotary positions, for a model whose attention has `rope_sections`."""
    return {"rotary": (np.int64, (size,))} if spec.rope_sections else {}


class StagedPositions:
    """Rows of one position each, in a batch of fixed size.

    A captured graph reads the device side at the same addresses in every launch. All filled fields
    are copied asynchronously in one transfer.
    """

    def __init__(
        self,
        size: int,
        num_inputs: int,
        max_pages: int,
        device: torch.device,
        more: Fields | None = None,
        *,
        max_runs: int | None = None,
    ):
        """Allocate.

        Args:
            size: Rows.
            num_inputs: Numbers a row in `Model.inputs`.
            max_pages: Pages that a row can have.
            device: Where.
            more: Fields of the kind at hand.
            max_runs: Rows are positions of at most this many sequences, each of which has one page
                table, the one that `runs` numbers. None: each row has its own.
        """
        self._together = max_runs is not None
        self.num_tables = size if max_runs is None else min(size, max_runs)
        self._tables_there: dict[int, list[int]] = {}  # of rows that share no table, by place
        fields: dict[str, tuple[type[Any], tuple[int, ...]]] = {
            "positions": (np.int64, (size,)),
            "inputs": (np.int64, (size, num_inputs)),
            "embedded": (np.int32, (1,)),
            "runs": (np.int32, (size,)),
            **(more or {}),
            "table_width": (np.int32, (1,)),
            "tables": (np.int32, (self.num_tables * max_pages,)),  # the last, as little is used
        }
        self.size = size
        self._buffer = StagedBuffer(fields, device)
        self._used = self._buffer.starts["tables"]
        self.host, on_device = self._buffer.host, self._buffer.device
        self.host["positions"][:] = -1
        self.positions, self.inputs = on_device["positions"], on_device["inputs"]
        self.rotary = on_device.get("rotary")  # of models with M-RoPE
        self.runs = on_device["runs"]
        self._embedded = on_device["embedded"]
        self.tables, self.table_width = on_device["tables"], on_device["table_width"]
        self.send()

    @property
    def embedded(self) -> Tensor:
        """(1,) bool on the device: whether the rows' inputs are embedded already."""
        return self._embedded != 0

    def stage_rows(self, inputs: npt.NDArray[np.int64] | None, rows: Seq[Row]) -> None:
        """Fill in what attention and `Model.embed_inputs` read; `send` copies it.

        Args:
            inputs: `Model.inputs` of the rows; None if they are embedded already.
            rows: The rows' positions.
        """
        self._buffer.wait()
        self.host["embedded"][0] = inputs is None
        if inputs is not None:
            self.host["inputs"][: len(inputs)] = inputs
            self.host["inputs"][len(inputs) :] = 0  # valid ids, since they may be embedded
        self.stage_runs([(row.start, row.stop, row.pages) for row in rows])
        if self.rotary is not None:
            self._stage_rotary(rows)

    def _stage_rotary(self, rows: Seq[Row]) -> None:
        """Fill in the rotary positions of text, which are the same on all axes."""
        spans = [(row.start, row.stop) for row in rows]
        prompts = [cast(RotatedPrompt, row.request.prompt) for row in rows]
        axes = rotary_positions(prompts, spans)
        if axes is None:
            self.host["rotary"][:] = np.maximum(self.host["positions"], 0)
        else:
            self.host["rotary"][: axes.shape[1]] = axes[0]
            self.host["rotary"][axes.shape[1] :] = 0

    def stage_runs(self, runs: Seq[tuple[int, int, Seq[int]]]) -> None:
        """Fill in rows; `send` copies them.

        Args:
            runs: Positions [start, stop) of one sequence, a row each, and its pages.
        """
        starts, stops, pages = zip(*runs, strict=True)
        if not self._together and sum(stops) - sum(starts) == len(runs):
            self._stage_alone(starts, pages)
            return
        # in as many numpy calls for many runs as for one
        self._tables_there.clear()
        firsts = np.array(starts, dtype=np.int64)
        counts = np.array(stops, dtype=np.int64) - firsts
        widths = np.array([len(run) for run in pages])
        count, width = int(counts.sum()), int(widths.max())
        table = np.zeros((len(runs), width), dtype=np.int32)
        table[np.arange(width) < widths[:, None]] = np.fromiter(chain(*pages), np.int32)
        self._buffer.wait()
        positions, tables = self.host["positions"], self.host["tables"]
        places = np.cumsum(counts) - counts  # of each run's first row
        positions[:count] = np.arange(count) + np.repeat(firsts - places, counts)
        self.host["runs"][:count] = np.repeat(np.arange(len(runs)), counts)
        positions[count:] = -1
        if not self._together:
            table = np.repeat(table, counts, axis=0)
        tables[: table.size] = table.ravel()
        self.host["table_width"][0] = width
        self._used = self._buffer.starts["tables"] + table.size * tables.itemsize

    def _stage_alone(self, starts: Seq[int], pages: Seq[Seq[int]]) -> None:
        """`stage_runs` of one position each: of the tables, those that are not there yet."""
        self._buffer.wait()
        positions, tables, there = self.host["positions"], self.host["tables"], self._tables_there
        count, most = len(starts), len(tables) // self.size
        positions[:count] = starts
        positions[count:] = -1
        # seldom another one, or all would have to move
        width = min(most, -(-max(map(len, pages)) // _TABLE_STEP) * _TABLE_STEP)
        if self.host["table_width"][0] != width:
            there.clear()
            self.host["table_width"][0] = width
        for place, own in enumerate(pages):
            if there.get(place) != own:
                tables[place * width : place * width + len(own)] = own
                there[place] = list(own)
        self._used = self._buffer.starts["tables"] + count * width * tables.itemsize

    def send(self) -> None:
        """Copy the filled fields to the device."""
        self._buffer.send(self._used)
        self._used = self._buffer.starts["tables"]


class StagedRows(StagedPositions):
    """Rows of a decode step: the last entry of a sequence each.

    Attributes:
        draws: The rows' draws, in the same transfer; None if they are staged apart.
        source: (size,) int32 on the device: where the row's entry is among those that the last step
            drew; -1 if `inputs` has it.
        adapters: (size,) int64 on the device: `AdaptedRows.tables`; None if the model takes none.
    """

    def __init__(
        self,
        size: int,
        *,
        num_inputs: int,
        max_pages: int,
        vocabularies: Mapping[int, int],
        device: torch.device,
        more: Fields | None = None,
    ):
        """Allocate.

        Args:
            size: Rows.
            num_inputs: Numbers a row in `Model.inputs`.
            max_pages: Pages that a row can have.
            vocabularies: Number of ids of codebook 0, for each track that is drawn with the rows;
                empty if none is.
            device: Where.
            more: As in `StagedPositions`.
        """
        fields: Fields = {"source": (np.int32, (size,)), **(more or {})}
        if vocabularies:
            fields = {**fields, **StagedDraws.fields(size, vocabularies)}
        super().__init__(size, num_inputs, max_pages, device, fields)
        self.draws = StagedDraws(self._buffer, vocabularies) if vocabularies else None
        self.host["source"][:] = -1
        self.source = self._buffer.device["source"]
        self.adapters = self._buffer.device.get("adapters")
        self.send()

    def stage_sources(self, sources: npt.NDArray[np.int32]) -> None:
        """Fill in `source`; `send` copies it."""
        self._buffer.wait()
        self.host["source"][: len(sources)] = sources
        self.host["source"][len(sources) :] = -1

    def stage_adapters(self, tables: npt.NDArray[np.int64]) -> None:
        """Fill in `adapters`; `send` copies it."""
        self._buffer.wait()
        self.host["adapters"][: len(tables)] = tables
        self.host["adapters"][len(tables) :] = 0


class StagedDraws:
    """What draws of one entry each need besides the states: all draws of a time are on one track.

    Attributes:
        size: Number of draws.
        place: (size,) int64 on the device: where the entry is put for the next step; 0 for draws
            that are none.
        drawn: (size,) int32 on the device: where the row's last entry is, if the last step drew it
            on the same track; else -1.
    """

    def __init__(self, buffer: StagedBuffer, vocabularies: Mapping[int, int]):
        """Use a buffer that has the `fields`.

        Args:
            buffer: It may have others as well.
            vocabularies: Number of ids of codebook 0 for each track that is drawn.
        """
        self._buffer, self.host = buffer, buffer.host
        self._vocabularies = vocabularies
        self.size = size = len(self.host["seed"])
        self._draws: list[Row] = []  # as staged last
        self._num_staged = 0
        # of the requests drawn for: entries that the bits tell of, and what does not change
        self._num_seen, self._min_entries = np.zeros((2, size), dtype=np.int64)
        self._penalised, self._few_candidates = np.zeros((2, size), dtype=np.bool_)
        for which in ("first", "rest"):
            self.host[f"{which}.penalty"][:] = 1.0
        self.host["drawn"][:] = -1
        on_device = buffer.device
        self.place, self.drawn = on_device["place"], on_device["drawn"]
        first, rest = (
            SamplingColumns(**{name: on_device[f"{which}.{name}"] for name, _ in _COLUMNS})
            for which in ("first", "rest")
        )
        self._sampling = RowSampling(
            seed=on_device["seed"],
            step=on_device["step"],
            first=first,
            rest=rest,
            stop_ids=on_device["stop_ids"],
            stop_allowed=on_device["stop_allowed"],
            seen=on_device["seen"],
            suppressed=None,
        )
        self.send()

    @staticmethod
    def fields(size: int, vocabularies: Mapping[int, int]) -> Fields:
        """Return the fields of a buffer for so many draws."""
        columns = {
            f"{which}.{name}": (kind, (size,))
            for which in ("first", "rest")
            for name, kind in _COLUMNS
        }
        return {
            "place": (np.int64, (size,)),
            "drawn": (np.int32, (size,)),
            "seed": (np.int64, (size,)),
            "step": (np.int64, (size,)),
            "stop_ids": (np.int32, (size, MAX_STOP_IDS)),
            "stop_allowed": (np.int32, (size,)),
            "seen": (np.int32, (size, -(-max(vocabularies.values()) // 32))),
            **columns,
        }

    @classmethod
    def apart(cls, size: int, vocabularies: Mapping[int, int], device: torch.device) -> StagedDraws:
        """Allocate a buffer of its own."""
        return cls(StagedBuffer(cls.fields(size, vocabularies), device), vocabularies)

    def send(self) -> None:
        """Copy the buffer to the device; for draws that are staged with rows, those do."""
        self._buffer.send(self._buffer.num_bytes)

    def sampling(self, suppressed: Suppressed | None) -> RowSampling:
        """Return the parameters on the device.

        Args:
            suppressed: Ids of codebook 0 of the track that are never drawn.
        """
        mask = None if suppressed is None else suppressed.mask
        return dataclasses.replace(self._sampling, suppressed=mask)

    def in_place(self, rows: Seq[Row]) -> list[Row]:
        """Return the rows in an order in which those of the last step keep their places.

        Most inputs are then in place already.
        """
        pending = {row.key: row for row in rows}
        kept = [pending.pop(row.key, None) for row in self._draws[: len(rows)]]
        rest = iter(pending.values())
        return [row or next(rest) for row in kept] + list(rest)

    def stage_places(self, first: int, drawn: npt.NDArray[np.int32]) -> None:
        """Fill in `place` and `drawn`; `send` copies them.

        Args:
            first: Place of the first entry; the others come after it.
            drawn: Where each row's last entry is; see `drawn`.
        """
        count, places, last = len(drawn), self.host["place"], self.host["drawn"]
        self._buffer.wait()
        places[:count] = np.arange(first, first + count)
        last[:count] = drawn
        places[count:] = 0
        last[count:] = -1

    def stage_sampling(self, draws: Seq[Row]) -> None:
        """Fill in the parameters; `send` copies them.

        `seen` has the entries that the host knows; an entry in flight is added on the device.

        Args:
            draws: One for each entry, all on one track.
        """
        views, count = self.host, len(draws)
        self._buffer.wait()
        known = np.array([row.num_known for row in draws])
        steps = np.array([row.step for row in draws])
        before = self._draws
        pairs = enumerate(zip(before, draws, strict=False))
        # each log is one list, which grows
        changed = [
            place
            for place, (old, new) in pairs
            if old.entries is not new.entries or old.track != new.track
        ]
        changed += range(len(before), count)
        self._draws, self._num_staged = [*draws, *before[count:]], count
        if changed:
            requests = [draws[place].request for place in changed]
            self._stage_requests(requests, changed, draws[0].track)
        views["step"][:count] = steps
        views["stop_allowed"][:count] = steps >= self._min_entries[:count]
        self._stage_seen(draws, known)

    @property
    def few_candidates(self) -> bool:
        """Whether the kernel for short candidate lists can draw all that was staged last."""
        return bool(self._few_candidates[: self._num_staged].all())

    def _stage_requests(self, requests: list[Request], places: list[int], track: int) -> None:
        """Fill in the parameters that are constant over a request."""
        views = self.host
        asked = [request.params(track) for request in requests]
        self._min_entries[places] = [params.min_entries for params in asked]
        self._penalised[places] = [p.sampling.repetition_penalty != 1.0 for p in asked]
        self._few_candidates[places] = [has_few_candidates(params) for params in asked]
        self._num_seen[places] = _UNKNOWN
        seeds = np.array([request.seed & ((1 << 64) - 1) for request in requests], dtype=np.uint64)
        views["seed"][places] = seeds.view(np.int64)
        views["stop_ids"][places] = -1
        for place, one in zip(places, asked, strict=True):
            views["stop_ids"][place, : len(one.stop_ids)] = one.stop_ids
        for which, params in (
            ("first", [one.sampling for one in asked]),
            ("rest", [one.codebook_sampling for one in asked]),
        ):
            views[f"{which}.scale"][places] = [
                0.0 if is_greedy(p) else p.temperature for p in params
            ]
            views[f"{which}.top_k"][places] = [p.top_k for p in params]
            views[f"{which}.top_p"][places] = [p.top_p for p in params]
            views[f"{which}.penalty"][places] = [p.repetition_penalty for p in params]
        pairs = zip(places, requests, strict=True)
        adjusted = [place for place, request in pairs if request.adjusts(track)]
        views["first.penalty"][adjusted] = 1.0  # they were penalised before

    def _stage_seen(self, draws: Seq[Row], known: npt.NDArray[np.int64]) -> None:
        """Fill in the ids emitted in codebook 0, one bit each; bits are only ever added."""
        bits = self.host["seen"]
        count = len(draws)
        if not self._penalised[:count].any():  # they are not used
            self._num_seen[:count] = known
            return
        missing = np.where(self._penalised[:count], known - self._num_seen[:count], 0)
        self._num_seen[:count] = known
        grown = [n for n in (missing == 1).nonzero()[0].tolist() if _draws_on_last(draws[n])]
        last = [draws[place].entries[known[place] - 1] for place in grown]
        new = np.array([entry[0] for entry in last], dtype=np.int64)
        bits[grown, new >> 5] |= _BIT[new & 31]
        for place in ((missing != 0) & (missing != 1)).nonzero()[0].tolist():
            row = draws[place]
            seen = seen_ids(row, self._vocabularies[row.track], row.track)
            packed = np.packbits(seen, bitorder="little")
            padded = np.zeros(4 * bits.shape[1], dtype=np.uint8)
            padded[: len(packed)] = packed
            bits[place] = padded.view(np.int32)


def _draws_on_last(row: Row) -> bool:
    """Return whether a row draws on the track of its last known entry."""
    return row.tracks is None or row.tracks[row.num_known - 1] == row.track


_COLUMNS = (
    ("scale", np.float32),
    ("top_k", np.int32),
    ("top_p", np.float32),
    ("penalty", np.float32),
)
_UNKNOWN = -2  # the data there belongs to another request
_DTYPES = {np.int64: torch.int64, np.int32: torch.int32, np.float32: torch.float32}
_BIT = (np.uint32(1) << np.arange(32, dtype=np.uint32)).view(np.int32)


def has_few_candidates(params: Request | TrackParams) -> bool:
    """Return whether the kernel for short candidate lists can sample with these parameters."""
    both = params.sampling, params.codebook_sampling
    return all(is_greedy(one) or 1 <= one.top_k <= 64 for one in both)
