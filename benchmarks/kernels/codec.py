"""Check and time the codec decoder's convolution kernels at the published sizes.

Each layer, with the Snake activations around it, is compared with torch's operations inside CUDA
graphs. `--tune` tries other tile sizes and prints those that beat the defaults, for the tables in
izwi/backends/torch/triton/conv_tiles.py.
"""

from __future__ import annotations

import argparse
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.decode import time_us
from izwi.backends.torch.ops import TorchOps
from izwi.backends.torch.triton import conv as triton_conv
from izwi.backends.torch.triton.conv_tiles import TILES, UNIT_TILES, Tiles, bucket_of

BATCHES, FRAMES = (1, 8, 64), (1, 8)
CALLS = 8
_TOLERANCE = 0.02  # relative to the largest value
_COLD_BYTES = 64 << 20  # bytes of copies of a weight, so that it is read from memory as in a model
_WORTH = 0.97  # share of the default tiles' time, below which tiles are reported
_TUNED_COLUMNS = 4  # columns of a frame: smaller layers take almost no time

BF16 = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: a convolution, or a residual unit if `unit`.

    Attributes:
        columns: Input columns of one frame.
        stride: Stride of a transposed convolution, else 0.
        snake: Whether a Snake activation precedes it.
    """

    name: str
    channels: int
    outputs: int
    taps: int
    columns: int
    dilation: int = 1
    stride: int = 0
    groups: int = 1
    snake: bool = False
    unit: bool = False

    @property
    def past(self) -> int:
        """Number of columns of state."""
        if self.stride:
            return self.taps // self.stride - 1
        return (self.taps - 1) * self.dilation


def decoder_layers() -> list[Layer]:
    """Return the layers of the 12 Hz codec's decoder, from the first convolution to the last."""
    made = [Layer("pre_conv", 512, 1024, 3, 1)]
    for index in range(2):
        columns = 2**index
        made.append(Layer(f"upsample.{index}", 1024, 1024, 2, columns, stride=2))
        made.append(Layer(f"dwconv.{index}", 1024, 1024, 7, 2 * columns, groups=1024))
    made.append(Layer("decoder.0", 1024, 1536, 7, 4))
    width, columns = 1536, 4
    for index, rate in enumerate((8, 5, 4, 3), start=1):
        up = Layer(f"up.{index}", width, width // 2, 2 * rate, columns, stride=rate, snake=True)
        width, columns = width // 2, columns * rate
        made.append(up)
        for dilation in (1, 3, 9):
            name = f"unit.{index} x{dilation}"
            made.append(Layer(name, width, width, 7, columns, dilation, snake=True, unit=True))
    return [*made, Layer("last", width, 1, 7, columns, snake=True)]


class Case:
    """Arrays of a layer for one batch, with its calls."""

    def __init__(self, layer: Layer, batch: int, frames: int):
        self.layer, self.name = layer, f"{layer.name} {batch}x{frames}"
        generator = torch.Generator("cuda").manual_seed(1)

        def normal(*shape: int, scale: float = 1.0) -> Tensor:
            numbers = torch.randn(shape, generator=generator, device="cuda", dtype=BF16)
            return numbers.mul_(scale)

        time, channels, outputs = frames * layer.columns, layer.channels, layer.outputs
        self.rows = batch * time
        self.x = normal(batch, time, channels).transpose(1, 2)
        self.first = self.x.contiguous()  # as torch had it
        flat = normal(batch, channels * layer.past + 8)
        self.state = flat[:, 8:].view(batch, channels, layer.past)
        fan_in = channels * layer.taps // max(1, layer.stride) // layer.groups
        shape = (outputs, channels // layer.groups, layer.taps)
        if layer.stride:
            shape = (channels, outputs, layer.taps)
        weight = normal(*shape, scale=fan_in**-0.5)
        copies = max(1, min(CALLS, _COLD_BYTES // max(1, weight.nbytes)))
        self.weights = [weight.clone() for _ in range(copies if self.rows <= 4096 else 1)]
        self.bias, self.bias_2 = normal(outputs, scale=0.1), normal(outputs, scale=0.1)
        self.second = normal(outputs, outputs, 1, scale=outputs**-0.5) if layer.unit else weight
        self.snake = (normal(channels, scale=0.3), normal(channels, scale=0.3))
        self.snake_2 = (normal(outputs, scale=0.3), normal(outputs, scale=0.3))

    def ours(self, call: int) -> tuple[Tensor, Tensor]:
        """Run the layer; calls cycle through copies of its weight."""
        layer, x, weight = self.layer, self.x, self.weights[call % len(self.weights)]
        snake = self.snake if layer.snake else None
        if layer.unit:
            return triton_conv.residual_unit(
                x,
                self.snake,
                (weight, self.bias),
                self.snake_2,
                (self.second, self.bias_2),
                self.state,
                dilation=layer.dilation,
            )
        if layer.stride:
            return triton_conv.causal_conv_transpose1d(
                x, weight, self.bias, self.state, stride=layer.stride, snake=snake
            )
        return triton_conv.causal_conv1d(
            x, weight, self.bias, self.state, groups=layer.groups, snake=snake
        )

    def reference(self, call: int, dtype: torch.dtype = BF16) -> tuple[Tensor, Tensor]:
        """Compute the same with torch, with arrays of (batch, channels, time)."""
        layer, ops = self.layer, TorchOps("cuda", dtype)
        weight = self.weights[call % len(self.weights)].to(dtype)
        x, state, bias = self.first.to(dtype), self.state.to(dtype), self.bias.to(dtype)
        heard = ops.snake(x, *(part.to(dtype) for part in self.snake)) if layer.snake else x
        if layer.stride:
            return ops.causal_conv_transpose1d(heard, weight, bias, state, stride=layer.stride)
        out, after = ops.causal_conv1d(
            heard, weight, bias, state, dilation=layer.dilation, groups=layer.groups
        )
        if layer.unit:
            out = ops.snake(out, *(part.to(dtype) for part in self.snake_2))
            out = x + ops.conv1d(out, self.second.to(dtype), self.bias_2.to(dtype))
        return out, after.contiguous()

    def error(self) -> float:
        """Return the largest difference from torch in float32, relative to the largest value."""
        worst = 0.0
        for found, expected in zip(self.ours(0), self.reference(0, torch.float32), strict=True):
            if expected.numel():
                part = float(expected.sub(found).abs_().max() / expected.abs().max())
                worst = max(worst, part if math.isfinite(part) else math.inf)
        return worst


def compile_all(layers: list[Layer], sizes: list[tuple[int, int]]) -> None:
    """Run every layer once at every size; layers run in parallel."""

    @torch.inference_mode()
    def run(layer: Layer) -> None:
        for batch, frames in sizes:
            Case(layer, batch, frames).ours(0)

    with ThreadPoolExecutor(16) as pool:
        # layers that differ only in dilation share most kernels, which are compiled once
        list(pool.map(run, [layer for layer in layers if layer.dilation == 1]))
        list(pool.map(run, [layer for layer in layers if layer.dilation > 1]))
    torch.cuda.synchronize()


def check(layers: list[Layer], sizes: list[tuple[int, int]]) -> list[str]:
    """Return the names of cases with too large errors; print the worst error of each layer."""
    wrong = []
    for layer in layers:
        errors = {}
        for batch, frames in sizes:
            case = Case(layer, batch, frames)
            errors[case.name] = case.error()
        wrong += [name for name, error in errors.items() if not error < _TOLERANCE]
        print(f"{layer.name}: error {max(errors.values()):.4f}", flush=True)
    return wrong


def time_layers(layers: list[Layer], sizes: list[tuple[int, int]]) -> list[dict[str, Any]]:
    rows = []
    for batch, frames in sizes:
        totals = [0.0, 0.0]
        for layer in layers:
            case = Case(layer, batch, frames)
            ours, theirs = time_us(case.ours, CALLS), time_us(case.reference, CALLS)
            totals = [totals[0] + ours, totals[1] + theirs]
            rows.append({"layer": case.name, "us": round(ours, 1), "torch_us": round(theirs, 1)})
            print(f"{case.name}: {ours:.1f} us, torch {theirs:.1f} us", flush=True)
        print(f"== {batch} x {frames} frames: {totals[0]:.0f} us, torch {totals[1]:.0f} us")
    return rows


# Tile sizes to try: rows, outputs, depth, warps, stages, slices; and those of units, by channels.
_LARGE = [
    Tiles(128, 256, 64, 8, 3),
    Tiles(256, 128, 64, 8, 3),
    Tiles(128, 128, 64, 8, 3),
    Tiles(128, 128, 64, 4, 4),
]
_NARROW = [Tiles(128, 64, 64, 4, 4), Tiles(256, 64, 64, 8, 3), Tiles(128, 32, 64, 4, 4)]
_SMALL = [
    Tiles(64, 64, 64, 4, 4),
    Tiles(64, 64, 64, 4, 4, 4),
    Tiles(32, 32, 64, 4, 4, 4),
    Tiles(16, 32, 128, 4, 4, 4),
    Tiles(16, 64, 128, 4, 3, 8),
]
_UNITS: dict[int, list[Tiles | None]] = {
    192: [
        Tiles(128, 0, 64, 8, 3),
        Tiles(64, 0, 64, 4, 3),
        Tiles(32, 0, 64, 4, 3),
        Tiles(16, 0, 32, 4, 4),
        None,
    ],
    96: [
        Tiles(256, 0, 32, 8, 4),
        Tiles(128, 0, 32, 8, 4),
        Tiles(128, 0, 32, 4, 4),
        Tiles(64, 0, 32, 4, 4),
        Tiles(16, 0, 32, 4, 4),
    ],
}


@dataclass(frozen=True, slots=True)
class Trial:
    """Tile sizes to try for one layer at one size, under one key of one of the tables."""

    case: Case
    table: dict[Any, Any]
    key: tuple[int, ...]
    cuts: list[Tiles | None]

    def times(self) -> list[tuple[float, Tiles | None, bool]]:
        """Time the default tiles first, then each candidate: (microseconds, tiles, is default)."""
        self.table.pop(self.key, None)
        made: list[tuple[float, Tiles | None, bool]] = [
            (time_us(self.case.ours, CALLS), None, True)
        ]
        for cut in self.cuts:
            self.table[self.key] = cut
            made.append((time_us(self.case.ours, CALLS), cut, False))
        self.table.pop(self.key)
        return made

    def compile(self) -> None:
        """Run each candidate once, and drop those that do not fit the device."""
        with torch.inference_mode():
            self.case.ours(0)
            for cut in list(self.cuts):
                self.table[self.key] = cut
                try:
                    self.case.ours(0)
                except Exception as error:  # Triton raises many errors for tiles that do not fit
                    print(f"{self.case.name} {cut}: {type(error).__name__}", flush=True)
                    self.cuts.remove(cut)
            self.table.pop(self.key, None)


def trials_of(layer: Layer, frames: int) -> list[Trial]:
    """Return the trials of one layer: of a convolution, a unit, or both convolutions of a unit."""
    case = Case(layer, min(64, frames), max(1, frames // 64))
    bucket = bucket_of(case.rows)
    if layer.unit and layer.channels in _UNITS:
        fused = [cut for cut in _UNITS[layer.channels] if cut is None or cut.rows <= bucket // 64]
        return [Trial(case, UNIT_TILES, (bucket, layer.channels), fused)]
    outputs = layer.outputs * max(1, layer.stride)
    taps = layer.past + 1 if layer.stride else layer.taps
    made = []
    for depth in [taps * layer.channels] + [layer.channels] * layer.unit:
        cuts: list[Tiles | None] = []
        if case.rows <= 1024:
            cuts += [cut for cut in _SMALL if cut.slices == 1 or depth > 1024]
        if case.rows >= 512:
            cuts += [cut for cut in _LARGE if outputs % cut.outputs == 0]
            cuts += _NARROW if outputs % 128 else []
        made.append(Trial(case, TILES, (bucket, outputs, depth), cuts))
    return made


def tune(layers: list[Layer], frame_counts: list[int]) -> None:
    """Compile the layers in parallel, then time one candidate after the other."""
    tuned = [
        layer
        for layer in layers
        if layer.columns >= _TUNED_COLUMNS and layer.dilation == 1 and layer.name != "last"
    ]
    trials = [[t for frames in frame_counts for t in trials_of(layer, frames)] for layer in tuned]
    with ThreadPoolExecutor(16) as pool:  # trials of one layer share keys and so take turns
        list(pool.map(lambda of_layer: [trial.compile() for trial in of_layer], trials))
    torch.cuda.synchronize()
    for trial in (trial for of_layer in trials for trial in of_layer):
        usual, *tried = trial.times()
        if not tried:
            continue
        best = min(tried, key=lambda timed: timed[0])
        name = "TILES" if trial.table is TILES else "UNIT_TILES"
        note = f"# {trial.case.layer.name}: {best[0]:.1f} us, usual {usual[0]:.1f} us"
        line = f"    {trial.key}: {best[1]},  {note}"
        print(f"{name} {line}" if best[0] < _WORTH * usual[0] else f"-- {note}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only compare with torch")
    parser.add_argument(
        "--tune", action="store_true", help="try other tile sizes instead of timing"
    )
    parser.add_argument(
        "--frames", type=int, nargs="*", default=[1, 8, 64, 512], help="frames to tune"
    )
    options = parser.parse_args()
    layers = decoder_layers()
    if options.tune:
        tune(layers, options.frames)
        return
    sizes = [(batch, frames) for batch in BATCHES for frames in FRAMES]
    compile_all(layers, sizes)
    wrong = check(layers, sizes)
    if options.check or wrong:
        sys.exit(f"{len(wrong)} layers are off: {wrong}" if wrong else None)
    rows = time_layers(layers, sizes)
    # the engine, which the other benchmarks run, is not needed until here
    from benchmarks.measure import write_result

    write_result("codec_kernels", rows, device=torch.cuda.get_device_name())


if __name__ == "__main__":
    with torch.inference_mode():
        main()
