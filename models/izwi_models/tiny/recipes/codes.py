"""Encode the corpus with the trained codec; the codes stay on the device."""

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
from izwi_models.tiny.recipes.speech import FRAME

_FRAMES_AT_ONCE = 6000
_STILL = 64  # of 32768: a frame whose samples are all below it is silent
_SETTLED_FRAMES = 12  # after this many frames of silence, the codec repeats its code


@torch.no_grad()
def encode_corpus(corpus: Corpus, codec_folder: Path, device: torch.device) -> Tensor:
    """Return the codes of all frames, (all frames, codebooks) uint8, in the corpus's order."""
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
            audio = corpus.audio(first, int(frames), corpus.device_frames[chosen])
            where = first[:, None] + torch.arange(int(frames), device=device)
            codes[where] = encode(ops, weights, config, audio).to(torch.uint8)
    return codes


@torch.no_grad()
def settle_silence(codes: Tensor, corpus: Corpus, codec_folder: Path) -> Tensor:
    """Replace the acoustic codes of silent frames by those of long silence, in place.

    The codec's encoder remembers the speech before a pause, so silence has different codes every
    time. A talker cannot predict them, and its errors would be audible. Codebook 0 stays, because
    it has the content rather than the acoustics.

    Args:
        codes: (all frames, codebooks) uint8; changed in place.
        corpus: The corpus of these codes.
        codec_folder: Folder of the codec that made them.

    Returns:
        (all frames,) bool, whether a frame is silent.
    """
    config, weights = load_codec(codec_folder, codes.device)
    ops = TorchOps(codes.device)
    nothing = torch.zeros(1, _SETTLED_FRAMES * FRAME, device=codes.device)
    settled = encode(ops, prepare(ops, weights, config), config, nothing)[0, -1]
    frames = corpus.samples.unflatten(0, (-1, FRAME)).split(_FRAMES_AT_ONCE)
    still = torch.cat([(part.amax(1) < _STILL) & (part.amin(1) > -_STILL) for part in frames])
    codes[:, 1:] = torch.where(still[:, None], settled[1:].to(codes.dtype), codes[:, 1:])
    return still
