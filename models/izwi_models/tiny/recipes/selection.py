"""Choose among the weights along a training, by clips that nothing is trained on.

A training on made speech goes on to gain on it when it no longer gains on people; the mean of the
weights along the way is often better than any of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soxr
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

from izwi_models.tiny.recipes.decoding import Listener
from izwi_models.tiny.recipes.evaluate import word_error_rate
from izwi_models.tiny.recipes.harness import save_tensors
from izwi_models.tiny.recipes.speech import FRAME, SAMPLE_RATE

BEST = "best.safetensors"
_AVERAGED = 2 / 3  # share of the saved weights, the latest ones, that are averaged


def write_clips(clips: Sequence[tuple[np.ndarray, str]], path: Path) -> None:
    """Write (samples,) float32 at 16 kHz with their texts."""
    samples = np.concatenate([samples for samples, _ in clips])
    np.savez_compressed(
        path,
        samples=np.round(samples * 32767).astype(np.int16),
        lengths=np.array([len(samples) for samples, _ in clips]),
        texts=np.array([text for _, text in clips]),
    )


def read_clips(path: Path, device: torch.device) -> tuple[list[Tensor], list[str]]:
    """Read what `write_clips` wrote: at 24 kHz, whole codec frames, and the texts."""
    with np.load(path) as file:
        ends = np.cumsum(file["lengths"])[:-1]
        parts = np.split(file["samples"].astype(np.float32) / 32767, ends)
        texts = file["texts"].tolist()
    at_24k = [torch.from_numpy(soxr.resample(part, 16_000, SAMPLE_RATE)) for part in parts]
    return [F.pad(part, (0, -len(part) % FRAME)).to(device) for part in at_24k], texts


@dataclass
class Selection:
    """The best of the weights so far.

    Attributes:
        clips: From `write_clips`.
        folder: Of the checkpoint; `BEST` is written there, in the layout of its weights.
        device: Where they are judged.
        least: Words wrong of the best weights so far, in percent.
    """

    clips: Path
    folder: Path
    device: torch.device
    least: float = float("inf")
    _points: list[dict[str, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._audio, self._texts = read_clips(self.clips, self.device)

    def consider(self, tensors: Mapping[str, Tensor]) -> dict[str, float]:
        """Judge weights and their mean with the ones before; write them if they are the best.

        Args:
            tensors: The weights of the checkpoint in `folder`, which has its configuration.

        Returns:
            Words wrong in percent, of the weights ("last") and of the mean ("mean").
        """
        self._points.append({name: tensor.cpu().float() for name, tensor in tensors.items()})
        recent = self._points[-max(1, round(_AVERAGED * len(self._points))) :]
        mean = {name: torch.stack([point[name] for point in recent]).mean(0) for name in recent[0]}
        rates = {}
        for name, weights in (("last", self._points[-1]), ("mean", mean)):
            listener = Listener(self.folder, self.device, weights)
            rates[name] = word_error_rate(self._texts, listener.transcribe(self._audio))
            if rates[name] < self.least:
                self.least = rates[name]
                save_tensors(weights, self.folder / BEST, torch.float16)
        return rates
