"""The kernels of `conv`; arrays are contiguous (batch, time, channels) here.

A causal convolution is two passes. `join` writes a stream's state in front of its new columns,
applying Snake to these if requested. `convolve` is then one product over all taps of all channels
without borders: tap k of row t is row t + k * spacing.
"""

from __future__ import annotations

# ruff: noqa: N803, N806 (constants of a kernel are upper case)
# mypy: allow-untyped-decorators, allow-untyped-calls, allow-untyped-defs, allow-incomplete-defs
import triton
import triton.language as tl

from izwi.backends.torch.triton.launch import start_next, wait_for_previous
from izwi.backends.torch.triton.rows import snake_of

# Specializing on a size that happens to be a multiple of 16 gains nothing.
_SIZES = ["rows", "time", "length", "spacing"]


@triton.jit
def _snaked(value, alpha, beta, channel, inside):
    """Apply Snake to float32 values of the channels `channel`."""
    a = tl.load(alpha + channel, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(beta + channel, mask=inside, other=0.0).to(tl.float32)
    return snake_of(value, a, b)


@triton.jit
def _joined(
    x, state, alpha, beta, after, row, c, rows, time, length, x_batch, x_time, x_channel,
    state_batch, state_channel, state_time,
    CHANNELS: tl.constexpr, PAST: tl.constexpr, BORDER: tl.constexpr,
):  # fmt: skip
    """Load channels c of rows of state and x together; at a border, write the next state."""
    inside = (row < rows) & (c < CHANNELS)
    batch = (row // length).to(tl.int64)
    t = row % length - PAST
    new_inside = inside & (t >= 0) if BORDER else inside
    new = tl.load(x + batch * x_batch + t * x_time + c * x_channel, mask=new_inside, other=0.0)
    if alpha is not None:
        new = _snaked(new.to(tl.float32), alpha, beta, c, c < CHANNELS).to(new.dtype)
    if BORDER:
        old = state + batch * state_batch + (t + PAST) * state_time + c * state_channel
        new = tl.where(t < 0, tl.load(old, inside & (t < 0), other=0.0).to(new.dtype), new)
        kept = t + PAST - time
        place = after + (batch * CHANNELS + c) * PAST + kept
        tl.store(place, new, mask=inside & (kept >= 0))
    return new


@triton.jit
def _has_border(first, time, length, PAST: tl.constexpr, ROWS: tl.constexpr):
    """Return whether some of these rows are state, old or new."""
    return (first % length < PAST) | (first % length + ROWS > time)


@triton.jit
def _join(
    x, state, alpha, beta, out, after, row, c, rows, time, length, x_batch, x_time, x_channel,
    state_batch, state_channel, state_time,
    CHANNELS: tl.constexpr, PAST: tl.constexpr, BORDER: tl.constexpr,
):  # fmt: skip
    value = _joined(
        x, state, alpha, beta, after, row, c, rows, time, length, x_batch, x_time, x_channel,
        state_batch, state_channel, state_time, CHANNELS, PAST, BORDER,
    )  # fmt: skip
    inside = (row < rows) & (c < CHANNELS)
    tl.store(out + row.to(tl.int64) * CHANNELS + c, value, mask=inside)


@triton.jit(do_not_specialize=_SIZES)
def join(
    x, state, alpha, beta, out, after, rows, time, length, x_batch, x_time, x_channel,
    state_batch, state_channel, state_time, CHANNELS: tl.constexpr, PAST: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Write (batch, length, CHANNELS) of the PAST columns of state and snake(x)."""
    start_next(OVERLAPPED)
    first = tl.program_id(0) * ROWS
    row = first + tl.arange(0, ROWS)[:, None]
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    wait_for_previous(OVERLAPPED)
    # two branches, so that the layout of the state does not slow down the other rows
    if _has_border(first, time, length, PAST, ROWS):
        _join(
            x, state, alpha, beta, out, after, row, c, rows, time, length, x_batch, x_time,
            x_channel, state_batch, state_channel, state_time, CHANNELS, PAST, PAST > 0,
        )  # fmt: skip
    else:
        _join(
            x, state, alpha, beta, out, after, row, c, rows, time, length, x_batch, x_time,
            x_channel, state_batch, state_channel, state_time, CHANNELS, PAST, False,
        )  # fmt: skip


@triton.jit
def _join_product(
    x, state, alpha, beta, weight, out, after, row, rows, time, length, x_batch, x_time, x_channel,
    state_batch, state_channel, state_time, CHANNELS: tl.constexpr, PAST: tl.constexpr,
    TAPS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, BORDER: tl.constexpr,
):  # fmt: skip
    tap = tl.arange(0, 16)[None, :]
    acc = tl.zeros([ROWS, 16], tl.float32)
    for start in tl.static_range(0, CHANNELS, WIDTH):
        c = start + tl.arange(0, WIDTH)
        value = _joined(
            x, state, alpha, beta, after, row, c[None, :], rows, time, length, x_batch, x_time,
            x_channel, state_batch, state_channel, state_time, CHANNELS, PAST, BORDER,
        )  # fmt: skip
        inside = (tap < TAPS) & (c[:, None] < CHANNELS)
        w = tl.load(weight + tap * CHANNELS + c[:, None], mask=inside, other=0.0)
        acc = tl.dot(value, w, acc, input_precision="ieee")
    inside = (row < rows) & (tap < TAPS)
    tl.store(out + row.to(tl.int64) * TAPS + tap, acc, mask=inside)


@triton.jit(do_not_specialize=_SIZES)
def join_product(
    x, state, alpha, beta, weight, out, after, rows, time, length, x_batch, x_time, x_channel,
    state_batch, state_channel, state_time, CHANNELS: tl.constexpr, PAST: tl.constexpr,
    TAPS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Multiply each joined row with the taps of a single output, (rows, TAPS) float32.

    weight is (TAPS, CHANNELS); TAPS is at most 16.
    """
    start_next(OVERLAPPED)
    first = tl.program_id(0) * ROWS
    row = first + tl.arange(0, ROWS)[:, None]
    wait_for_previous(OVERLAPPED)
    if _has_border(first, time, length, PAST, ROWS):
        _join_product(
            x, state, alpha, beta, weight, out, after, row, rows, time, length, x_batch, x_time,
            x_channel, state_batch, state_channel, state_time,
            CHANNELS, PAST, TAPS, ROWS, WIDTH, PAST > 0,
        )  # fmt: skip
    else:
        _join_product(
            x, state, alpha, beta, weight, out, after, row, rows, time, length, x_batch, x_time,
            x_channel, state_batch, state_channel, state_time,
            CHANNELS, PAST, TAPS, ROWS, WIDTH, False,
        )  # fmt: skip


@triton.jit(do_not_specialize=_SIZES)
def add_taps(
    x, bias, out, rows, time, length, spacing,
    TAPS: tl.constexpr, ROWS: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Add up the results of `join_product`: tap k of output t is in row t + k * spacing."""
    start_next(OVERLAPPED)
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    wait_for_previous(OVERLAPPED)
    first = x + ((m // time) * length + m % time).to(tl.int64) * TAPS
    acc = tl.zeros([ROWS], tl.float32)
    if bias is not None:
        acc += tl.load(bias).to(tl.float32)
    for tap in tl.static_range(0, TAPS):
        acc += tl.load(first + tap * (spacing * TAPS + 1), mask=m < rows, other=0.0)
    tl.store(out + m, acc.to(out.dtype.element_ty), mask=m < rows)


@triton.jit(do_not_specialize=_SIZES)
def by_channel(
    x, weight, bias, out, rows, time, length, spacing, CHANNELS: tl.constexpr, TAPS: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Convolve each channel of joined rows with its own taps; weight is (TAPS, CHANNELS)."""
    start_next(OVERLAPPED)
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    wait_for_previous(OVERLAPPED)
    inside = (m < rows) & (c < CHANNELS)
    first = x + ((m // time) * length + m % time).to(tl.int64) * CHANNELS + c
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    if bias is not None:
        acc += tl.load(bias + c, mask=c < CHANNELS, other=0.0).to(tl.float32)
    for tap in tl.static_range(0, TAPS):
        w = tl.load(weight + tap * CHANNELS + c, mask=c < CHANNELS, other=0.0).to(tl.float32)
        here = first + tap * spacing * CHANNELS
        acc += w * tl.load(here, mask=inside, other=0.0).to(tl.float32)
    place = out + m.to(tl.int64) * CHANNELS + c
    tl.store(place, acc.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _finish(
    acc, bias, alpha, beta, residual, out, m, n, rows,
    OUTPUTS: tl.constexpr, CHANNELS_OUT: tl.constexpr,
):  # fmt: skip
    """Add the bias, apply Snake, add the residual and write rows m, outputs n."""
    channel = n % CHANNELS_OUT
    inside = (m < rows) & (n < OUTPUTS)
    place = m.to(tl.int64) * OUTPUTS + n
    if bias is not None:
        acc += tl.load(bias + channel, mask=n < OUTPUTS, other=0.0).to(tl.float32)
    if alpha is not None:
        acc = _snaked(acc, alpha, beta, channel, n < OUTPUTS)
    if residual is not None:
        acc += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, acc.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=_SIZES)
def convolve(
    x, weight, bias, alpha, beta, residual, out, rows, time, length, spacing,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, OUTPUTS: tl.constexpr,
    CHANNELS_OUT: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr, SLICES: tl.constexpr, STAGES: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Convolve joined rows (batch, length, CHANNELS) to (batch * time, OUTPUTS).

    weight is (OUTPUTS, TAPS, CHANNELS). An output's channel is its number modulo CHANNELS_OUT. With
    SLICES > 1 each slice of the depth writes its own sums, (SLICES, rows, OUTPUTS).
    """
    start_next(OVERLAPPED)
    COLUMNS: tl.constexpr = (OUTPUTS + BLOCK_OUTPUTS - 1) // BLOCK_OUTPUTS
    PER_TAP: tl.constexpr = CHANNELS // DEPTH
    PASSES: tl.constexpr = (TAPS * PER_TAP + SLICES - 1) // SLICES
    program = tl.program_id(0)  # neighbours share their rows
    m = (program // COLUMNS) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    n = (program % COLUMNS) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    # indices past the end repeat the last row or output, so that loads need no mask
    inner_m, inner_n = tl.minimum(m, rows - 1), tl.minimum(n, OUTPUTS - 1)
    k = tl.arange(0, DEPTH)
    first = ((inner_m // time) * length + inner_m % time).to(tl.int64) * CHANNELS
    x_tile = x + first[:, None] + k[None, :]
    weight_tile = weight + inner_n[None, :] * (TAPS * CHANNELS) + k[:, None]
    wait_for_previous(OVERLAPPED)
    acc = tl.zeros([BLOCK_ROWS, BLOCK_OUTPUTS], tl.float32)
    begin = tl.program_id(1) * PASSES if SLICES > 1 else 0
    end = tl.minimum(begin + PASSES, TAPS * PER_TAP) if SLICES > 1 else PASSES
    for i in tl.range(begin, end, num_stages=STAGES):
        tap, c = i % TAPS, (i // TAPS) * DEPTH
        # all taps of one block of channels in turn: they read nearly the same rows
        a = tl.load(x_tile + (tap * spacing * CHANNELS + c))
        w = tl.load(weight_tile + (tap * CHANNELS + c))
        acc = tl.dot(a, w, acc, input_precision="ieee")
    if SLICES > 1:
        out += tl.program_id(1).to(tl.int64) * rows * OUTPUTS
    m, n = m[:, None], n[None, :]
    _finish(acc, bias, alpha, beta, residual, out, m, n, rows, OUTPUTS, CHANNELS_OUT)


@triton.jit(do_not_specialize=_SIZES)
def add_slices(
    x, bias, alpha, beta, residual, out, rows, OUTPUTS: tl.constexpr, CHANNELS_OUT: tl.constexpr,
    SLICES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Add up the slices of `convolve`, always in the same order, and finish."""
    start_next(OVERLAPPED)
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    n = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    wait_for_previous(OVERLAPPED)
    inside = (m < rows) & (n < OUTPUTS)
    place = x + m.to(tl.int64) * OUTPUTS + n
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    for part in tl.static_range(0, SLICES):
        here = place + tl.full([], part, tl.int64) * rows * OUTPUTS
        acc += tl.load(here, mask=inside, other=0.0)
    _finish(acc, bias, alpha, beta, residual, out, m, n, rows, OUTPUTS, CHANNELS_OUT)


@triton.jit
def _second(
    y, rest, weight, bias, residual, out, m, rows, START: tl.constexpr, WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr, MAIN: tl.constexpr,
):  # fmt: skip
    """Compute outputs START to START + WIDTH of the pointwise product in `unit`."""
    n = START + tl.arange(0, WIDTH)[None, :]
    row = weight + n * CHANNELS
    acc = tl.dot(y, tl.load(row + tl.arange(0, MAIN)[:, None]), input_precision="ieee")
    if MAIN < CHANNELS:
        w = tl.load(row + MAIN + tl.arange(0, CHANNELS - MAIN)[:, None])
        acc = tl.dot(rest, w, acc, input_precision="ieee")
    _finish(acc, bias, None, None, residual, out, m, n, rows, CHANNELS, CHANNELS)


@triton.jit(do_not_specialize=_SIZES)
def unit(
    x, weight, bias, alpha, beta, weight_2, bias_2, residual, out, rows, time, length, spacing,
    CHANNELS: tl.constexpr, MAIN: tl.constexpr, TAPS: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    DEPTH: tl.constexpr, STAGES: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Compute residual + weight_2 @ snake(convolve(x)), all channels in one program.

    The channels are split into two powers of two, MAIN and the rest, which may be 0.
    """
    start_next(OVERLAPPED)
    REST: tl.constexpr = CHANNELS - MAIN
    PER_TAP: tl.constexpr = CHANNELS // DEPTH
    m = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    inner_m = tl.minimum(m, rows - 1)
    k = tl.arange(0, DEPTH)
    first = ((inner_m // time) * length + inner_m % time).to(tl.int64) * CHANNELS
    x_tile = x + first[:, None] + k[None, :]
    n = tl.arange(0, MAIN)[None, :]
    weight_tile = weight + n * (TAPS * CHANNELS) + k[:, None]
    acc = tl.zeros([BLOCK_ROWS, MAIN], tl.float32)
    if REST:
        n_rest = MAIN + tl.arange(0, REST)[None, :]
        weight_rest = weight + n_rest * (TAPS * CHANNELS) + k[:, None]
        rest = tl.zeros([BLOCK_ROWS, REST], tl.float32)
    wait_for_previous(OVERLAPPED)
    for i in tl.range(0, TAPS * PER_TAP, num_stages=STAGES):
        tap, c = i % TAPS, (i // TAPS) * DEPTH
        a = tl.load(x_tile + (tap * spacing * CHANNELS + c))
        w = tl.load(weight_tile + (tap * CHANNELS + c))
        acc = tl.dot(a, w, acc, input_precision="ieee")
        if REST:
            w = tl.load(weight_rest + (tap * CHANNELS + c))
            rest = tl.dot(a, w, rest, input_precision="ieee")
    m = m[:, None]
    acc += tl.load(bias + n).to(tl.float32)
    y = _snaked(acc, alpha, beta, n, n < CHANNELS).to(out.dtype.element_ty)
    if REST:
        rest += tl.load(bias + n_rest).to(tl.float32)
        y_rest = _snaked(rest, alpha, beta, n_rest, n_rest < CHANNELS).to(out.dtype.element_ty)
        _second(y, y_rest, weight_2, bias_2, residual, out, m, rows, 0, MAIN, CHANNELS, MAIN)
        _second(y, y_rest, weight_2, bias_2, residual, out, m, rows, MAIN, REST, CHANNELS, MAIN)
    else:
        _second(y, y, weight_2, bias_2, residual, out, m, rows, 0, MAIN, CHANNELS, MAIN)
