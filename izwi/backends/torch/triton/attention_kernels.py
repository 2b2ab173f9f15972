"""The kernels of `attention_decode`.

A program takes one row and one head of keys with the queries that share it. It never reads back
what it writes: the new key and value stay in registers, and earlier ones come from the cache.
Therefore the programs of one launch need not wait for each other.

Heads are kept as two halves, (n, head_dim / 2), until they are normalised and rotated, because a
rotation pairs the first half with the second. Softmaxes are taken in base 2 and float32.
"""

from __future__ import annotations

# ruff: noqa: N803, N806 (constants of a kernel are upper case)
# mypy: allow-untyped-decorators, allow-untyped-calls, allow-untyped-defs, allow-incomplete-defs
import triton
import triton.language as tl

from izwi.backends.torch.triton.launch import start_next, wait_for_previous
from izwi.backends.torch.triton.rows import root_of

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def halves(heads, inside, angle, cos, sin, norm, eps, root, HALF: tl.constexpr):
    """Return both halves of some heads, normalised and rotated, in float32.

    `heads` are (n, 1) pointers to the first number of each head, `angle` (n, 1) or scalar offsets
    into the rotation tables, `root` (n, 1) or a scalar by which the heads have not been scaled yet.
    """
    d = tl.arange(0, HALF)[None, :]
    first = tl.load(heads + d, mask=inside, other=0.0).to(tl.float32) * root
    second = tl.load(heads + HALF + d, mask=inside, other=0.0).to(tl.float32) * root
    if norm is not None:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        scale = tl.rsqrt(squares / (2 * HALF) + eps)[:, None]
        first *= scale * tl.load(norm + d).to(tl.float32)
        second *= scale * tl.load(norm + HALF + d).to(tl.float32)
    if cos is not None:
        c = tl.load(cos + angle + d, mask=inside, other=0.0).to(tl.float32)
        s = tl.load(sin + angle + d, mask=inside, other=0.0).to(tl.float32)
        rotated = first * c - second * s
        second = second * c + first * s
        first = rotated
    return first, second


@triton.jit
def whole_heads(first, second, HALF: tl.constexpr):
    """Return heads (n, 2 * HALF) from their halves."""
    joined = tl.permute(tl.join(first, second), (0, 2, 1))
    return tl.reshape(joined, (first.shape[0], 2 * HALF))


@triton.jit
def keep_row(
    k, v, keys, values, place, inside, angle, cos, sin, norm, eps, root, HALF: tl.constexpr
):
    """Write one head of a new key and value to the cache, and return them as stored.

    `k` and `v` point to the projected head, not yet scaled by `root`; `place` is its position in
    the cache.
    """
    half = tl.arange(0, HALF)[None, :]
    whole = tl.arange(0, 2 * HALF)
    head = k + tl.zeros([1, 1], tl.int32)
    first, second = halves(head, inside, angle, cos, sin, norm, eps, root, HALF)
    first = first.to(keys.dtype.element_ty)
    second = second.to(keys.dtype.element_ty)
    value = (tl.load(v + whole).to(tl.float32) * root).to(values.dtype.element_ty)
    tl.store(keys + place + half, first, mask=inside)
    tl.store(keys + place + HALF + half, second, mask=inside)
    tl.store(values + place + whole, value, mask=inside)
    return first.to(tl.float32), second.to(tl.float32), value.to(tl.float32)


@triton.jit
def _scores(queries, k_tile, scale, visible):
    """Return scores (n, keys), in base 2, of the visible keys."""
    scores = tl.dot(queries, k_tile, input_precision="ieee") * (scale * LOG2_E)
    return tl.where(visible[None, :], scores, -float("inf"))


@triton.jit
def _score_of_one(first, second, k_first, k_second, scale):
    """Return scores (n,), in base 2, of one key."""
    return tl.sum(first * k_first + second * k_second, 1) * (scale * LOG2_E)


@triton.jit
def angle_of(rotary, row, count, HALF: tl.constexpr):
    """Return where a row's cosines begin: at its rotary position, or at its own without those."""
    at = count
    if rotary is not None:
        at = tl.load(rotary + row).to(tl.int32)
    return at * HALF


@triton.jit
def paged(
    q, k, v, out, keys, values, positions, tables, table_width, rotary, cos, sin, q_norm, k_norm,
    partial, stats, eps, scale, q_stride, k_stride, v_stride, x, x_eps, x_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, QUERIES: tl.constexpr, HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_BLOCK: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Attend to one part of the keys of one row, with the queries of one head of keys.

    Arguments as in `PagedDecode`; `partial` (rows, heads, parts, head_dim) and `stats` (2, rows,
    heads, parts) receive the partial results if there are several parts.
    """
    start_next(OVERLAPPED)
    row, head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    HALF: tl.constexpr = HEAD_DIM // 2
    kept = keys.dtype.element_ty
    whole = tl.arange(0, HEAD_DIM)
    g = tl.arange(0, QUERIES)
    wait_for_previous(OVERLAPPED)
    position = tl.load(positions + row)
    count = tl.maximum(position, 0).to(tl.int32)  # of earlier keys; the new one follows them
    table = tables + row * tl.load(table_width)
    angle = angle_of(rotary, row, count, HALF)
    root = root_of(x, row, x_stride, x_eps, WIDTH, WIDTH_BLOCK)
    q_heads = q + row * q_stride + (head * GROUP + g[:, None]) * HEAD_DIM
    first, second = halves(q_heads, (g < GROUP)[:, None], angle, cos, sin, q_norm, eps, root, HALF)
    first, second = first.to(kept), second.to(kept)
    queries = whole_heads(first, second, HALF)

    here = (part == 0) & (position >= 0)  # the first part has the new key
    page = tl.load(table + count // PAGE, mask=here, other=0).to(tl.int64)
    place = ((page * PAGE + count % PAGE) * KV_HEADS + head) * HEAD_DIM
    k_head, v_head = k + row * k_stride + head * HEAD_DIM, v + row * v_stride + head * HEAD_DIM
    k_first, k_second, v_new = keep_row(
        k_head, v_head, keys, values, place, here, angle, cos, sin, k_norm, eps, root, HALF
    )
    score = _score_of_one(first.to(tl.float32), second.to(tl.float32), k_first, k_second, scale)
    largest = tl.where(here, score, -float("inf"))
    total = tl.where(here, 1.0, tl.zeros([QUERIES], tl.float32))
    acc = total[:, None] * v_new[None, :]

    length = tl.cdiv(tl.cdiv(count, PARTS), BLOCK) * BLOCK
    stop = tl.minimum((part + 1) * length, count)
    for start in tl.range(part * length, stop, BLOCK, num_stages=STAGES):
        j = start + tl.arange(0, BLOCK)
        pages = tl.load(table + j // PAGE, mask=j < stop, other=0).to(tl.int64)
        places = ((pages * PAGE + j % PAGE) * KV_HEADS + head) * HEAD_DIM
        # a slot that was never written may hold a NaN, which a weight of 0 would not cancel
        k_tile = tl.load(keys + places[None, :] + whole[:, None], (j < stop)[None, :], other=0.0)
        v_tile = tl.load(values + places[:, None] + whole[None, :], (j < stop)[:, None], other=0.0)
        scores = _scores(queries, k_tile, scale, j < stop)
        larger = tl.maximum(largest, tl.max(scores, 1))
        weights, shrunk = tl.exp2(scores - larger[:, None]), tl.exp2(largest - larger)
        total = total * shrunk + tl.sum(weights, 1)
        acc = tl.dot(weights.to(kept), v_tile, acc * shrunk[:, None], input_precision="ieee")
        largest = larger
    index = (row * KV_HEADS * GROUP + head * GROUP + g) * PARTS + part
    size = tl.num_programs(0) * KV_HEADS * GROUP * PARTS
    _write(out, partial, stats, index, size, acc, largest, total, g < GROUP, PARTS)


@triton.jit
def _write(out, partial, stats, index, size, acc, largest, total, inside, PARTS: tl.constexpr):
    """Write the output, or the partial result of a part; `total` is 0 for an empty row."""
    place = index[:, None] * acc.shape[1] + tl.arange(0, acc.shape[1])[None, :]
    if PARTS == 1:
        acc = acc / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out + place, acc.to(out.dtype.element_ty), mask=inside[:, None])
    else:
        tl.store(partial + place, acc, mask=inside[:, None])
        tl.store(stats + index, largest, mask=inside)
        tl.store(stats + size + index, total, mask=inside)


@triton.jit
def join_parts(
    partial, stats, out, size, HEAD_DIM: tl.constexpr, PARTS: tl.constexpr, OVERLAPPED: tl.constexpr
):
    """Combine the parts of one row's head of queries by their sums; `size` is half of stats."""
    start_next(OVERLAPPED)
    wait_for_previous(OVERLAPPED)
    index = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    p = index * PARTS + tl.arange(0, PARTS)
    d = tl.arange(0, HEAD_DIM)
    largest = tl.load(stats + p)
    top = tl.max(largest, 0)
    # all parts of an empty row are empty
    weights = tl.exp2(largest - tl.where(top == -float("inf"), 0.0, top))
    total = tl.sum(weights * tl.load(stats + size + p), 0)
    parts = tl.load(partial + p[:, None] * HEAD_DIM + d[None, :])
    joined = tl.sum(weights[:, None] * parts, 0) / tl.where(total > 0, total, 1.0)
    tl.store(out + index * HEAD_DIM + d, joined.to(out.dtype.element_ty))


@triton.jit(do_not_specialize=["start"])
def scratch(
    q, k, v, out, keys, values, cos, sin, q_norm, k_norm, start, eps, scale,
    q_row, q_token, k_row, k_token, v_row, v_token, x, x_eps, x_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, QUERIES: tl.constexpr, HEAD_DIM: tl.constexpr,
    TOKENS: tl.constexpr, CAPACITY: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    WIDTH_BLOCK: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Attend with the new queries of one row, for one head of keys, after `start` earlier keys.

    Arguments as in `ScratchDecode`, with the strides of rows and of tokens.
    """
    start_next(OVERLAPPED)
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    HALF: tl.constexpr = HEAD_DIM // 2
    kept = keys.dtype.element_ty
    whole, j = tl.arange(0, HEAD_DIM), tl.arange(0, BLOCK)
    i = tl.arange(0, QUERIES)
    token, g = i // GROUP, i % GROUP
    used = (i < TOKENS * GROUP)[:, None]
    wait_for_previous(OVERLAPPED)
    places = ((row * CAPACITY + j) * KV_HEADS + head) * HEAD_DIM
    k_tile = tl.load(keys + places[None, :] + whole[:, None], (j < start)[None, :], other=0.0)
    v_tile = tl.load(values + places[:, None] + whole[None, :], (j < start)[:, None], other=0.0)
    # of the first token and of the last, which may be the same
    root = root_of(x, row * TOKENS, x_stride, x_eps, WIDTH, WIDTH_BLOCK)
    root_of_last = root
    if TOKENS == 2:
        root_of_last = root_of(x, row * TOKENS + 1, x_stride, x_eps, WIDTH, WIDTH_BLOCK)
    q_heads = q + row * q_row + (token * q_token + (head * GROUP + g) * HEAD_DIM)[:, None]
    angles = ((start + token) * HALF)[:, None]
    roots = tl.where(token == 0, root, root_of_last)[:, None]
    first, second = halves(q_heads, used, angles, cos, sin, q_norm, eps, roots, HALF)
    first, second = first.to(kept), second.to(kept)
    scores = _scores(whole_heads(first, second, HALF), k_tile, scale, j < start)
    first, second = first.to(tl.float32), second.to(tl.float32)
    # never -inf, so that a softmax over no keys yet is not a NaN
    largest = tl.maximum(tl.max(scores, 1), -1e30)
    weights = tl.exp2(scores - largest[:, None])
    total = tl.sum(weights, 1)
    acc = tl.dot(weights.to(kept), v_tile, input_precision="ieee")
    for t in tl.static_range(TOKENS):  # each is visible to its own query and later ones
        k_head = k + row * k_row + t * k_token + head * HEAD_DIM
        v_head = v + row * v_row + t * v_token + head * HEAD_DIM
        place = ((row * CAPACITY + start + t) * KV_HEADS + head) * HEAD_DIM
        angle = (start + t) * HALF
        of_token = root_of_last if t else root
        k_first, k_second, v_new = keep_row(
            k_head, v_head, keys, values, place, True, angle, cos, sin, k_norm, eps, of_token, HALF
        )
        score = _score_of_one(first, second, k_first, k_second, scale)
        score = tl.where(token >= t, score, -float("inf"))
        larger = tl.maximum(largest, score)
        weight, shrunk = tl.exp2(score - larger), tl.exp2(largest - larger)
        total = total * shrunk + weight
        acc = acc * shrunk[:, None] + weight[:, None] * v_new[None, :]
        largest = larger
    index = (row * TOKENS + token) * (KV_HEADS * GROUP) + head * GROUP + g
    place_out = out + index[:, None] * HEAD_DIM + whole[None, :]
    tl.store(place_out, (acc / total[:, None]).to(out.dtype.element_ty), mask=used)
