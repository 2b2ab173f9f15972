"""Paged keys and values in MLX.

MLX's arrays are immutable. Writing creates a new array, in the same memory if nothing else refers
to the old one, so only the newest arrays are kept. Each step evaluates `arrays`; otherwise a page
that only a later step reads would be computed then.

A step in flight refers to the arrays that it reads until the device has run it, so writing for the
next step would copy all pages. For steps that are launched ahead, each page therefore exists twice
(`MlxPagedKV.duplicate`). Steps use the two copies in turn, and each first repeats the writes that
its copy lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from izwi.backends.mlx.attention import RopeTable, attend, rope_table, rope_table_by_axes
from izwi.backends.mlx.paged_decode import Kernel, block_tables, decoder_of
from izwi.errors import InvalidRequest
from izwi.model.layers import KVSpec
from izwi.model.step_batch import Row
from izwi.ops.conv_layout import ConvLayout, lay_out_conv, trailer_columns
from izwi.ops.paged_layout import GroupLayout, lay_out
from izwi.ops.protocol import AttentionSpec
from izwi.request.rotary import RotatedPrompt, rotary_positions

# One row for each page: the exact bits of its contents.
PageBytes = npt.NDArray[np.uint8]
# Planes, by their index in `MlxPagedKV`.
KEYS, VALUES, TRAILERS = range(3)


class Plane(NamedTuple):
    """Storage of one kind of array in pages.

    Attributes:
        layers: An array for each layer, (pages * slots + 1, ...). The last slot is zeros.
        slots: Slots of a page.
    """

    layers: list[mx.array]
    slots: int


def page_bytes(spec: KVSpec, page_size: int, dtype: mx.Dtype, kv_dtype: str) -> int:
    """Return the bytes of one page: keys and values of all layers, and its trailer.

    Raises:
        InvalidRequest: `kv_dtype` is not for this backend.
    """
    if kv_dtype != "auto":
        raise InvalidRequest(
            f"kv_dtype {kv_dtype!r} is not available with MLX: use 'auto'", param="kv_dtype"
        )
    conv = spec.conv
    trailer = conv.num_layers * conv.width * conv.channels if conv else 0
    slots = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * page_size
    return int((slots + trailer) * dtype.size)


class _Write(NamedTuple):
    """A write that one copy of the pages still lacks.

    Attributes:
        plane: Index of the plane.
        layer: Index of the layer in it.
        slots: (n,) slots, or columns of the trailers.
        values: (n, ...) what was written there.
    """

    plane: int
    layer: int
    slots: mx.array
    values: mx.array


class MlxPagedKV:
    """Implements `izwi.backends.protocol.PagedKV`. Page p owns slots [p * size, (p + 1) * size)."""

    def __init__(
        self,
        spec: KVSpec,
        num_pages: int,
        page_size: int,
        dtype: mx.Dtype,
        kernel: Kernel | None = None,
    ):
        """Allocate zeros.

        Args:
            spec: Layers, heads and sizes of one position.
            num_pages: Number of pages.
            page_size: Positions of one page.
            dtype: Dtype of keys and values.
            kernel: `metal_kernel` for rows of one query, which is used if it proves right here;
                None to gather keys and values for all rows.
        """
        self.spec, self.num_pages, self.page_size = spec, num_pages, page_size
        self.page_bytes = page_bytes(spec, page_size, dtype, "auto")
        self.padding_slot = num_pages * page_size
        shape = self.padding_slot + 1, spec.num_kv_heads, spec.head_dim
        self.keys = [mx.zeros(shape, dtype=dtype) for _ in range(spec.num_layers)]
        self.values = [mx.zeros(shape, dtype=dtype) for _ in range(spec.num_layers)]
        self.trailers: list[mx.array] = []
        self._planes = [Plane(self.keys, page_size), Plane(self.values, page_size)]
        if spec.conv is not None:
            columns = num_pages * spec.conv.width + 1, spec.conv.channels
            self.trailers += [mx.zeros(columns, dtype=dtype) for _ in range(spec.conv.num_layers)]
            self._planes.append(Plane(self.trailers, spec.conv.width))
        mx.eval(self.arrays)
        self.decoder = decoder_of(kernel, spec, page_size, dtype) if kernel else None
        self._other: list[list[mx.array]] = []  # layers of each plane in the other copy
        self._lacking: list[_Write] = []  # writes that the other copy lacks, in order

    @property
    def arrays(self) -> list[mx.array]:
        """Arrays of the current copy, including writes that are not evaluated yet."""
        return [array for plane in self._planes for array in plane.layers]

    def duplicate(self) -> None:
        """Keep each page twice, so that a step can be launched while another one is in flight.

        Call it before anything is written.
        """
        self._other = [[mx.zeros_like(array) for array in plane.layers] for plane in self._planes]
        mx.eval(self._other)

    def write(self, plane: int, layer: int, slots: mx.array, values: mx.array) -> None:
        """Write slots of a layer.

        Args:
            plane: KEYS, VALUES or TRAILERS.
            layer: Index among the layers that have such a plane.
            slots: (n,) slots, or columns of the trailers.
            values: (n, ...) what to write.
        """
        self._planes[plane].layers[layer][slots] = values
        if self._other:
            self._lacking.append(_Write(plane, layer, slots, values))

    def _take_turns(self) -> None:
        """Write to the other copy from now on: a step in flight may read the current one."""
        if not self._other:
            return
        for number, plane in enumerate(self._planes):
            current, self._other[number] = self._other[number], list(plane.layers)
            plane.layers[:] = current
        lacking, self._lacking = self._lacking, []
        for write in lacking:
            self._planes[write.plane].layers[write.layer][write.slots] = write.values

    def context(self, rows: Sequence[Row]) -> MlxPagedContext:
        """Return the attention of packed rows, each over its own pages."""
        self._take_turns()
        size = self.page_size
        spans = [(row.start, row.stop) for row in rows]
        tables = [row.pages[: -(-row.stop // size)] for row in rows]
        rotary = None
        if self.spec.rope_sections:
            rotary = rotary_positions(
                [cast(RotatedPrompt, row.request.prompt) for row in rows], spans
            )
        return MlxPagedContext(self, spans, tables, rotary)

    def copy(self, moves: Sequence[tuple[int, int, int]]) -> None:
        """Copy the first slots of pages to the same places of other pages, in all layers."""
        if not moves:
            return
        assert not self.trailers, "a part of a page has no trailer"
        sources, targets, counts = np.array(moves, dtype=np.int64).T
        in_page = np.arange(self.page_size)
        wanted = in_page < counts[:, None]
        read, written = (
            mx.array((pages[:, None] * self.page_size + in_page)[wanted])
            for pages in (sources, targets)
        )
        taken = [[mx.take(array, read, axis=0) for array in plane.layers] for plane in self._planes]
        # waits for a step in flight, too: what still reads an array makes writing to it a copy of
        # all pages
        mx.eval(taken)
        for number, layers in enumerate(taken):
            for layer, values in enumerate(layers):
                self.write(number, layer, written, values)
        mx.eval(self.arrays)

    def read_pages(self, pages: Sequence[int]) -> PageBytes:
        """Copy pages to the host, (pages, page_bytes), for `write_pages`."""
        parts = []
        for plane in self._planes:
            index = mx.array(_slots_of(pages, plane.slots))
            for array in plane.layers:
                part = mx.take(array, index, axis=0)
                parts.append(mx.view(part.reshape(len(pages), -1), mx.uint8))
        return np.array(mx.concatenate(parts, axis=1))

    def write_pages(self, pages: Sequence[int], data: PageBytes) -> None:
        """Restore the result of `read_pages`, into these or other pages.

        Raises:
            ValueError: The data is of another shape or dtype.
        """
        if data.shape != (len(pages), self.page_bytes) or data.dtype != np.uint8:
            raise ValueError(
                f"{len(pages)} pages take {self.page_bytes} bytes each, got {data.shape} "
                f"{data.dtype}"
            )
        self._take_turns()
        start = 0
        for number, plane in enumerate(self._planes):
            index = mx.array(_slots_of(pages, plane.slots))
            for layer in range(len(plane.layers)):
                shape, dtype = plane.layers[layer].shape[1:], plane.layers[layer].dtype
                stop = start + plane.slots * int(np.prod(shape)) * dtype.size
                part = mx.array(np.ascontiguousarray(data[:, start:stop]))
                self.write(number, layer, index, mx.view(part, dtype).reshape(-1, *shape))
                start = stop
        mx.eval(self.arrays)


def _slots_of(pages: Sequence[int], slots: int) -> npt.NDArray[np.int64]:
    first = np.array(pages, dtype=np.int64)[:, None] * slots
    return (first + np.arange(slots)).ravel()


class _Group(NamedTuple):
    """Rows that attend together. Either `tables` or the next two are given.

    Attributes:
        tables: Result of `block_tables`, for rows of one query that the kernel runs.
        slots: (rows, keys) slots of the rows' keys, padded with the padding slot.
        mask: (rows, longest, keys) bool.
        queries: (rows, longest) position of each query.
        tokens: (rows, longest) indices in the packed array, or None if there is one per row.
        used: Indices in the flattened `tokens` that are not padding, or None if all are.
    """

    tables: mx.array | None
    slots: mx.array | None
    mask: npt.NDArray[np.bool_] | None
    queries: npt.NDArray[np.int64]
    tokens: mx.array | None
    used: npt.NDArray[np.int64] | None


class MlxPagedContext:
    """Attention of one step's packed rows over the pages of one model."""

    def __init__(
        self,
        kv: MlxPagedKV,
        spans: Sequence[tuple[int, int]],
        tables: Sequence[Sequence[int]],
        rotary: npt.NDArray[np.int64] | None = None,
    ):
        """Lay out a step; see `lay_out`, and for `rotary` `rotary_positions`."""
        self._kv, self._rotary = kv, rotary
        layout = lay_out(spans, tables, kv.page_size)
        self._positions = layout.positions
        self._written = mx.array(layout.written)
        self._groups = [_expand(group, kv) for group in layout.groups]
        self._places = self._places_in_order()
        self._masks: dict[tuple[int, int | None], mx.array] = {}
        self._rope: RopeTable | None = None
        self._conv: ConvLayout | None = None
        if kv.spec.conv is not None:
            width = kv.spec.conv.width
            columns = trailer_columns(kv.num_pages, kv.page_size, width)
            self._conv = lay_out_conv(spans, tables, columns)

    def _places_in_order(self) -> mx.array | None:
        """Index of each packed token in the groups' joined outputs; None for the same order."""
        if self._groups[0].tokens is None:
            return None
        order = np.empty(len(self._positions), np.int64)
        before = 0
        for group in self._groups:
            assert group.tokens is not None
            tokens = np.array(group.tokens).ravel()
            used = np.arange(tokens.size) if group.used is None else group.used
            order[tokens[used]] = before + used
            before += tokens.size
        return mx.array(order)

    def rope(self, num_tokens: int, spec: AttentionSpec, dtype: mx.Dtype) -> RopeTable:
        assert num_tokens == len(self._positions)
        if self._rope is None:  # the same for every layer of one step
            assert spec.rope_theta is not None
            if self._rotary is not None:
                self._rope = rope_table_by_axes(mx.array(self._rotary), spec, dtype)
            else:
                positions = mx.array(self._positions)
                self._rope = rope_table(positions, spec.head_dim, spec.rope_theta, dtype)
        return self._rope

    def attend(self, layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        kv = self._kv
        kv.write(KEYS, layer, self._written, k)
        kv.write(VALUES, layer, self._written, v)
        if self._places is None:
            return self._attend_group(0, layer, q[:, None])[:, 0]
        outputs = []
        for number, group in enumerate(self._groups):
            assert group.tokens is not None
            rows = self._attend_group(number, layer, mx.take(q, group.tokens, axis=0))
            outputs.append(mx.flatten(rows, 0, 1))
        return mx.take(mx.concatenate(outputs, axis=0), self._places, axis=0)

    def _attend_group(self, number: int, layer: int, q: mx.array) -> mx.array:
        kv, group = self._kv, self._groups[number]
        window = kv.spec.windows[layer] if kv.spec.windows else None
        keys, values = kv.keys[layer], kv.values[layer]
        if group.tables is not None:
            assert kv.decoder is not None
            return kv.decoder.attend(q[:, 0], keys, values, group.tables, window)[:, None]
        assert group.slots is not None
        keys, values = mx.take(keys, group.slots, axis=0), mx.take(values, group.slots, axis=0)
        return attend(q, keys, values, self._mask(number, window))

    def _mask(self, number: int, window: int | None) -> mx.array:
        """Keys that the queries of a group see, computed once for all layers of a window."""
        if (number, window) not in self._masks:
            group = self._groups[number]
            mask = group.mask
            assert mask is not None
            if window is not None:
                mask = mask & (np.arange(mask.shape[2]) > group.queries[:, :, None] - window)
            self._masks[number, window] = mx.array(mask)
        return self._masks[number, window]

    def before(self, layer: int, x: mx.array, width: int) -> list[mx.array]:
        assert self._conv is not None
        assert len(self._conv.sources) == width - 1
        plane = self._kv.trailers
        history = mx.take(plane[layer], mx.array(self._conv.history), axis=0)
        known = mx.concatenate([history, x], axis=0)
        written = mx.take(x, mx.array(self._conv.written), axis=0)
        self._kv.write(TRAILERS, layer, mx.array(self._conv.columns), written)
        return [mx.take(known, mx.array(source), axis=0) for source in self._conv.sources]


def _expand(layout: GroupLayout, kv: MlxPagedKV) -> _Group:
    """Compute slots and mask of a group on the host; MLX's devices share its memory."""
    tokens = None if layout.tokens is None else mx.array(layout.tokens)
    rest = layout.queries, tokens, layout.used
    one_each = layout.queries.shape[1] == 1  # the one query of a row stands at its last key
    if one_each and kv.decoder is not None:
        return _Group(block_tables(layout.stops, layout.tables), None, None, *rest)
    keys = np.arange(layout.num_keys)
    seen = keys < layout.stops[:, None]
    slots = layout.tables[:, :, None] * kv.page_size + np.arange(kv.page_size)
    slots = slots.reshape(len(layout.tables), -1)[:, : layout.num_keys]
    # a slot past the end belongs to another sequence or none: a weight of 0 does not undo a NaN
    slots = np.where(seen, slots, kv.padding_slot)
    mask = seen[:, None] if one_each else keys <= layout.queries[:, :, None]
    return _Group(None, mx.array(slots), mask, *rest)
