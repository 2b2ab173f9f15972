"""The kernels of `linear`.

x is (rows, INPUTS) and weight (OUTPUTS, INPUTS), or (2 * OUTPUTS, INPUTS) if GATED. A program
computes BLOCK outputs of all rows. With OVERLAPPED it prefetches its weights, which depend on no
other kernel, before it waits for the previous kernel.

A quantized weight is converted when it is multiplied, and its outputs are scaled at the end;
`scale`, (OUTPUTS,) or (2 * OUTPUTS,) float32, is None for other weights.

If NORMED, the norm is fused, using linearity: x * norm goes into the product (or x if the weight
contains the norm), the sum of squares is accumulated in the same pass, and each row is scaled by
its reciprocal root mean square at the end.
"""

from __future__ import annotations

# ruff: noqa: N803, N806 (constants of a kernel are upper case)
# mypy: allow-untyped-decorators, allow-untyped-calls, allow-untyped-defs, allow-incomplete-defs
import triton
import triton.language as tl

from izwi.backends.torch.triton.launch import prefetch_lines, start_next, wait_for_previous


@triton.jit
def _tile(pointers, inside, UNMASKED: tl.constexpr):
    """Load a tile; values outside are 0."""
    return tl.load(pointers) if UNMASKED else tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def prefetch(weight_rows, INPUTS: tl.constexpr, LINES: tl.constexpr):
    """Prefetch the first LINES cache lines of each weight row, (BLOCK, 1) pointers."""
    LINE: tl.constexpr = 1024 // weight_rows.dtype.element_ty.primitive_bitwidth
    k = tl.minimum(tl.arange(0, LINES) * LINE, INPUTS - 1)
    prefetch_lines(weight_rows + k[None, :])


@triton.jit
def addend(bias, residual, n, m, rows, residual_stride, OUTPUTS: tl.constexpr):
    """Load what is added to outputs n of rows m at the end; called before the long loop."""
    added = tl.zeros([1, 1], tl.float32)
    if bias is not None:
        added += tl.load(bias + n, mask=n < OUTPUTS, other=0.0).to(tl.float32)
    if residual is not None:
        inside = (m < rows) & (n < OUTPUTS)
        added += tl.load(residual + m * residual_stride + n, mask=inside, other=0.0).to(tl.float32)
    return added


@triton.jit
def _scales(scale, BLOCK: tl.constexpr, OUTPUTS: tl.constexpr, GATED: tl.constexpr):
    """Load the (BLOCK,) scales of this program's sums over quantized weights.

    One axis: as a column, each thread would load its scale once for every input that it holds.
    """
    by = tl.zeros([1], tl.float32)
    by_up = by
    if scale is not None:
        n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        by = tl.load(scale + n, mask=n < OUTPUTS, other=0.0)
        by_up = tl.load(scale + OUTPUTS + n, mask=n < OUTPUTS, other=0.0) if GATED else by
    return by, by_up


@triton.jit
def write(acc, up, added, out, n, m, rows, OUTPUTS: tl.constexpr, GATED: tl.constexpr):
    """Gate a float32 tile of rows m and outputs n, or add to it, and write it."""
    if GATED:
        acc = acc * tl.sigmoid(acc) * up
    else:
        acc += added
    inside = (m < rows) & (n < OUTPUTS)
    tl.store(out + m * OUTPUTS + n, acc.to(out.dtype.element_ty), mask=inside)


@triton.jit
def few_rows(
    x, weight, scale, norm, bias, residual, out, eps, rows, x_stride, residual_stride,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    DEPTH: tl.constexpr, GATED: tl.constexpr, LINES: tl.constexpr, OVERLAPPED: tl.constexpr,
    NORMED: tl.constexpr,
):  # fmt: skip
    """Multiply and add in registers, for one or two rows; columns are summed once, at the end."""
    start_next(OVERLAPPED)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    # outputs past the last one repeat it, so that loads need no mask; they are not written
    weight_rows = weight + tl.minimum(n, OUTPUTS - 1).to(tl.int64) * INPUTS
    up_rows = weight_rows + OUTPUTS * INPUTS
    k = tl.arange(0, DEPTH)[None, :]
    if scale is not None:  # same count as x: values stay in their threads
        k = tl.max_contiguous(k, [1, 8])
    EVEN: tl.constexpr = INPUTS % DEPTH == 0
    # weights depend on no other kernel: they are loaded before the wait, one pass ahead
    w = _tile(weight_rows + k, k < INPUTS, EVEN)
    w_up = _tile(up_rows + k, k < INPUTS, EVEN) if GATED else w
    if OVERLAPPED:
        prefetch(weight_rows, INPUTS, LINES)
        if GATED:
            prefetch(up_rows, INPUTS, LINES)
    by, by_up = _scales(scale, BLOCK, OUTPUTS, GATED)
    wait_for_previous(OVERLAPPED)
    acc_0 = tl.zeros([BLOCK, DEPTH], tl.float32)
    acc_1, up_0, up_1 = acc_0, acc_0, acc_0
    squares_0 = tl.zeros([1, DEPTH], tl.float32)
    squares_1 = squares_0
    x_1 = x + (rows - 1) * x_stride  # the second of two rows
    added_0 = addend(bias, residual, n, 0, rows, residual_stride, OUTPUTS)
    added_1 = addend(bias, residual, n, ROWS - 1, rows, residual_stride, OUTPUTS)
    for start in tl.static_range(0, INPUTS, DEPTH):
        here = start + k
        w_now, up_now = w, w_up
        if start + DEPTH < INPUTS:
            w = _tile(weight_rows + DEPTH + here, DEPTH + here < INPUTS, EVEN)
            w_up = _tile(up_rows + DEPTH + here, DEPTH + here < INPUTS, EVEN) if GATED else w
        a = _tile(x + here, here < INPUTS, EVEN).to(tl.float32)
        b = _tile(x_1 + here, here < INPUTS, EVEN).to(tl.float32) if ROWS == 2 else a
        if NORMED:
            squares_0 += a * a
            squares_1 += b * b
        if norm is not None:
            gain = _tile(norm + here, here < INPUTS, EVEN).to(tl.float32)
            a, b = a * gain, b * gain
        acc_0 += a * w_now.to(tl.float32)
        acc_1 += b * w_now.to(tl.float32)
        if GATED:
            up_0 += a * up_now.to(tl.float32)
            up_1 += b * up_now.to(tl.float32)
    for row in tl.static_range(0, ROWS):
        acc = tl.sum(acc_1 if row else acc_0, 1, keep_dims=True)
        up = tl.sum(up_1 if row else up_0, 1, keep_dims=True) if GATED else acc
        if NORMED:
            mean = tl.sum(squares_1 if row else squares_0, 1, keep_dims=True) / INPUTS
            acc *= tl.rsqrt(mean + eps)
            up *= tl.rsqrt(mean + eps)
        if scale is not None:
            acc, up = acc * by[:, None], up * by_up[:, None]
        write(acc, up, added_1 if row else added_0, out, n, row, rows, OUTPUTS, GATED)


@triton.jit(do_not_specialize=["rows"])
def many_rows(
    x, weight, scale, norm, bias, residual, out, eps, rows, x_stride, residual_stride,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    DEPTH: tl.constexpr, GATED: tl.constexpr, LINES: tl.constexpr, OVERLAPPED: tl.constexpr,
    NORMED: tl.constexpr, SLICES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute matrix products (ROWS, DEPTH) by (DEPTH, BLOCK) in batches of SLICES.

    Each warp has a slice of the inputs. If all warps computed one quantized product after the
    other, the sums would form one long chain, and every warp would read every weight.
    """
    start_next(OVERLAPPED)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = tl.arange(0, ROWS)
    # outputs past the last one repeat it, so that loads need no mask; they are not written
    weight_rows = weight + tl.minimum(n, OUTPUTS - 1).to(tl.int64) * INPUTS
    up_rows = weight_rows + OUTPUTS * INPUTS
    if OVERLAPPED:
        prefetch(weight_rows[:, None], INPUTS, LINES)
        if GATED:
            prefetch(up_rows[:, None], INPUTS, LINES)
    by, by_up = _scales(scale, BLOCK, OUTPUTS, GATED)
    wait_for_previous(OVERLAPPED)
    LENGTH: tl.constexpr = INPUTS // SLICES  # of one slice
    EVEN: tl.constexpr = LENGTH % DEPTH == 0
    s = tl.arange(0, SLICES) * LENGTH
    x_rows = x + s[:, None, None] + m[None, :, None] * x_stride
    acc = tl.zeros([SLICES, ROWS, BLOCK], tl.float32)
    up = tl.zeros([SLICES, ROWS, BLOCK], tl.float32)
    squares = tl.zeros([SLICES, ROWS], tl.float32)
    n, m = n[None, :], m[:, None]
    added = addend(bias, residual, n, m, rows, residual_stride, OUTPUTS)
    for start in tl.range(0, LENGTH, DEPTH, num_stages=STAGES):
        k = start + tl.arange(0, DEPTH)
        part = s[:, None, None] + k[None, :, None]
        w = _tile(weight_rows[None, None, :] + part, k[None, :, None] < LENGTH, EVEN)
        inside = (m[None, :, :] < rows) & (k[None, None, :] < LENGTH)
        x_tile = tl.load(x_rows + k[None, None, :], mask=inside, other=0.0)
        if NORMED:
            wide = x_tile.to(tl.float32)
            squares += tl.sum(wide * wide, 2)
        if norm is not None:
            gain = _tile(norm + s[:, None] + k[None, :], k[None, :] < LENGTH, EVEN)
            x_tile = (x_tile.to(tl.float32) * gain.to(tl.float32)[:, None, :]).to(x_tile.dtype)
        if scale is not None:
            w = w.to(x_tile.dtype)
        acc = tl.dot(x_tile, w, acc, input_precision="ieee")
        if GATED:
            w_up = _tile(up_rows[None, None, :] + part, k[None, :, None] < LENGTH, EVEN)
            if scale is not None:
                w_up = w_up.to(x_tile.dtype)
            up = tl.dot(x_tile, w_up, up, input_precision="ieee")
    total = tl.sum(acc, 0)
    total_up = tl.sum(up, 0)
    if NORMED:
        root = tl.rsqrt(tl.sum(squares, 0) / INPUTS + eps)[:, None]
        total, total_up = total * root, total_up * root
    if scale is not None:
        total *= by[None, :]
        total_up *= by_up[None, :]
    write(total, total_up, added, out, n, m, rows, OUTPUTS, GATED)


@triton.jit(do_not_specialize=["rows"])
def all_rows(
    x, weight, scale, bias, residual, out, rows, x_stride, residual_stride,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    DEPTH: tl.constexpr, GATED: tl.constexpr, LINES: tl.constexpr, OVERLAPPED: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute products (ROWS, DEPTH) by (DEPTH, BLOCK), all warps on one; rows are normalised."""
    start_next(OVERLAPPED)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    m = tl.arange(0, ROWS)[:, None]
    # outputs past the last one repeat it, so that loads need no mask; they are not written
    weight_rows = weight + tl.minimum(n, OUTPUTS - 1).to(tl.int64) * INPUTS
    up_rows = weight_rows + OUTPUTS * INPUTS
    if OVERLAPPED:
        prefetch(tl.trans(weight_rows), INPUTS, LINES)
        if GATED:
            prefetch(tl.trans(up_rows), INPUTS, LINES)
    by, by_up = _scales(scale, BLOCK, OUTPUTS, GATED)
    wait_for_previous(OVERLAPPED)
    EVEN: tl.constexpr = INPUTS % DEPTH == 0
    added = addend(bias, residual, n, m, rows, residual_stride, OUTPUTS)
    x_rows = x + tl.minimum(m, rows - 1) * x_stride
    acc = tl.zeros([ROWS, BLOCK], tl.float32)
    up = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in tl.range(0, INPUTS, DEPTH, num_stages=STAGES):
        k = start + tl.arange(0, DEPTH)
        w = _tile(weight_rows + k[:, None], k[:, None] < INPUTS, EVEN)
        x_tile = _tile(x_rows + k[None, :], k[None, :] < INPUTS, EVEN)
        if scale is not None:
            w = w.to(x_tile.dtype)
        acc = tl.dot(x_tile, w, acc, input_precision="ieee")
        if GATED:
            w_up = _tile(up_rows + k[:, None], k[:, None] < INPUTS, EVEN)
            if scale is not None:
                w_up = w_up.to(x_tile.dtype)
            up = tl.dot(x_tile, w_up, up, input_precision="ieee")
    if scale is not None:
        acc *= by[None, :]
        up *= by_up[None, :]
    write(acc, up, added, out, n, m, rows, OUTPUTS, GATED)
