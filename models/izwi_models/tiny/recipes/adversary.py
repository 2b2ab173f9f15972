"""Two families of discriminators between the codec's audio and the synthesizer's.

One folds the waveform at several periods, the other uses spectrograms. They detect what distances
between spectra do not: whether harmonics are lines or noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

from izwi_models.tiny.recipes.harness import FlatWeights, Optimizer, initial_weights

_PERIODS = (2, 3, 5, 7, 11)
_PERIOD_CHANNELS = (1, 32, 64, 128, 128)
_WINDOWS = (512, 1024, 2048)
_SPECTRUM_CHANNELS = (2, 16, 32, 32, 32)
_SPECTRUM_STRIDES = ((1, 2), (1, 2), (2, 2), (1, 1))  # (time, frequency)
_SLOPE = 0.1
_COMPRESSION = 0.3  # exponent of magnitudes


class Adversary:
    """The discriminators and their optimizer."""

    def __init__(self, device: torch.device, seed: int):
        self._dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.weights = FlatWeights(initial_weights(_shapes(), seed), device)
        self.optimizer = Optimizer(self.weights, clip=10.0, betas=(0.8, 0.99), decay=0.01)
        self.metrics = torch.zeros(2, device=device)

    def oppose(self, made: Tensor, true: Tensor) -> Tensor:
        """Keep the discriminators' gradient for their optimizer, and return the codec's loss.

        Args:
            made: (rows, samples) from the codec; requires gradients.
            true: (rows, samples) from the synthesizer.

        Returns:
            The loss of `made`: least squares, plus the distance of the layers' outputs.
        """
        weights = self.weights.views(self._dtype)
        judged, wanted = self._layers(weights, made), self._layers(weights, true)
        blame, objection, distance = (torch.zeros((), device=made.device) for _ in range(3))
        for ours, theirs in zip(judged, wanted, strict=True):
            fake, real = ours[-1].float(), theirs[-1].float()
            blame = blame + (fake.square().mean() + (real - 1).square().mean()) / len(judged)
            objection = objection + (fake - 1).square().mean() / len(judged)
            for a, b in zip(ours[:-1], theirs[:-1], strict=True):
                heard = b.detach().float()
                gap = (a.float() - heard).abs().mean() / (heard.abs().mean() + 1e-3)
                distance = distance + gap / (len(judged) * len(ours[:-1]))
        self.optimizer.hold(blame, retain=True)
        self.metrics.copy_(torch.stack([blame.detach(), distance.detach()]))
        return objection + 2 * distance

    def _layers(self, weights: Mapping[str, Tensor], audio: Tensor) -> list[list[Tensor]]:
        """Return the outputs of each discriminator's layers; the last is its score."""
        folded = [
            _convolve(weights, f"period.{p}", _fold(audio, p).to(self._dtype)) for p in _PERIODS
        ]
        spectra = [
            _convolve(weights, f"window.{w}", _spectrum(audio, w).to(self._dtype)) for w in _WINDOWS
        ]
        return folded + spectra


def _shapes() -> dict[str, tuple[int, ...]]:
    """Return the shapes of all weights and biases, by discriminator and layer."""
    shapes: dict[str, tuple[int, ...]] = {}
    for family, members, channels, kernel in (
        ("period", _PERIODS, _PERIOD_CHANNELS, (5, 1)),
        ("window", _WINDOWS, _SPECTRUM_CHANNELS, (3, 9)),
    ):
        for member in members:
            widths = (*channels, 1)
            for layer, (before, after) in enumerate(pairwise(widths)):
                last = layer == len(channels) - 1
                name = f"{family}.{member}.{layer}"
                shapes[f"{name}.kernel"] = (after, before, *((3, 1) if last else kernel))
                shapes[f"{name}.bias"] = (after,)
    return shapes


def _convolve(weights: Mapping[str, Tensor], name: str, x: Tensor) -> list[Tensor]:
    """Run one discriminator; return each layer's output, (rows, channels, ., .)."""
    periodic = name.startswith("period")
    strides = ((3, 1),) * (len(_PERIOD_CHANNELS) - 1) if periodic else _SPECTRUM_STRIDES
    outputs = []
    for layer, stride in enumerate((*strides, (1, 1))):
        kernel = weights[f"{name}.{layer}.kernel"]
        padding = (kernel.shape[2] // 2, kernel.shape[3] // 2)
        x = F.conv2d(x, kernel, weights[f"{name}.{layer}.bias"], stride, padding)
        if layer < len(strides):
            x = F.leaky_relu(x, _SLOPE)
        outputs.append(x)
    return outputs


def _fold(audio: Tensor, period: int) -> Tensor:
    """Fold (rows, samples) at a period: (rows, 1, samples / period, period)."""
    return audio[:, : audio.shape[1] // period * period].unflatten(1, (-1, period))[:, None]


def _spectrum(audio: Tensor, window: int) -> Tensor:
    """Return the spectrum with compressed magnitude: (rows, 2, frames, bins), real, imaginary."""
    hann = torch.hann_window(window, device=audio.device)
    spectrum = torch.stft(audio, window, window // 4, window, hann, return_complex=True)
    parts = torch.view_as_real(spectrum)
    magnitude = parts.square().sum(-1, keepdim=True).add(1e-2).sqrt()
    return (parts * magnitude ** (_COMPRESSION - 1)).permute(0, 3, 2, 1)
