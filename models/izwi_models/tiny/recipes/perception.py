"""Perceptual loss: how much the features of a transcriber's encoder differ for two signals."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from izwi.backends.torch.ops import TorchOps
from izwi.checkpoints.folder import parse_config
from izwi_models.qwen3_asr.config import AUDIO_PREFIX, AsrConfig
from izwi_models.qwen3_asr.encoder import Windows, chunk_positions, encode_windows
from izwi_models.tiny.recipes.spectral import to_16k, whisper_mel

_FLOOR = 1e-3  # level of the noise added to both signals, so that silence is not compared


class Perception:
    """A transcriber's encoder with fixed weights."""

    def __init__(self, folder: Path, device: torch.device):
        settings = json.loads((folder / "config.json").read_text())
        self._ops, self._device = TorchOps(device), device
        self._config = parse_config(AsrConfig, settings, str(folder)).audio
        self._weights = {
            name: tensor.float().to(device)
            for name, tensor in load_file(folder / "model.safetensors").items()
            if name.startswith(AUDIO_PREFIX)
        }
        self._positions = self._ops.array(chunk_positions(self._config))

    def distance(self, made: Tensor, true: Tensor) -> Tensor:
        """Return the mean absolute difference of the features, relative to their mean size.

        Args:
            made: (rows, samples) at 24 kHz, whole frames of 80 ms, 1 to 8 s.
            true: (rows, samples), the target.

        Returns:
            A scalar.
        """
        noise = _FLOOR * torch.randn_like(true)
        with torch.no_grad():
            wanted = self._encode(true + noise)
        return (self._encode(made + noise) - wanted).abs().mean() / wanted.abs().mean()

    def _encode(self, audio: Tensor) -> Tensor:
        samples = to_16k(audio)
        kept = torch.full((len(samples),), samples.shape[1], device=self._device)
        mel = whisper_mel(samples, kept)
        return encode_windows(
            self._ops, self._weights, self._config, mel, windows=Windows(self._positions)
        )
