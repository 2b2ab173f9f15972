"""The kernel of captured short convolutions is the convolution, and keeps what comes next."""

from __future__ import annotations

import random

import pytest
import torch

from izwi.backends.torch.conv_trailers import ConvTrailers
from izwi.backends.torch.ops import TorchOps
from izwi.model.layers import ConvSpec
from tests.ops.devices import DEVICE, DTYPES, NEAR, normal

triton_short_conv = pytest.importorskip("izwi.backends.torch.triton.short_conv")
CHANNELS, PAGE, LENGTHS = 40, 8, (21, 9, 1, 30)


def tables_of(seed: int) -> list[list[int]]:
    """Pages of each sequence, in no order."""
    counts = [-(-length // PAGE) for length in LENGTHS]
    pages = list(range(sum(counts)))
    random.Random(seed).shuffle(pages)
    return [[pages.pop() for _ in range(count)] for count in counts]


def convolve(
    trailers: ConvTrailers,
    tables: list[list[int]],
    spans: list[tuple[int, int, int]],
    arrays: list[list[torch.Tensor]],
    together: bool,
) -> list[torch.Tensor]:
    """Run (sequence, start, stop) as one captured step would, with two empty rows behind."""
    width = max(map(len, tables)) + 1
    places = [(n, at) for n, (_, start, stop) in enumerate(spans) for at in range(start, stop)]
    flat = torch.full((len(places) + 2, width), 1 << 28, dtype=torch.int32)
    for n, (number, _, _) in enumerate(spans):
        flat[n, : len(tables[number])] = torch.tensor(tables[number])
    runs = torch.tensor([n for n, _ in places] + [0, 0], dtype=torch.int32, device=DEVICE)
    context = triton_short_conv.StagedConv(
        trailers,
        torch.tensor([at for _, at in places] + [-1, -1], device=DEVICE),
        flat.flatten().to(DEVICE),
        torch.tensor([width], dtype=torch.int32, device=DEVICE),
        runs if together else None,
    )
    rows = [
        torch.cat([arrays[part][number][start:stop] for number, start, stop in spans])
        for part in range(3)
    ]
    packed = torch.cat([torch.cat([row, row.new_full((2, CHANNELS), 9.0)]) for row in rows], 1)
    gate_in, gate_out, x = packed.chunk(3, dim=-1)
    out = context.convolve(0, x, WEIGHT.to(x.dtype), (gate_in, gate_out))
    return list(out[: len(places)].split([stop - start for _, start, stop in spans]))


WEIGHT = normal(CHANNELS, 3, seed=1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", [0, 1])
def test_prompts_and_decodes_by_turns_are_one_convolution(dtype: torch.dtype, seed: int) -> None:
    chance = random.Random(seed)
    arrays = [
        [
            normal(length, CHANNELS, seed=10 * part + n, dtype=dtype)
            for n, length in enumerate(LENGTHS)
        ]
        for part in range(3)
    ]
    tables = tables_of(seed)
    num_pages = sum(map(len, tables))
    trailers = ConvTrailers(ConvSpec(1, CHANNELS, 3), num_pages, PAGE, DEVICE, dtype)
    trailers.plane[:, :-1] = torch.nan  # what nobody wrote is not read
    done, made = [0] * len(LENGTHS), [torch.zeros(0, CHANNELS, device=DEVICE) for _ in LENGTHS]
    while any(at < length for at, length in zip(done, LENGTHS, strict=True)):
        together = chance.random() < 0.5
        spans = []
        for n, at in enumerate(done):
            if at < LENGTHS[n] and chance.random() < 0.7:
                start = max(0, at - chance.randint(0, 1))  # the last position may run again
                stop = chance.randint(at + 1, LENGTHS[n]) if together else start + 1
                spans.append((n, start, stop))
        if not spans:
            continue
        parts = convolve(trailers, tables, spans, arrays, together)
        for (n, start, stop), part in zip(spans, parts, strict=True):
            made[n], done[n] = torch.cat([made[n][:start], part.float()]), stop
    ops = TorchOps(DEVICE, torch.float32)
    for n, length in enumerate(LENGTHS):
        gate_in, gate_out, x = (part[n].float() for part in arrays)
        context = ops.dense_context(1, length)
        whole = ops.short_conv(gate_in * x, WEIGHT.to(dtype).float(), context=context, layer=0)
        near = NEAR[dtype]
        torch.testing.assert_close(made[n], gate_out * whole, atol=4 * near, rtol=near)
    assert trailers.plane[:, -1].eq(0).all()
