"""Encode the corpus with the trained codec, and keep the codes on the device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from izwi.backends.torch.ops import TorchOps
from izwi_models.qwen3_codec.encoder import encode
from izwi_models.qwen3_codec.quantizer import prepare
from izwi_models.tiny.recipes.codec_folder import load_codec
from izwi_models.tiny.recipes.data import Corpus

_FRAMES_AT_ONCE = 6000


@torch.no_grad()
def encode_corpus(corpus: Corpus, codec_folder: Path, device: torch.device) -> Tensor:
    """Codes of every frame, (all frames, codebooks) uint8, in the corpus's order."""
    config, weights = load_codec(codec_folder, device)
    ops = TorchOps(device)
    weights = prepare(ops, weights, config)
    total = int(corpus.frames.sum())
    codes = torch.zeros(
        total, config.encoder_valid_num_quantizers, dtype=torch.uint8, device=device
    )
    for frames in np.unique(corpus.frames):
        items = np.flatnonzero(corpus.frames == frames)
        rows = max(1, _FRAMES_AT_ONCE // int(frames))
        for start in range(0, len(items), rows):
            chosen = torch.from_numpy(items[start : start + rows]).to(device)
            first = corpus.device_starts[chosen]
            sound = corpus.sound(first, int(frames), corpus.device_frames[chosen])
            where = first[:, None] + torch.arange(int(frames), device=device)
            codes[where] = encode(ops, weights, config, sound).to(torch.uint8)
    return codes
