"""A classifier of phonemes: it learns from the synthesizer's speech and judges the codec's.

Distances between spectra, and between a transcriber's features, hardly weigh what tells plosives
apart: 20 ms of a quiet burst. Without this loss the codes lose it, and "Good" becomes "Dood".
"""

from __future__ import annotations

import json

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

from izwi_models.tiny.recipes.harness import (
    FlatWeights,
    Optimizer,
    divergence,
    initial_weights,
    masked_loss,
)
from izwi_models.tiny.recipes.people.kokoro_speech import LABELS, UNLABELLED, letter_labels
from izwi_models.tiny.recipes.spectral import log_mel
from izwi_models.tiny.recipes.speech import LABEL, PHONES, SAMPLE_RATE

_BANDS, _WIDTH = 80, 192
_STRIDES = (1, 2, 1, 1)  # of the layers; together the mel steps of a label
_HOP = LABEL // 2  # samples of a mel step
_PLOSIVES = ("b", "d", "dZ", "g", "k", "p", "t", "tS")
_KOKORO_PLOSIVES = "bdkptTɡʤʧ"
_PLOSIVE_WEIGHT = 5.0
_NOISE = 1e-3  # added to both signals, so that silence is not judged
_RATE = 1e-3


class PhoneClassifier:
    """Convolutions over mel spectra, about 0.1 s to both sides, and their optimizer."""

    def __init__(self, device: torch.device, seed: int):
        widths = [_BANDS, *[_WIDTH] * len(_STRIDES)]
        shapes: dict[str, tuple[int, ...]] = {"head.kernel": (LABELS, _WIDTH, 1)}
        for layer in range(len(_STRIDES)):
            shapes[f"{layer}.kernel"] = (widths[layer + 1], widths[layer], 5)
            shapes[f"{layer}.bias"] = (widths[layer + 1],)
        self._weights = FlatWeights(initial_weights(shapes, seed), device)
        self._optimizer = Optimizer(self._weights, decay=0.01)
        self._optimizer.rate.fill_(_RATE)
        numbers = json.loads(PHONES.read_text())
        self._importance = torch.ones(UNLABELLED + 1, device=device)
        self._importance[[numbers[name] for name in _PLOSIVES]] = _PLOSIVE_WEIGHT
        self._importance[letter_labels(_KOKORO_PLOSIVES)] = _PLOSIVE_WEIGHT
        self._importance[UNLABELLED] = 0.0
        self.right = torch.zeros(2, device=device)  # share of plosives: true speech, the codec's

    def judge(self, made: Tensor, true: Tensor, labels: Tensor) -> Tensor:
        """Keep the classifier's gradient for `apply`, and return the codec's loss.

        Args:
            made: (rows, samples) at 24 kHz from the codec; requires gradients.
            true: (rows, samples) from the synthesizer.
            labels: (rows, samples / 480) int64 phoneme numbers.

        Returns:
            The divergence of the classifier's answers to `made` from those to `true`, a scalar.
        """
        weights = self._weights.views(torch.float32)
        noise = _NOISE * torch.randn_like(true)
        wanted = self._logits(weights, true + noise)
        counted = self._importance[labels]
        known = labels.clamp_max(LABELS - 1)
        self._optimizer.hold(masked_loss(wanted, known, counted), retain=True)
        fixed = {name: tensor.detach() for name, tensor in weights.items()}
        found = self._logits(fixed, made + noise)
        plosive = (counted > 1).float()
        right = [(x.argmax(-1) == labels).float() * plosive for x in (wanted, found)]
        shares = torch.stack([x.sum() for x in right]) / plosive.sum().clamp_min(1)
        self.right.copy_(shares.detach())
        return divergence(found, wanted.detach(), counted)

    def apply(self) -> None:
        """Update the classifier."""
        self._optimizer.apply()

    def _logits(self, weights: dict[str, Tensor], samples: Tensor) -> Tensor:
        """Return (rows, samples / 480, phonemes)."""
        mel = log_mel(samples, SAMPLE_RATE, 512, _HOP, _BANDS)[:, : samples.shape[1] // _HOP]
        x = (mel.transpose(1, 2) + 4.0) / 4.0
        for layer, stride in enumerate(_STRIDES):
            y = F.conv1d(x, weights[f"{layer}.kernel"], weights[f"{layer}.bias"], stride, 2)
            y = F.gelu(y)
            x = x + y if y.shape == x.shape else y
        return F.conv1d(x, weights["head.kernel"]).transpose(1, 2)
