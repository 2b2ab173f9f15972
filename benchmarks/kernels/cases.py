"""Test cases of `benchmarks.kernels.decode`: random inputs at the sizes of the published models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from izwi.backends.torch.grouped import Weight, widen
from izwi.backends.torch.ops import rms_norm
from izwi.backends.torch.quantized import quantized_weight
from izwi.backends.torch.triton import linear as triton_linear
from izwi.backends.torch.triton import rows as triton_rows
from izwi.backends.torch.triton.attention_decode import (
    DecodeCache,
    PagedDecode,
    ScratchDecode,
    rope_tables,
)
from izwi.backends.torch.triton.linear_tiles import Tiles
from izwi.backends.torch.triton.ops import TritonOps
from izwi.backends.torch.triton.sampling import MAX_STOP_IDS, RowSampling, SamplingColumns, draw
from izwi.ops.attention import divide
from izwi.ops.protocol import AttentionSpec
from izwi.request.request import SamplingParams

DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16
EPS = 1e-6
PAGE = 16
SPEC = AttentionSpec(num_heads=16, num_kv_heads=8, head_dim=128, rope_theta=1e6, norm_eps=EPS)
_CACHE_BYTES = 200 << 20  # several times the size of a cache

Call = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of one decoder stack."""

    name: str
    hidden: int
    inner: int
    context: int  # keys of a row; 0 for a scratch cache


TALKER = Sizes("talker 1.7B", 2048, 6144, 300)
PREDICTOR = Sizes("predictor", 1024, 3072, 0)  # the layers of the 0.6B talker have its sizes
PACKED = (SPEC.num_heads + 2 * SPEC.num_kv_heads) * SPEC.head_dim
_ATTENDED = SPEC.num_heads * SPEC.head_dim


@dataclass(frozen=True, slots=True)
class Product:
    """One weight, and the operations fused with its product: "norm", "residual", "gate", "bias"."""

    name: str
    weight_rows: int
    inputs: int
    folded: str

    @property
    def gated(self) -> bool:
        """Whether the first half of the weight's rows gates the second half."""
        return self.folded == "gate"

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weight in DTYPE."""
        return self.weight_rows * self.inputs * DTYPE.itemsize


def _products(sizes: Sizes, packed: int = PACKED, attended: int = _ATTENDED) -> list[Product]:
    name, hidden, inner = sizes.name, sizes.hidden, sizes.inner
    return [
        Product(f"{name} qkv", packed, hidden, "norm"),
        Product(f"{name} o", hidden, attended, "residual"),
        Product(f"{name} gate and up", 2 * inner, hidden, "gate"),
        Product(f"{name} down", hidden, inner, "residual"),
    ]


PRODUCTS = [
    *_products(TALKER),
    *_products(PREDICTOR),
    Product("predictor head", 2048, PREDICTOR.hidden, ""),
    Product("predictor input", PREDICTOR.hidden, TALKER.hidden, "bias"),
]
# of other models, by `--of`; those of LFM2-Audio's depthformer come last in its list
_LFM2 = [
    Product("conv in", 6144, 2048, "norm"),
    Product("qkv", 3072, 2048, "norm"),
    Product("gate and up", 16_384, 2048, "gate"),
    Product("down", 2048, 8192, "residual"),
    Product("head", 65_536, 2048, ""),
    Product("depth input", 8192, 2048, "bias"),
    Product("depth qkv", 1536, 1024, "norm"),
    Product("depth o", 1024, 1024, "residual"),
    Product("depth gate and up", 5632, 1024, "gate"),
    Product("depth down", 1024, 2816, "residual"),
    Product("depth head", 2049, 1024, "norm"),
]
# Qwen3-4B and 8B have 32 heads and 8 of keys, of 128 each
_LARGE_CHAT = [Sizes("chat 4B", 2560, 9728, 300), Sizes("chat 8B", 4096, 12_288, 300)]
_CHAT = [
    *(product for sizes in _LARGE_CHAT for product in _products(sizes, 6144, 4096)),
    *(Product(f"head of {h}", 151_936, h, "") for h in (1024, 2048, 2560, 4096)),
]
OTHERS = {"speech": PRODUCTS, "s2s": _LFM2, "chat": _CHAT}


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, device=DEVICE, dtype=DTYPE) * scale


@cache
def weights_of(product: Product, stored: torch.dtype | None = None) -> list[Weight]:
    """Make enough copies of a weight that none stays in the cache until its next call.

    They have DTYPE, or are quantized if `stored` says so.
    """
    copies = max(2, -(-_CACHE_BYTES // product.weight_bytes))
    if stored is not None:
        full = weights_of(product, None)
        return [quantized_weight(full[i % len(full)], stored) for i in range(2 * copies)]
    shape = product.weight_rows, product.inputs
    return [normal(*shape, scale=product.inputs**-0.5) for _ in range(copies)]


class Operands:
    """Operands of one product."""

    def __init__(self, product: Product, rows: int, stored: torch.dtype | None = None):
        self.product, self.rows, self.stored = product, rows, stored or DTYPE
        outputs, inputs = product.weight_rows, product.inputs
        self.weights = weights_of(product, stored)
        self.x = normal(rows, inputs)
        self.norm = normal(inputs, scale=0.2) + 1
        self.bias = normal(outputs) if product.folded == "bias" else None
        self.residual = normal(rows, outputs) if product.folded == "residual" else None

    def weight(self, i: int) -> Weight:
        """Return the copies of the weight in turn."""
        return self.weights[i % len(self.weights)]

    @property
    def weight_bytes(self) -> int:
        """Bytes that a call must read."""
        return self.weights[0].nbytes

    def fused(self, i: int, tiles: Tiles | None = None) -> Tensor:
        """Run the fused kernel, even where torch would be preferred."""
        weight = self.weight(i)
        if self.product.gated:
            return triton_linear.gated_linear(self.x, weight, norm=self.norm, eps=EPS, tiles=tiles)
        normed = self.product.folded == "norm"
        return triton_linear.linear(
            self.x,
            weight,
            bias=self.bias,
            norm=self.norm if normed else None,
            eps=EPS if normed else None,
            residual=self.residual,
            tiles=tiles,
        )

    def with_torch(self, i: int) -> Tensor:
        """Run the library's product, with separate kernels for the norm and the gate."""
        x = self.x
        if self.product.folded in ("norm", "gate"):
            x = triton_rows.rms_norm(x, self.norm, EPS)
        out = functional.linear(x, widen(self.weight(i), DTYPE), self.bias)
        if self.product.gated:
            return triton_rows.swiglu(*out.chunk(2, dim=-1))
        return out if self.residual is None else self.residual + out

    def product_alone(self, i: int) -> Tensor:
        """Run the library's product alone."""
        return functional.linear(self.x, widen(self.weight(i), DTYPE))

    def exact(self) -> Tensor:
        """Compute the result in float32."""
        x = self.x.float()
        if self.product.folded in ("norm", "gate"):
            x = rms_norm(x, self.norm.float(), EPS)
        out = functional.linear(x, widen(self.weight(0), torch.float32).float())
        if self.product.gated:
            gate, up = out.chunk(2, dim=-1)
            return functional.silu(gate) * up
        for added in (self.bias, self.residual):
            out = out if added is None else out + added.float()
        return out


class Step:
    """Paged attention of rows of one length, for some layers."""

    def __init__(self, rows: int, length: int, num_layers: int, max_keys: int = 512):
        pages = -(-(length + 1) // PAGE)
        shape = (num_layers, rows * pages * PAGE, SPEC.num_kv_heads, SPEC.head_dim)
        self.cache = DecodeCache(normal(*shape), normal(*shape), PAGE)
        self.tables = torch.randperm(rows * pages, device=DEVICE, dtype=torch.int32)
        self.positions = torch.full((rows,), length, device=DEVICE)
        assert SPEC.rope_theta is not None
        self.context = PagedDecode(
            self.cache,
            self.positions,
            self.tables,
            torch.tensor([pages], device=DEVICE, dtype=torch.int32),
            rope_tables(4096, SPEC.head_dim, SPEC.rope_theta, DEVICE, DTYPE),
            max_keys,
        )


def attention_cases(rows: int) -> list[tuple[str, Call, int]]:
    """List name, call and bytes read of attention over 300 and 2000 keys and a scratch cache."""
    packed, norm = divide(normal(rows, PACKED), SPEC), normal(SPEC.head_dim)
    cases: list[tuple[str, Call, int]] = []
    key_bytes = 2 * SPEC.num_kv_heads * SPEC.head_dim * DTYPE.itemsize
    for length, max_keys in ((300, 512), (2000, 4096)):
        num_layers = max(1, min(28, _CACHE_BYTES // (rows * length * key_bytes)))
        context = Step(rows, length, num_layers, max_keys).context

        def paged(i: int, context: PagedDecode = context, layers: int = num_layers) -> Tensor:
            return context.attend_fused(i % layers, *packed, SPEC, norm, norm)

        cases.append((f"paged attention, {length} keys", paged, rows * length * key_bytes))
    scratch = ScratchDecode(rows, 16, 5, SPEC, DEVICE, DTYPE)
    scratch.advance(8)
    token = divide(normal(rows, 1, PACKED), SPEC)
    cases.append(
        (
            "scratch attention, 8 keys",
            lambda i: scratch.attend_fused(i % 5, *token, SPEC, norm, norm),
            rows * 8 * key_bytes,
        )
    )
    return cases


class Layers:
    """Some layers of one stack, run one after the other with the engine's operations."""

    def __init__(self, sizes: Sizes, rows: int, weights: str = "auto"):
        products = _products(sizes)
        self.bytes_per_layer = sum(product.weight_bytes for product in products)
        self.num_layers = max(5, -(-_CACHE_BYTES // self.bytes_per_layer))
        if weights != "auto":  # of which more fit into the cache
            self.num_layers *= 3
        self.ops = TritonOps(DEVICE, DTYPE, weights)
        norm, self.head_norm = normal(sizes.hidden), normal(SPEC.head_dim)
        self.weights = []
        for _ in range(self.num_layers):
            qkv, o, gate_up, down = (
                normal(p.weight_rows, p.inputs, scale=p.inputs**-0.5) for p in products
            )
            kept = self.ops.quantize
            (norm_of, qkv), (mlp_norm, gate_up) = (
                self.ops.fold_norm(norm, weight) for weight in (qkv, gate_up)
            )
            layer = ((norm_of, kept(qkv)), kept(o), (mlp_norm, kept(gate_up)), kept(down))
            self.weights.append(layer)
        shape = (rows, sizes.hidden) if sizes.context else (rows, 1, sizes.hidden)
        self.x = self.start = normal(*shape)
        self.context: PagedDecode | ScratchDecode
        if sizes.context:
            self.context = Step(rows, sizes.context, self.num_layers).context
        else:
            self.context = ScratchDecode(rows, 16, self.num_layers, SPEC, DEVICE, DTYPE)
            self.context.advance(8)

    def run(self, i: int) -> None:
        """Run layer i on the output of the previous one."""
        layer = i % self.num_layers
        (norm, qkv), o, (mlp_norm, gate_up), down = self.weights[layer]
        ops, x = self.ops, self.x if i else self.start
        attended = ops.normed_attention(
            x,
            norm,
            EPS,
            qkv,
            spec=SPEC,
            context=self.context,
            layer=layer,
            q_norm=self.head_norm,
            k_norm=self.head_norm,
        )
        x = ops.linear_add(attended, o, x)
        self.x = ops.linear_add(ops.gated_linear(x, mlp_norm, EPS, gate_up), down, x)


def row_sampling(rows: int, vocabulary: int, params: SamplingParams) -> RowSampling:
    """Return rows with equal sampling parameters and no emitted ids."""

    def column(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((rows,), value, device=DEVICE, dtype=dtype)

    columns = SamplingColumns(
        column(params.temperature, torch.float32),
        column(params.top_k, torch.int32),
        column(params.top_p, torch.float32),
        column(params.repetition_penalty, torch.float32),
    )
    words = -(-vocabulary // 32)
    return RowSampling(
        seed=torch.arange(rows, device=DEVICE),
        step=torch.zeros(rows, device=DEVICE, dtype=torch.int64),
        first=columns,
        rest=columns,
        stop_ids=torch.full((rows, MAX_STOP_IDS), -1, device=DEVICE, dtype=torch.int32),
        stop_allowed=column(1, torch.int32),
        seen=torch.zeros(rows, words, device=DEVICE, dtype=torch.int32),
        suppressed=torch.zeros(vocabulary, device=DEVICE, dtype=torch.bool),
    )


def sampling_case(rows: int, vocabulary: int, codebook: int) -> Call:
    logits = normal(rows, vocabulary, scale=3)
    row = row_sampling(rows, vocabulary, SamplingParams(0.9, 50, 1.0, 1.05))
    return lambda _: draw(logits, row, codebook, few_candidates=True)
