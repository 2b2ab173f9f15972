"""Compare the kernels with torch at the sizes of the published models, in bfloat16."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from benchmarks.kernels.cases import (
    DEVICE,
    DTYPE,
    PACKED,
    PAGE,
    PRODUCTS,
    SPEC,
    Operands,
    Step,
    normal,
    row_sampling,
)
from izwi.backends.torch import sampler
from izwi.backends.torch.attention.paged import PagedContext
from izwi.backends.torch.attention.slots import PlainSlots
from izwi.backends.torch.ops import TorchOps
from izwi.backends.torch.quantized import FOUR_BITS
from izwi.backends.torch.triton.attention_decode import ScratchDecode
from izwi.backends.torch.triton.rows import rms_norm, snake, swiglu
from izwi.backends.torch.triton.sampling import draw
from izwi.ops.attention import divide
from izwi.request.request import SamplingParams
from izwi.sampling.draws import uniforms

ROWS = (1, 2, 8, 32, 64)
QUANTIZED_ROWS = (1, 8, 64)  # rows for each kernel
_QUANTIZED = (torch.int8, torch.float8_e4m3fn, FOUR_BITS)
_WORST = 2e-2  # relative to the largest value: the error of rounding to bfloat16 in between
_EXACT = TorchOps(DEVICE, torch.float32)


def check_everything() -> list[str]:
    """Compare, print the errors, and return the names of failing cases."""
    torch.manual_seed(0)
    errors = _errors_of_rows()
    cases = [
        Operands(product, rows, stored)
        for product in PRODUCTS
        for stored in (None, *_QUANTIZED)
        for rows in (ROWS if stored is None else QUANTIZED_ROWS)
    ]
    with ThreadPoolExecutor(16) as pool:  # compile in parallel
        list(pool.map(lambda operands: operands.fused(0), cases))
    for operands in cases:
        name = f"{operands.product.name}, {operands.stored}, {operands.rows} rows"
        errors[name] = _error(operands.fused(0), operands.exact())
    for rows in ROWS:
        errors |= _errors_of_attention(rows) | _errors_of_draws(rows)
    for name, error in errors.items():
        print(f"{name}: off by {error:.2e}", flush=True)
    return [name for name, error in errors.items() if not error < _WORST]


def _error(found: Tensor, exact: Tensor) -> float:
    return ((found.float() - exact).abs().max() / exact.abs().max()).item()


def _errors_of_rows() -> dict[str, float]:
    x, norm = normal(700, 2048), normal(2048)
    gate, up = normal(64, 12288).chunk(2, dim=-1)
    audio, alpha, beta = normal(2, 96, 9600), normal(96), normal(96)
    exact = [
        _EXACT.rms_norm(x.float(), norm.float(), 1e-6),
        _EXACT.swiglu(gate.float(), up.float()),
        _EXACT.snake(audio.float(), alpha.float(), beta.float()),
    ]
    found = [rms_norm(x, norm, 1e-6), swiglu(gate, up), snake(audio, alpha, beta)]
    names = ("rms_norm", "swiglu", "snake")
    return {n: _error(f, e) for n, f, e in zip(names, found, exact, strict=True)}


def _errors_of_attention(rows: int) -> dict[str, float]:
    norm = normal(SPEC.head_dim, scale=0.2) + 1
    errors: dict[str, float] = {}
    for length, max_keys in ((300, 512), (2000, 4096)):
        step, packed = Step(rows, length, 1, max_keys), divide(normal(rows, PACKED), SPEC)
        found = step.context.attend_fused(0, *packed, SPEC, norm, norm)
        exact = _paged_exactly(step, packed, norm, length)
        errors[f"paged attention, {length} keys, {rows} rows"] = _error(found, exact)
    scratch = ScratchDecode(rows, 16, 1, SPEC, DEVICE, DTYPE)
    reference = _EXACT.scratch_context(rows, 16, 1, SPEC)
    worst = 0.0
    for tokens in (2, *[1] * 14):
        packed = divide(normal(rows, tokens, PACKED), SPEC)
        found = scratch.attend_fused(0, *packed, SPEC, norm, norm)
        q, k, v = (x.float() for x in packed)
        wide = norm.float()
        exact = _EXACT.attention(
            q, k, v, spec=SPEC, context=reference, layer=0, q_norm=wide, k_norm=wide
        )
        worst = max(worst, _error(found, exact))
        scratch.advance(tokens)
        reference.advance(tokens)
    return errors | {f"scratch attention, {rows} rows": worst}


def _paged_exactly(step: Step, packed: tuple[Tensor, ...], norm: Tensor, length: int) -> Tensor:
    rows = len(step.positions)
    pages = len(step.tables) // rows
    shape = (1, rows * pages, SPEC.num_kv_heads, SPEC.head_dim)
    slots = PlainSlots(shape, PAGE, DEVICE, torch.float32)
    for plane, kept in zip(slots.planes, (step.cache.keys, step.cache.values), strict=True):
        plane[:, : slots.padding_slot] = kept
    context = PagedContext(
        slots, [(length, length + 1)] * rows, step.tables.view(rows, pages).tolist()
    )
    q, k, v = (x.float() for x in packed)
    wide = norm.float()
    return _EXACT.attention(q, k, v, spec=SPEC, context=context, layer=0, q_norm=wide, k_norm=wide)


def _errors_of_draws(rows: int) -> dict[str, float]:
    """Return the shares of rows in which a different id was drawn."""
    errors = {}
    greedy = SamplingParams()
    for vocabulary, params, few_candidates in (
        (2048, SamplingParams(0.9, 50), True),
        (3072, SamplingParams(0.8, 20, 0.9), True),
        (3072, SamplingParams(1.1, 0, 0.95), False),
        (151_936, SamplingParams(0.9, 50), True),
        (151_936, greedy, True),
    ):
        logits = normal(rows, vocabulary, scale=3).float()
        logits += torch.randn_like(logits) / 16  # so that hardly any two are equal
        row = row_sampling(rows, vocabulary, params)
        noise = torch.from_numpy(uniforms(range(rows), [0] * rows, 3))
        expected = sampler.draw(logits.cpu(), [params] * rows, noise)
        found = draw(logits, row, 3, few_candidates)
        name = f"draw of {vocabulary}, top {params.top_k}, {rows} rows"
        errors[name] = (found.cpu() != expected).float().mean().item()
        if vocabulary <= 3072:  # numbers of 16 bits are sorted in another way
            short = logits.bfloat16()
            differ = draw(short, row, 3, few_candidates) != draw(
                short.float(), row, 3, few_candidates
            )
            errors[f"{name}, bfloat16"] = differ.float().mean().item()
    return errors
