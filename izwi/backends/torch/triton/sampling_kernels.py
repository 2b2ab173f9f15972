"""The kernels of `sampling`; their arguments have the names of `RowSampling`."""

from __future__ import annotations

# ruff: noqa: N803 (constants of a kernel are upper case)
# mypy: allow-untyped-decorators, allow-untyped-calls, allow-untyped-defs, allow-incomplete-defs
import triton
import triton.language as tl

from izwi.backends.torch.triton.launch import start_next, wait_for_previous

CANDIDATES = 64  # of a draw among few candidates
_CANDIDATES = tl.constexpr(CANDIDATES)
_GREEDY_BELOW = tl.constexpr(1e-5)


@triton.jit
def _mix(x):
    """Apply the finaliser of SplitMix64 to a uint64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _uniform(seed, step, codebook):
    """Return a float64 in [0, 1), as `izwi.backends.torch.sampler.uniforms` does."""
    start = seed.to(tl.uint64, bitcast=True) + 0x9E3779B97F4A7C15
    counter = (step * 64 + codebook).to(tl.uint64, bitcast=True)
    bits = _mix(_mix(start) ^ counter)
    return (bits >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16  # 2 ** -53


@triton.jit
def _processed(
    logits, penalty, seen, stop_ids, stop_allowed, suppressed, row, ids,
    VOCABULARY: tl.constexpr, WORDS: tl.constexpr, STOPS: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """Return the processed logits of some ids of one row, float32; -inf past the vocabulary.

    `logits` points to the row.
    """
    inside = ids < VOCABULARY
    x = tl.load(logits + ids, mask=inside, other=-float("inf")).to(tl.float32)
    if FIRST:
        word = tl.load(seen + row * WORDS + ids // 32, mask=ids < 32 * WORDS, other=0)
        factor = tl.load(penalty + row)
        penalised = tl.where(x > 0, tl.div_rn(x, factor), x * factor)
        x = tl.where((word >> (ids % 32)) & 1 == 1, penalised, x)
        stops = ids < 0
        for i in tl.static_range(STOPS):
            stops |= ids == tl.load(stop_ids + row * STOPS + i)
        hidden = stops & (tl.load(stop_allowed + row) == 0)
        if suppressed is not None:
            hidden |= (tl.load(suppressed + ids, mask=inside, other=1) != 0) & ~stops
        x = tl.where(hidden, -float("inf"), x)
    return x


@triton.jit
def _keys(x, ids, SHORT: tl.constexpr):
    """Return integers that sort like (x, -id); SHORT ones have 32 bits and hold bfloat16 values."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)  # zero has two bit patterns
    if SHORT:
        bits = bits >> 16
        keys = ((bits ^ ((bits >> 31) & 0x7FFF)) << 16) | (0xFFFF - ids)
    else:
        ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        keys = (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)
    return keys


@triton.jit
def _of_keys(keys, SHORT: tl.constexpr):
    """Return the values and ids that `_keys` encoded."""
    if SHORT:
        ordered = keys >> 16
        bits = (ordered ^ ((ordered >> 31) & 0x7FFF)) << 16
        ids = 0xFFFF - (keys & 0xFFFF)
    else:
        ordered = (keys >> 32).to(tl.int32)
        bits = ordered ^ ((ordered >> 31) & 0x7FFFFFFF)
        ids = 0x7FFFFFFF - (keys & 0x7FFFFFFF).to(tl.int32)
    return bits.to(tl.float32, bitcast=True), ids


@triton.jit
def _chosen(keys, seed, step, scale, top_k, top_p, row, codebook, SHORT: tl.constexpr):
    """Return the id drawn among sorted keys: the distribution inverted at a uniform number."""
    values, ids = _of_keys(keys, SHORT)
    rank = tl.arange(0, keys.shape[0])
    temperature, kept, nucleus = tl.load(scale + row), tl.load(top_k + row), tl.load(top_p + row)
    greedy = temperature < _GREEDY_BELOW
    values = tl.div_rn(values, tl.zeros_like(values) + tl.where(greedy, 1.0, temperature))
    values = tl.where((rank < kept) | (kept <= 0), values, -float("inf"))
    weights = tl.exp(values - tl.max(values, 0))
    total = tl.zeros_like(weights) + tl.sum(weights, 0)
    wide = tl.div_rn(weights, total).to(tl.float64)
    before = tl.cumsum(wide, 0) - wide
    nucleus = tl.where(nucleus < 1.0, nucleus, 2.0)  # 1 drops nothing, regardless of rounding
    outside = (before >= nucleus.to(tl.float64)) & (rank > 0)
    wide = tl.where(outside, 0.0, wide)
    reached = tl.cumsum(wide, 0)
    uniform = _uniform(tl.load(seed + row), tl.load(step + row), codebook)
    target = uniform * tl.max(reached, 0)
    place = tl.sum((reached <= target).to(tl.int32), 0)
    last = tl.sum((wide > 0).to(tl.int32), 0) - 1
    place = tl.where(greedy, 0, tl.minimum(place, last))
    return tl.sum(tl.where(rank == place, ids, 0), 0).to(tl.int64)


@triton.jit(do_not_specialize=["codebook"])
def draw_row(
    logits, stride, penalty, seen, stop_ids, stop_allowed, suppressed,
    seed, step, scale, top_k, top_p, codebook, out,
    VOCABULARY: tl.constexpr, WORDS: tl.constexpr, STOPS: tl.constexpr, BLOCK: tl.constexpr,
    FIRST: tl.constexpr, FEW: tl.constexpr, SHORT: tl.constexpr, REST: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Draw for one row. With REST, some candidates have ids beyond the BLOCK."""
    start_next(OVERLAPPED)
    row = tl.program_id(0).to(tl.int64)
    ids = tl.arange(0, BLOCK)
    wait_for_previous(OVERLAPPED)
    x = _processed(
        logits + row * stride, penalty, seen, stop_ids, stop_allowed, suppressed, row, ids,
        VOCABULARY, WORDS, STOPS, FIRST,
    )  # fmt: skip
    keys = _keys(x, ids, SHORT)
    keys = tl.topk(keys, _CANDIDATES) if FEW else tl.sort(keys, descending=True)
    if REST:
        ids = BLOCK + tl.arange(0, _CANDIDATES)
        x = _processed(
            logits + row * stride, penalty, seen, stop_ids, stop_allowed, suppressed, row, ids,
            VOCABULARY, WORDS, STOPS, FIRST,
        )  # fmt: skip
        both = tl.reshape(tl.join(keys, _keys(x, ids, SHORT)), (2 * _CANDIDATES,))
        keys = tl.topk(both, _CANDIDATES)
    drawn = _chosen(keys, seed, step, scale, top_k, top_p, row, codebook, SHORT)
    tl.store(out + row, drawn)


@triton.jit
def find_candidates(
    logits, stride, penalty, seen, stop_ids, stop_allowed, suppressed, keys,
    VOCABULARY: tl.constexpr, WORDS: tl.constexpr, STOPS: tl.constexpr, BLOCK: tl.constexpr,
    FIRST: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Find the keys of the 64 largest logits of one chunk of one row's vocabulary."""
    start_next(OVERLAPPED)
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = chunk * BLOCK + tl.arange(0, BLOCK)
    wait_for_previous(OVERLAPPED)
    x = _processed(
        logits + row * stride, penalty, seen, stop_ids, stop_allowed, suppressed, row, ids,
        VOCABULARY, WORDS, STOPS, FIRST,
    )  # fmt: skip
    best = tl.topk(_keys(x, ids, False), _CANDIDATES)
    place = (row * tl.num_programs(1) + chunk) * _CANDIDATES
    tl.store(keys + place + tl.arange(0, _CANDIDATES), best)


@triton.jit
def merge_candidates(
    keys, merged, KEYS: tl.constexpr, BLOCK: tl.constexpr, OVERLAPPED: tl.constexpr
):
    """Find the 64 largest of each BLOCK of one row's KEYS keys."""
    start_next(OVERLAPPED)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = part * BLOCK + tl.arange(0, BLOCK)
    wait_for_previous(OVERLAPPED)
    found = tl.load(keys + row * KEYS + i, mask=i < KEYS, other=-0x8000000000000000)
    place = (row * tl.num_programs(1) + part) * _CANDIDATES
    tl.store(merged + place + tl.arange(0, _CANDIDATES), tl.topk(found, _CANDIDATES))


@triton.jit(do_not_specialize=["codebook"])
def choose(
    keys, seed, step, scale, top_k, top_p, codebook, out,
    KEYS: tl.constexpr, BLOCK: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Draw for one row among the candidates of its chunks."""
    start_next(OVERLAPPED)
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    wait_for_previous(OVERLAPPED)
    # padding is smaller than everything else
    found = tl.load(keys + row * KEYS + i, mask=i < KEYS, other=-0x8000000000000000)
    drawn = _chosen(
        tl.topk(found, _CANDIDATES), seed, step, scale, top_k, top_p, row, codebook, False
    )
    tl.store(out + row, drawn)


@triton.jit
def take_last_row(
    last, source, inputs,
    COLUMNS: tl.constexpr, INPUTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy one row's last entry, if the device has it, to its inputs."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.load(source + row)
    if place >= 0:
        column = tl.arange(0, BLOCK)
        there = column < COLUMNS
        entry = tl.load(last + place * COLUMNS + column, mask=there, other=0)
        tl.store(inputs + row * INPUTS + column, entry, mask=there)


@triton.jit
def add_last_row(
    first_ids, drawn, seen, STRIDE: tl.constexpr, WORDS: tl.constexpr
):  # fmt: skip
    """Add the first id of one row's last entry, if the device has it, to its emitted ids."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.load(drawn + row)
    if place >= 0:
        first = tl.load(first_ids + place * STRIDE)
        word = seen + row * WORDS + first // 32
        bit = tl.full((), 1, tl.int32) << (first % 32).to(tl.int32)
        tl.store(word, tl.load(word) | bit)
