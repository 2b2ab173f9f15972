"""The persistent kernel: its source on a CPU, with fibers for threads, and what it takes."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from izwi.backends.torch.attention.dense import rope_table
from izwi.backends.torch.ops import TorchOps
from izwi.backends.torch.persistent.frame_codes import (
    SOURCE,
    FrameDraws,
    FrameResults,
    FrameSizes,
    FrameWeights,
    FrameWork,
    LayerWeights,
    filled,
)
from izwi.backends.torch.persistent.frames import sizes_of
from izwi.backends.torch.sampler import draw
from izwi.backends.torch.triton.sampling import _uniforms
from izwi.ops.attention_spec import AttentionSpec
from izwi.ops.frames import FrameLayer, FrameStack
from izwi.request.request import SamplingParams

SIZES = FrameSizes(256, 2, 1, 128, 512, 512, layers=2, codebooks=4)
PUBLISHED = FrameSizes(1024, 16, 8, 128, 3072, 2048, layers=5, codebooks=16)
EPS = 1e-6
BLOCKS = 3
HALF = torch.bfloat16


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    library = tmp_path_factory.mktemp("emulated") / "frame_codes.so"
    options = ["-O2", "-shared", "-fPIC", "-std=c++17", "-DEMULATED", "-w"]
    command = [compiler, *options, *SIZES.macros(BLOCKS), f"-I{Path(__file__).parent}"]
    subprocess.run([*command, "-x", "c++", str(SOURCE), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def weights_of(sizes: FrameSizes) -> FrameWeights:
    generator = torch.Generator().manual_seed(0)

    def matrix(outputs: int, inputs: int, gain: float = 1.5) -> Tensor:
        x = torch.randn(outputs, inputs, generator=generator)
        return (x * gain * inputs**-0.5).to(HALF)

    def norm(width: int) -> Tensor:
        return (1 + 0.1 * torch.randn(width, generator=generator)).to(HALF)

    hidden, queries = sizes.hidden, sizes.heads * sizes.head_dim
    layers = [
        LayerWeights(
            matrix(sizes.qkv, hidden),
            matrix(hidden, queries),
            matrix(2 * sizes.intermediate, hidden),
            matrix(hidden, sizes.intermediate),
            norm(sizes.head_dim),
            norm(sizes.head_dim),
        )
        for _ in range(sizes.layers)
    ]
    cos, sin = rope_table(torch.arange(32), sizes.head_dim, 1e6, HALF)
    return FrameWeights(
        layers,
        [matrix(sizes.vocabulary, hidden, 4.5) for _ in range(sizes.codebooks - 1)],
        [matrix(sizes.vocabulary, hidden) for _ in range(sizes.codebooks - 2)],
        norm(hidden),
        (cos[:, 0].contiguous(), sin[:, 0].contiguous()),
        EPS,
    )


def rounded(x: Tensor) -> Tensor:
    return x.to(HALF).float()


def normed(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


def heads_of(x: Tensor, norm: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    first, second = (normed(x) * norm.float()).chunk(2, -1)
    cos, sin = (part[: x.shape[1]].float()[None, :, None] for part in table)
    return rounded(torch.cat([first * cos - second * sin, second * cos + first * sin], -1))


def logits_of(sizes: FrameSizes, weights: FrameWeights, x: Tensor, ids: Tensor) -> Tensor:
    """Compute all logits at once from the ids that were drawn, rounded where the kernel rounds."""
    embeds = [table[ids[:, n]].float()[:, None] for n, table in enumerate(weights.embeds)]
    h = torch.cat([x.float(), *embeds], 1)
    tokens, group = h.shape[1], sizes.heads // sizes.kv_heads
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    keys = sizes.kv_heads * sizes.head_dim
    for layer in weights.layers:
        parts = rounded(normed(h) @ layer.qkv.float().T).split([group * keys, keys, keys], -1)
        q, k, v = (part.unflatten(-1, (-1, sizes.head_dim)) for part in parts)
        q, k = heads_of(q, layer.q_norm, weights.rope), heads_of(k, layer.k_norm, weights.rope)
        k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * sizes.head_dim**-0.5
        seen = scores.masked_fill(future, -torch.inf).softmax(-1)
        attended = rounded(torch.einsum("bhij,bjhd->bihd", seen, v)).flatten(2)
        h = rounded(h + attended @ layer.out.float().T)
        gate, up = (normed(h) @ layer.gated.float().T).chunk(2, -1)
        h = rounded(h + rounded(F.silu(gate) * up) @ layer.down.float().T)
    last = rounded(rounded(normed(h)) * weights.norm.float())[:, 1:]
    found = [last[:, n] @ head.float().T for n, head in enumerate(weights.heads)]
    return torch.stack(found, 1)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
def test_codes_are_those_of_the_logits(emulated: ctypes.CDLL, rows: int) -> None:
    generator = torch.Generator().manual_seed(1)
    weights, work = weights_of(SIZES), FrameWork(SIZES, torch.device("cpu"))
    x = torch.randn(8, 2, SIZES.hidden, generator=generator).to(HALF)[:rows].contiguous()
    drawn_by = [
        SamplingParams(temperature=heat, top_k=kept, top_p=nucleus)
        for heat, kept, nucleus in [(0.9, 50, 0.9), (0.0, 50, 1.0), (1.3, 64, 1.0)]
    ]
    params = [drawn_by[n % 3] for n in range(rows)]
    draws = FrameDraws(
        torch.arange(rows) * 7919 + 3,
        torch.arange(rows) + 5,
        torch.tensor([p.temperature for p in params]),
        torch.tensor([p.top_k for p in params], dtype=torch.int32),
        torch.tensor([p.top_p for p in params]),
    )
    passes = SIZES.codebooks - 1
    ids = torch.full((rows, passes), -1)
    logits = torch.zeros(rows, passes, SIZES.vocabulary, dtype=HALF)
    given = filled(SIZES, weights, work, x, draws, FrameResults(ids, logits))
    for order in (1, 2):  # of the threads; the second launch meets the words of the first
        emulated.launch(ctypes.byref(given), order)
        expected = logits_of(SIZES, weights, x, ids)
        assert ((logits.float() - expected).abs().max() / expected.abs().max()) < 0.01
        for codebook in range(1, SIZES.codebooks):
            noise = _uniforms(draws.seed, draws.step, codebook)
            for row, own in enumerate(params):
                one = draw(logits[row, codebook - 1][None].float(), [own], noise[row : row + 1])
                assert one == ids[row, codebook - 1]
    phases = passes * (SIZES.layers * 5 + 2)
    assert work.launches.tolist() == [2 * phases, 0]
    alone = torch.full((1, passes), -1)
    draws = FrameDraws(*(values[:1].clone() for values in draws))
    given = filled(SIZES, weights, work, x[:1], draws, FrameResults(alone))
    emulated.launch(ctypes.byref(given), 3)
    assert (alone[0] == ids[0]).all()


def stack_of(sizes: FrameSizes) -> FrameStack:
    weights = weights_of(sizes)
    layers = [
        FrameLayer(None, n.qkv, n.out, None, n.gated, n.down, n.q_norm, n.k_norm)
        for n in weights.layers
    ]
    spec = AttentionSpec(sizes.heads, sizes.kv_heads, sizes.head_dim, 1e6, EPS)
    return FrameStack(layers, weights.heads, weights.embeds, weights.norm, spec, EPS)


def test_sizes_are_those_of_the_weights() -> None:
    stack = stack_of(SIZES)
    assert sizes_of(stack) == SIZES
    norm = stack.norm
    unfolded = [layer._replace(qkv_norm=norm) for layer in stack.layers]
    assert sizes_of(stack._replace(layers=unfolded)) is None
    assert sizes_of(stack._replace(norm=norm.float())) is None
    quantized = [layer._replace(down=object()) for layer in stack.layers]
    assert sizes_of(stack._replace(layers=quantized)) is None


def test_published_sizes_are_supported() -> None:
    assert PUBLISHED.are_supported()
    assert SIZES.are_supported()
    assert not FrameSizes(1000, 16, 8, 128, 3000, 2048, 5, 16).are_supported()
    assert not FrameSizes(1024, 16, 8, 64, 3072, 2048, 5, 16).are_supported()


def test_with_gradients_codebooks_are_drawn_one_after_the_other() -> None:
    ops = TorchOps()

    def stack() -> FrameStack:
        raise AssertionError("not needed")

    assert ops.draw_codes(stack, torch.zeros(1, 2, 4), lambda x, _: x) is None
