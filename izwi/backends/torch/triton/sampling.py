"""Draw ids from logits on the device, as `izwi.backends.torch.sampler` does, in one kernel.

A program draws for one row. Everything that differs between rows or steps is read from device
tensors, so that a graph that contains draws can be launched for other requests.

Logits are sorted as integers: the bits of the logit, mapped so that they sort like floats, then the
id, smaller first. This orders equal logits, and one integer carries both through the sort.
"""

from __future__ import annotations

# mypy: allow-untyped-calls
from dataclasses import dataclass, fields

import torch
import triton
from torch import Tensor

from izwi.backends.torch.triton.launch import overlap_option
from izwi.backends.torch.triton.sampling_kernels import (
    CANDIDATES,
    add_last_row,
    choose,
    draw_row,
    find_candidates,
    merge_candidates,
    take_last_row,
)

MAX_STOP_IDS = 4
MAX_VOCABULARY = 8192  # of one program
_CHUNK = 1024  # of a larger vocabulary
# Candidates of chunks among which one program finds the largest. A sort of few is much faster.
_MERGED = 1024
# `python -m benchmarks.kernels.decode --tune` prints the fastest tiles.
logits_per_warp = 512
_SORTED_ROWS = 8  # in one pass: a sort of all logits takes about 40 bytes for each
_SHORT_VOCABULARY = 1 << 16  # ids that fit beside 16 bits of a logit
# Logits divided by less than this overflow float32; below it the largest logit is taken.
GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class SamplingColumns:
    """Sampling parameters of one kind of token, one value for each row.

    Attributes:
        scale: (rows,) float32 temperature; below 1e-5 the most likely token is taken.
        top_k: (rows,) int32 tokens kept; 0 or less keeps all.
        top_p: (rows,) float32; 1 keeps all.
        penalty: (rows,) float32 repetition penalty, for codebook 0 only; 1 for none.
    """

    scale: Tensor
    top_k: Tensor
    top_p: Tensor
    penalty: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class RowSampling:
    """Inputs of one step's draws besides the logits; device tensors.

    Attributes:
        seed: (rows,) int64.
        step: (rows,) int64 entries that the row has emitted.
        first: For codebook 0.
        rest: For the other codebooks.
        stop_ids: (rows, MAX_STOP_IDS) int32 ids of codebook 0 that end a row; -1 for none.
        stop_allowed: (rows,) int32; 0 while the row has fewer entries than its minimum.
        seen: (rows, words) int32; bit b of word w says that codebook 0 emitted id 32 w + b.
        suppressed: (vocabulary,) bool, ids of codebook 0 that are never drawn, except a row's stop
            ids; or None.
    """

    seed: Tensor
    step: Tensor
    first: SamplingColumns
    rest: SamplingColumns
    stop_ids: Tensor
    stop_allowed: Tensor
    seen: Tensor
    suppressed: Tensor | None


def draw(logits: Tensor, rows: RowSampling, codebook: int, few_candidates: bool) -> Tensor:
    """Draw one id for each row, as `izwi.backends.torch.sampler.Sampler` does for equal logits.

    Vocabularies above MAX_VOCABULARY take two kernels if `few_candidates` is true. Otherwise torch
    sorts all logits, which is slow but can be captured as well.

    Args:
        logits: (rows, vocabulary) of any float dtype; each row is contiguous.
        rows: Parameters of the rows.
        codebook: Index of the codebook; 0 has the penalty, the stop ids and the suppressed ids.
        few_candidates: Every row of this codebook is greedy or has a top_k of 1 to 64.

    Returns:
        (rows,) int64.
    """
    vocabulary = logits.shape[1]
    if vocabulary <= MAX_VOCABULARY:
        return _draw_small(logits, rows, codebook, few_candidates)
    if few_candidates:
        return _draw_large(logits, rows, codebook)
    parts = [
        _draw_sorted(part, _some_rows(rows, place * _SORTED_ROWS, len(part)), codebook)
        for place, part in enumerate(logits.split(_SORTED_ROWS))
    ]
    return torch.cat(parts)


def log_probabilities(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the natural log of the probability of one id for each row, from raw float32 logits.

    Args:
        logits: (rows, vocabulary) of any float dtype, before any processing.
        ids: (rows,) int64.

    Returns:
        (rows,) float32.
    """
    parts = zip(logits.split(_SORTED_ROWS), ids.split(_SORTED_ROWS), strict=True)
    return torch.cat(
        [part.float().log_softmax(-1).gather(-1, own[:, None])[:, 0] for part, own in parts]
    )


def take_last(last: Tensor, source: Tensor, inputs: Tensor) -> None:
    """Copy entries that the device has drawn to the inputs of the next step, in place.

    Args:
        last: (entries, columns) int64, the drawn entries.
        source: (rows,) int32 index of each row's last entry in `last`; -1 for none.
        inputs: (rows, inputs) int64; the first `columns` of a row become its entry.
    """
    columns = last.shape[1]
    take_last_row[(len(source),)](
        last,
        source,
        inputs,
        COLUMNS=columns,
        INPUTS=inputs.shape[1],
        BLOCK=triton.next_power_of_2(columns),
        num_warps=1,
    )


def add_last(first_ids: Tensor, drawn: Tensor, seen: Tensor) -> None:
    """Add ids that the device has drawn to those that were emitted, in place.

    Args:
        first_ids: (entries,) int64, the first id of each drawn entry; not contiguous.
        drawn: (rows,) int32 index of each row's last entry among them; -1 for none.
        seen: (rows, words) int32 as in `RowSampling`.
    """
    add_last_row[(len(drawn),)](
        first_ids, drawn, seen, STRIDE=first_ids.stride(0), WORDS=seen.shape[1], num_warps=1
    )


def _draw_small(logits: Tensor, rows: RowSampling, codebook: int, few_candidates: bool) -> Tensor:
    count, vocabulary = logits.shape
    ids = torch.empty(count, dtype=torch.int64, device=logits.device)
    block = max(CANDIDATES, triton.next_power_of_2(vocabulary))
    # 2,048 ids and the end of audio must not cost a sort of 4,096
    rest = few_candidates and CANDIDATES <= block // 2 < vocabulary <= block // 2 + CANDIDATES
    block = block // 2 if rest else block
    first = codebook == 0
    short = logits.dtype == torch.bfloat16 and not first and block <= _SHORT_VOCABULARY
    options = overlap_option(logits.device)
    draw_row[(count,)](
        logits,
        logits.stride(0),
        *_processing(rows, first),
        *_choosing(rows, first),
        codebook,
        ids,
        VOCABULARY=vocabulary,
        WORDS=rows.seen.shape[1],
        STOPS=rows.stop_ids.shape[1],
        BLOCK=block,
        FIRST=first,
        FEW=few_candidates,
        SHORT=short,
        REST=rest,
        OVERLAPPED=bool(options),
        num_warps=_warps(block),
        **options,
    )
    return ids


def _draw_large(logits: Tensor, rows: RowSampling, codebook: int) -> Tensor:
    count, vocabulary = logits.shape
    chunks = triton.cdiv(vocabulary, _CHUNK)
    keys = torch.empty((count, chunks, CANDIDATES), dtype=torch.int64, device=logits.device)
    ids = torch.empty(count, dtype=torch.int64, device=logits.device)
    options = overlap_option(logits.device)
    find_candidates[(count, chunks)](
        logits,
        logits.stride(0),
        *_processing(rows, codebook == 0),
        keys,
        VOCABULARY=vocabulary,
        WORDS=rows.seen.shape[1],
        STOPS=rows.stop_ids.shape[1],
        BLOCK=_CHUNK,
        FIRST=codebook == 0,
        OVERLAPPED=bool(options),
        num_warps=_warps(_CHUNK),
        **options,
    )
    while keys.shape[1] * CANDIDATES > _MERGED:
        keys = _merge(keys)
    found = keys.shape[1] * CANDIDATES
    choose[(count,)](
        keys,
        *_choosing(rows, codebook == 0),
        codebook,
        ids,
        KEYS=found,
        BLOCK=triton.next_power_of_2(found),
        OVERLAPPED=bool(options),
        num_warps=4,
        **options,
    )
    return ids


def _merge(keys: Tensor) -> Tensor:
    """Merge groups of candidate lists, (rows, lists, CANDIDATES), to the largest of each group."""
    count, lists, _ = keys.shape
    parts = triton.cdiv(lists * CANDIDATES, _MERGED)
    merged = keys.new_empty((count, parts, CANDIDATES))
    options = overlap_option(keys.device)
    merge_candidates[(count, parts)](
        keys,
        merged,
        KEYS=lists * CANDIDATES,
        BLOCK=_MERGED,
        OVERLAPPED=bool(options),
        num_warps=_warps(_MERGED),
        **options,
    )
    return merged


def _warps(logits: int) -> int:
    return min(16, max(1, logits // logits_per_warp))


def _processing(rows: RowSampling, first: bool) -> tuple[Tensor | None, ...]:
    """Return the arguments that process the logits of codebook 0; others are not processed."""
    if not first:
        return (None,) * 5
    suppressed = None if rows.suppressed is None else rows.suppressed.view(torch.uint8)
    return rows.first.penalty, rows.seen, rows.stop_ids, rows.stop_allowed, suppressed


def _choosing(rows: RowSampling, first: bool) -> tuple[Tensor, ...]:
    columns = rows.first if first else rows.rest
    return rows.seed, rows.step, columns.scale, columns.top_k, columns.top_p


def _some_rows(rows: RowSampling, start: int, count: int) -> RowSampling:
    def some(column: Tensor) -> Tensor:
        return column[start : start + count]

    def columns(of: SamplingColumns) -> SamplingColumns:
        return SamplingColumns(**{f.name: some(getattr(of, f.name)) for f in fields(of)})

    return RowSampling(
        some(rows.seed),
        some(rows.step),
        columns(rows.first),
        columns(rows.rest),
        some(rows.stop_ids),
        some(rows.stop_allowed),
        some(rows.seen),
        rows.suppressed,
    )


def _draw_sorted(logits: Tensor, rows: RowSampling, codebook: int) -> Tensor:
    columns = rows.first if codebook == 0 else rows.rest
    logits = _processed(logits.float(), rows) if codebook == 0 else logits.float()
    values, ids = logits.sort(dim=-1, descending=True, stable=True)
    greedy = columns.scale < GREEDY_BELOW
    rank = torch.arange(logits.shape[1], device=logits.device)
    dropped = (columns.top_k[:, None] > 0) & (rank >= columns.top_k[:, None])
    scaled = values / torch.where(greedy, 1.0, columns.scale)[:, None]
    weights = scaled.masked_fill(dropped, -torch.inf).softmax(-1).double()
    before = weights.cumsum(-1) - weights
    top_p = columns.top_p[:, None]
    weights = weights.masked_fill((before >= top_p) & (top_p < 1) & (rank > 0), 0.0)
    reached = weights.cumsum(-1)
    target = _uniforms(rows.seed, rows.step, codebook)[:, None] * reached[:, -1:]
    place = (reached <= target).sum(-1, keepdim=True)
    last = (weights > 0).sum(-1, keepdim=True) - 1
    place = torch.minimum(place, last).masked_fill(greedy[:, None], 0)
    return ids.gather(-1, place)[:, 0]


def _processed(logits: Tensor, rows: RowSampling) -> Tensor:
    ids = torch.arange(logits.shape[1], device=logits.device)
    words = rows.seen[:, (ids >> 5).clamp(max=rows.seen.shape[1] - 1)]
    emitted = ((words >> (ids & 31)) & 1 == 1) & (ids < 32 * rows.seen.shape[1])
    penalty = rows.first.penalty[:, None]
    penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
    logits = torch.where(emitted, penalised, logits)
    stops = (ids == rows.stop_ids[:, :, None]).any(1)
    hidden = stops & (rows.stop_allowed[:, None] == 0)
    if rows.suppressed is not None:
        hidden = hidden | (rows.suppressed & ~stops)
    return logits.masked_fill(hidden, -torch.inf)


def _uniforms(seed: Tensor, step: Tensor, codebook: int) -> Tensor:
    """As `izwi.backends.torch.sampler.uniforms`; torch has no uint64, but int64 wraps alike."""
    bits = _mix(_mix(seed + _signed(0x9E3779B97F4A7C15)) ^ (step * 64 + codebook))
    return _shifted(bits, 11).double() * 2.0**-53


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(x: int) -> int:
    return x - (1 << 64)
