"""Short convolutions and windows over pages compute what they compute over whole arrays."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from izwi.backends.torch.attention.paged import PagedContext
from izwi.backends.torch.attention.slots import PlainSlots
from izwi.backends.torch.conv_trailers import ConvTrailers
from izwi.backends.torch.kv import PagedKV, bytes_per_page
from izwi.backends.torch.ops import TorchOps
from izwi.model.layers import ConvSpec, KVSpec, PagedAttention, ShortConv
from izwi.ops.protocol import AttentionSpec
from tests.examples import examples

OPS, CPU = TorchOps(), torch.device("cpu")
CHANNELS = 5


def reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """torch's own convolution of (length, channels), padded on the left."""
    width = weight.shape[1]
    padded = torch.nn.functional.pad(x.T[None], (width - 1, 0))
    return torch.nn.functional.conv1d(padded, weight[:, None], groups=len(weight))[0].T


@examples(30)
@given(data=st.data())
def test_chunks_of_any_length_give_what_the_whole_gives(data: st.DataObject) -> None:
    page, width = data.draw(st.integers(1, 7)), data.draw(st.integers(2, 5))
    lengths = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=4))
    seed = data.draw(st.integers(0, 99))
    generator, schedule = torch.Generator().manual_seed(seed), Random(seed)
    weight = torch.randn(CHANNELS, width, generator=generator)
    wholes = [torch.randn(length, CHANNELS, generator=generator) for length in lengths]
    num_pages = sum(-(-length // page) for length in lengths)
    order = data.draw(st.permutations(range(num_pages)))
    tables, taken = [], 0
    for length in lengths:
        count = -(-length // page)
        tables.append(order[taken : taken + count])
        taken += count
    trailers = ConvTrailers(ConvSpec(2, CHANNELS, width), num_pages, page, CPU, torch.float32)
    trailers.plane[:, :-1] = torch.nan  # what nobody wrote is not read
    done, outputs = [0] * len(lengths), [torch.zeros(0, CHANNELS) for _ in lengths]
    slots = PlainSlots((1, num_pages, 1, 2), page, CPU, torch.float32)
    while any(at < length for at, length in zip(done, lengths, strict=True)):
        rows = [n for n, at in enumerate(done) if at < lengths[n] and schedule.random() < 0.6]
        # the last position may run again: its output is the same, and what follows too
        starts = [max(0, done[n] - schedule.randint(0, 1)) for n in rows]
        stops = [schedule.randint(max(1, done[n]), lengths[n]) for n in rows]
        spans = [(a, b) for a, b in zip(starts, stops, strict=True) if b > a]
        rows = [n for n, a, b in zip(rows, starts, stops, strict=True) if b > a]
        if not rows:
            continue
        used = [tables[n][: -(-stop // page)] for n, (_, stop) in zip(rows, spans, strict=True)]
        context = PagedContext(slots, spans, used, trailers=trailers)
        x = torch.cat([wholes[n][a:b] for n, (a, b) in zip(rows, spans, strict=True)])
        y = OPS.short_conv(x, weight, context=context, layer=1)
        for n, (a, b) in zip(rows, spans, strict=True):
            part, y = y[: b - a], y[b - a :]
            outputs[n], done[n] = torch.cat([outputs[n][:a], part]), b
    for whole, output in zip(wholes, outputs, strict=True):
        dense = OPS.short_conv(whole, weight, context=OPS.dense_context(1, len(whole)), layer=1)
        assert torch.equal(output, dense), "bit for bit, however it was cut"
        torch.testing.assert_close(dense, reference(whole, weight))
    assert trailers.plane[:, -1].eq(0).all()


@pytest.mark.parametrize("window", [1, 3, 9])
def test_a_query_sees_its_window_alone(window: int) -> None:
    """Keys before the window do not matter, those in it do."""
    spec, page, length = AttentionSpec(2, 1, 4, 1e4), 4, 11
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(length, 8, generator=generator)
    k, v = torch.randn(2, length, 4, generator=generator)

    def attended(v: torch.Tensor, chunks: list[int]) -> torch.Tensor:
        slots, start, parts = PlainSlots((1, 3, 1, 4), page, CPU, torch.float32), 0, []
        for stop in chunks:
            table = [2, 0, 1][: -(-stop // page)]
            context = PagedContext(slots, [(start, stop)], [table], windows=(window,))
            part = [x[start:stop] for x in (q, k, v)]
            parts.append(OPS.attention(*part, spec=spec, context=context, layer=0))
            start = stop
        return torch.cat(parts)

    whole = attended(v, [length])
    assert torch.equal(attended(v, list(range(1, length + 1))), whole)
    assert torch.equal(attended(v, [2, 7, 8, length]), whole)
    last = length - 1
    for key in range(length):
        changed = v.clone()
        changed[key] += 1.0
        same = torch.equal(attended(changed, [length])[last], whole[last])
        assert same is (key <= last - window)


def test_a_page_moves_with_its_trailer() -> None:
    layers = (ShortConv(CHANNELS, 3), PagedAttention(1, 2), ShortConv(CHANNELS, 3))
    spec = KVSpec.from_layers(layers)
    kv = PagedKV(spec, 4, 4, CPU, torch.float32)
    assert kv.page_bytes == bytes_per_page(spec, 4, torch.float32)
    assert kv.page_bytes == 4 * 2 * 2 * 4 + 2 * 3 * CHANNELS * 4  # keys and values, two trailers
    trailers = kv._trailers
    assert trailers is not None
    trailers.plane[:, :-1] = torch.arange(2 * 12 * CHANNELS).view(2, 12, CHANNELS).float()
    before = trailers.plane[:, 3:6].clone()
    data = kv.read_pages([1, 2]).copy()
    trailers.plane[:, :-1] = 0.0
    kv.write_pages([3, 0], data)
    assert torch.equal(trailers.plane[:, 9:12], before)
    assert trailers.plane[:, 3:9].eq(0).all()
    assert np.array_equal(kv.read_pages([3]), data[:1])


def test_layers_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="alike"):
        KVSpec.from_layers((PagedAttention(1, 2), PagedAttention(2, 2)))
    with pytest.raises(ValueError, match="alike"):
        KVSpec.from_layers((PagedAttention(1, 2), ShortConv(4, 3), ShortConv(5, 3)))
    with pytest.raises(ValueError, match="alike"):
        KVSpec.from_layers((ShortConv(4, 3),))
