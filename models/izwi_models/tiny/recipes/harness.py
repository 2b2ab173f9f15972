"""Shared by all training recipes: weights in one flat tensor, AdamW with an average, CUDA graphs.

Models are functions of a mapping of tensors. A training step cuts one flat leaf into named views,
runs the model, and computes the gradient of the leaf. With one leaf the optimizer needs only a few
kernels. A whole step is captured as a CUDA graph, because small models are bound by launches.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

Shapes = Mapping[str, tuple[int, ...]]
# Matrices whose product joins the residual stream start small.
_RESIDUAL = ("o_proj.weight", "down_proj.weight", "fc2.weight", "out_proj.weight")
_ALIGNMENT = 8  # elements; matrix kernels need 16 bytes


def initial_weights(shapes: Shapes, seed: int) -> dict[str, Tensor]:
    """Draw float32 weights by name: norms are 1, biases and snakes 0, matrices scaled by fan-in."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in sorted(shapes.items()):
        if name.endswith(("norm.weight", "cluster_usage", "initialized")) or "layernorm" in name:
            weights[name] = torch.full(shape, 0.0 if name.endswith("bias") else 1.0)
        elif name.endswith(("layer_scale.scale", "gamma")):
            weights[name] = torch.full(shape, 0.1)
        elif len(shape) == 1:
            ones = name.endswith("weight")  # layer norms
            weights[name] = torch.ones(shape) if ones else torch.zeros(shape)
        elif "embedding" in name or "embed_tokens" in name:
            weights[name] = torch.randn(shape, generator=generator) * 0.02
        else:
            fan_in = math.prod(shape[1:])
            weights[name] = torch.randn(shape, generator=generator) / math.sqrt(fan_in)
            if name.endswith(
                ("o_proj.weight", "down_proj.weight", "fc2.weight", "out_proj.weight")
            ):
                weights[name] *= 0.3
    return weights


class FlatWeights:
    """Named tensors as views of one flat float32 leaf."""

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device):
        self._shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        self._counts = [math.prod(shape) for shape in self._shapes.values()]
        self._sizes = [-(-count // _ALIGNMENT) * _ALIGNMENT for count in self._counts]
        flat = torch.zeros(sum(self._sizes))
        decayed = torch.zeros(sum(self._sizes))
        for part, mask, tensor in zip(
            flat.split(self._sizes), decayed.split(self._sizes), tensors.values(), strict=True
        ):
            part[: tensor.numel()] = tensor.detach().float().flatten()
            mask[: tensor.numel()] = float(tensor.ndim > 1)
        self.flat = flat.to(device).requires_grad_()
        self.decayed = decayed.to(device)

    def matrices(self) -> dict[tuple[int, int], list[int]]:
        """Return where the matrices of each shape begin in the leaf, embeddings excluded."""
        begins: dict[tuple[int, int], list[int]] = {}
        place = 0
        for (name, shape), size in zip(self._shapes.items(), self._sizes, strict=True):
            if len(shape) == 2 and "embed" not in name:
                begins.setdefault((shape[0], shape[1]), []).append(place)
            place += size
        return begins

    def views(
        self, dtype: torch.dtype = torch.float32, flat: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return the tensors by name, cast to `dtype`; gradients reach the leaf."""
        parts = (self.flat if flat is None else flat).to(dtype).split(self._sizes)
        return {
            name: part[:count].view(shape)
            for part, count, (name, shape) in zip(
                parts, self._counts, self._shapes.items(), strict=True
            )
        }


# Coefficients of a quintic that moves singular values to about one: K. Jordan and others, Muon
# (2024).
_QUINTIC = (3.4445, -4.7750, 2.0315)
_MATRIX_UPDATE = 0.2  # root mean square of a matrix's update, about that of AdamW's


def orthogonal(matrices: Tensor, rounds: int = 5) -> Tensor:
    """Set all singular values of matrices to about one, keeping the singular vectors.

    Args:
        matrices: (n, rows, columns) float32.
        rounds: Newton-Schulz iterations.

    Returns:
        (n, rows, columns) float32; a matrix of zeros stays zero.
    """
    wide = matrices.shape[1] <= matrices.shape[2]
    x = matrices if wide else matrices.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-12)
    x = x.bfloat16() if x.is_cuda else x
    a, b, c = _QUINTIC
    for _ in range(rounds):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x if wide else x.mT).float()


def masked_loss(logits: Tensor, targets: Tensor, counted: Tensor) -> Tensor:
    """Return the mean cross entropy, weighed by `counted`.

    Args:
        logits: (..., vocabulary) float32.
        targets: (...,) ids.
        counted: (...,) weights; 0 for padding.
    """
    losses = functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    return (losses * counted.flatten()).sum() / counted.sum().clamp_min(1)


def divergence(logits: Tensor, wanted: Tensor, counted: Tensor) -> Tensor:
    """Return how far distributions are from wanted ones: the mean Kullback-Leibler divergence.

    Args:
        logits: (..., vocabulary) float32.
        wanted: (..., vocabulary) float32 logits without gradient.
        counted: (...,) weights; 0 for padding.
    """
    logs, aims = logits.log_softmax(-1), wanted.log_softmax(-1)
    away = (aims.exp() * (aims - logs)).sum(-1)
    return (away * counted).sum() / counted.sum().clamp_min(1)


class Optimizer:
    """AdamW over one flat leaf, with clipping and an exponential average of the weights.

    Matrices may get orthogonal updates of the same size instead (Muon), which learns arithmetic in
    fewer steps. Source of their size: J. Liu and others, Muon is scalable (2025).

    No values are read back from the device, so the host runs ahead of it.
    """

    def __init__(
        self,
        weights: FlatWeights,
        *,
        decay: float = 0.02,
        clip: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.98),
        average: float = 0.999,
        orthogonal: bool = False,
    ):
        self._weights, self._decay, self._clip = weights, decay, clip
        self._betas, self._average = betas, average
        self._matrices = weights.matrices() if orthogonal else {}
        flat = weights.flat.detach()
        self._mean, self._square = torch.zeros_like(flat), torch.zeros_like(flat)
        self._gradient = torch.zeros_like(flat)
        self.averaged = flat.clone()
        self._steps = torch.zeros((), device=flat.device)
        self.rate = torch.zeros((), device=flat.device)
        self.norm = torch.zeros((), device=flat.device)

    def hold(self, loss: Tensor, retain: bool = False) -> None:
        """Keep the gradient of `loss` for `apply`. May be captured.

        Args:
            loss: A scalar.
            retain: Keep its graph for another gradient.
        """
        (gradient,) = torch.autograd.grad(loss, [self._weights.flat], retain_graph=retain)
        self._gradient.copy_(gradient)

    @torch.no_grad()
    def apply(self) -> None:
        """Update the weights by the gradient, averaged over ranks; skip it if it is not finite."""
        flat = self._weights.flat
        gradient = self._gradient
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(gradient)
            gradient /= torch.distributed.get_world_size()
        norm = gradient.norm()
        self.norm.copy_(norm)
        is_finite = torch.isfinite(norm)
        gradient = torch.nan_to_num(gradient) * (
            is_finite * self._clip / norm.clamp_min(self._clip)
        )
        gradient = torch.nan_to_num(gradient)
        self._steps += 1
        first, second = self._betas
        self._mean.lerp_(gradient, 1 - first)
        self._square.lerp_(gradient.square(), 1 - second)
        mean = self._mean / (1 - first**self._steps)
        square = self._square / (1 - second**self._steps)
        update = mean / (square.sqrt() + 1e-8)
        self._make_orthogonal(update, gradient)
        update += self._decay * self._weights.decayed * flat
        flat.sub_(update * self.rate * is_finite)
        # the average follows faster in the first steps
        pace = torch.clamp(1 - (1 + self._steps) / (10 + self._steps), min=1 - self._average)
        self.averaged.lerp_(flat, pace)

    def _make_orthogonal(self, update: Tensor, gradient: Tensor) -> None:
        """Replace the updates of matrices by orthogonal ones of the Nesterov momentum."""
        ahead = torch.lerp(gradient, self._mean, 0.95)
        for (rows, columns), begins in self._matrices.items():
            count = rows * columns
            stacked = torch.stack([ahead[begin : begin + count] for begin in begins])
            scale = _MATRIX_UPDATE * max(rows, columns) ** 0.5
            moved = orthogonal(stacked.view(-1, rows, columns)).mul_(scale)
            for begin, each in zip(begins, moved, strict=True):
                update[begin : begin + count] = each.flatten()


class Stepper:
    """Runner of training steps: a CUDA graph for each shape, or plain calls without CUDA."""

    def __init__(self, device: torch.device, capture: bool = True):
        self._capture = capture and device.type == "cuda"
        self._graphs: dict[object, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None

    def run(self, shape: object, step: Callable[[], None]) -> None:
        """Run `step`, which must read its batch from tensors that are never reallocated.

        Args:
            shape: A key; the first call with it runs `step` twice, then captures it.
            step: Called with no arguments.
        """
        if not self._capture:
            step()
            return
        if shape not in self._graphs:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    step()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                step()
            self._pool = graph.pool()
            self._graphs[shape] = graph
        self._graphs[shape].replay()


def join_ranks() -> tuple[int, int, torch.device]:
    """Join the processes that torchrun started; return rank, world size and device."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world > 1 and device.type == "cuda":
        torch.distributed.init_process_group("nccl", device_id=device)
    elif world > 1:
        torch.distributed.init_process_group("gloo")
    return rank, world, device


def joint_most(number: int, device: torch.device) -> int:
    """Return the largest number of all ranks, whose weights must have the same shapes."""
    if not torch.distributed.is_initialized():
        return number
    most = torch.tensor([number], device=device)
    torch.distributed.all_reduce(most, op=torch.distributed.ReduceOp.MAX)
    return int(most.item())


def leave_ranks() -> None:
    """Leave the process group, if there is one."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


class Clock:
    """The part of a recipe's training time that is over."""

    def __init__(self, seconds: float):
        self._begin, self._seconds = time.monotonic(), seconds

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begin

    @property
    def share(self) -> float:
        """Elapsed share of the time, from 0; above 1 once the time is over."""
        return self.elapsed / self._seconds

    def joint_share(self, device: torch.device) -> float:
        """Return the largest `share` of all ranks, which must call this at the same steps."""
        if not torch.distributed.is_initialized():
            return self.share
        share = torch.tensor([self.share], device=device)
        torch.distributed.all_reduce(share, op=torch.distributed.ReduceOp.MAX)
        return share.item()


def learning_rate(share: float, step: int, peak: float, warmup: int = 300) -> float:
    """Return the rate: rises over `warmup` steps, then falls to 2 % in the second half."""
    rise = min(1.0, (step + 1) / warmup)
    fall = 1.0 if share < 0.5 else max(0.0, 2 * (1 - share))
    return peak * rise * max(0.02, fall)


def take_schedule(parser: argparse.ArgumentParser) -> None:
    """Add an option for training in parts."""
    parser.add_argument(
        "--schedule",
        type=float,
        nargs=2,
        default=(0.0, 1.0),
        metavar=("FROM", "TO"),
        help="part of a longer schedule that this run is; the next one goes on at TO",
    )


class Log:
    """A log that prints lines with the elapsed time and appends them to a file."""

    def __init__(self, path: Path, clock: Clock):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._clock = path, clock

    def __call__(self, text: str) -> None:
        """Write one line."""
        line = f"[{self._clock.elapsed:6.0f}s] {text}"
        print(line, flush=True)
        with self._path.open("a") as file:
            print(line, file=file)


def save_tensors(tensors: Mapping[str, Tensor], path: Path, dtype: torch.dtype) -> None:
    """Write a safetensors file in `dtype`, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cast = {
        name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None).contiguous()
        for name, tensor in tensors.items()
    }
    part = path.with_suffix(".part")
    save_file({k: v.clone() for k, v in cast.items()}, part, metadata={"format": "pt"})
    part.replace(path)


def resume_weights(weights: dict[str, Tensor], path: Path) -> int:
    """Replace tensors by a checkpoint's of the same shape; return how many were replaced."""
    if not path.is_file():
        return 0
    found = 0
    for name, tensor in load_file(path).items():
        if name in weights and weights[name].shape == tensor.shape:
            weights[name] = tensor.float()
            found += 1
    return found
