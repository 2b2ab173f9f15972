"""LFM2-Audio of the published size with random weights; its answers never end by themselves."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from benchmarks.random_checkpoint import RandomBackend
from izwi.ops.ranks import Part
from izwi_models.lfm2_audio.config import AUDIO_START_ID, END_ID, END_OF_AUDIO, TEXT_END_ID
from tests.models.tiny_lfm2_audio import REAL, write_tokenizer

_GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "lfm2_audio_codecs.npz"
_NO_TENSORS = b"\x02\0\0\0\0\0\0\0{}"
_MIMI = "tokenizer-e351c8d8-checkpoint125.safetensors"
CODECS = ("mimi", "detokenizer")  # of LFM2-Audio-1.5B and of LFM2.5-Audio-1.5B

# Rows of the head for these ids are 0, so their logits are 0 and never among the largest.
_UNSAID = {
    "lfm.embed_tokens.weight": (END_ID, AUDIO_START_ID, TEXT_END_ID),
    "depth_embeddings.0.embedding.weight": (END_OF_AUDIO,),
}


def write_folder(folder: Path, codec: str) -> Path:
    """Write a checkpoint's folder without weights, with one of CODECS."""
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(REAL), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(_NO_TENSORS)
    if codec == "mimi":
        (folder / _MIMI).write_bytes(_NO_TENSORS)
        return folder
    own = folder / "audio_detokenizer"
    own.mkdir()
    config = str(np.load(_GOLDEN)["detokenizer"])
    (own / "config.json").write_text(config, encoding="utf-8")
    (own / "model.safetensors").write_bytes(_NO_TENSORS)
    return folder


class EndlessBackend(RandomBackend):
    """A backend with random weights for which a speech-to-speech model answers until its limit."""

    def load_weights(
        self,
        folder: Path,
        shapes: Mapping[str, tuple[int, ...]],
        packable: Container[str] = (),
        parts: Mapping[str, Part] | None = None,
    ) -> dict[str, Tensor]:
        """As `RandomBackend`, but ends of text and of audio are as unlikely as possible."""
        weights = super().load_weights(folder, shapes, packable, parts)
        for name, rows in _UNSAID.items():
            # the detokenizer's table has the same name and is shorter; it is not used
            if name in weights and len(weights[name]) > max(rows):
                weights[name][list(rows)] = 0.0
        return weights


def step_bytes(itemsize: int) -> tuple[int, int]:
    """Return the bytes of weights that a text step and a frame step read at least."""
    lfm, depth = REAL["lfm"], REAL["depthformer"]
    hidden, inner = lfm["hidden_size"], 8192
    head_dim = hidden // lfm["num_attention_heads"]
    kv = lfm["num_key_value_heads"] * head_dim
    attention = hidden * (2 * hidden + 2 * kv)
    conv = 4 * hidden * hidden
    convs = sum(kind == "conv" for kind in lfm["layer_types"])
    layers = lfm["num_hidden_layers"]
    backbone = convs * conv + (layers - convs) * attention + layers * 3 * hidden * inner
    width, books = depth["dim"], REAL["codebooks"]
    block = width * 1536 + width * width + 3 * width * 2816
    frame = books * (depth["layers"] * block + width * hidden + width * 2049)
    text = lfm["vocab_size"] * hidden
    return itemsize * (backbone + text), itemsize * (backbone + frame)
