"""Write and read the `speech_tokenizer` folder of a checkpoint, in the published layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from izwi_models.qwen3_codec.config import CodecConfig, codec_config
from izwi_models.tiny.recipes.harness import save_tensors
from izwi_models.tiny.recipes.settings import CODEC
from izwi_models.tiny.recipes.speech import SAMPLE_RATE


def write_codec(tensors: Mapping[str, Tensor], out: Path) -> None:
    """Write weights (as float16), configuration and preprocessor below a checkpoint folder."""
    folder = out / "speech_tokenizer"
    save_tensors(tensors, folder / "model.safetensors", torch.float16)
    (folder / "config.json").write_text(json.dumps(CODEC, indent=2) + "\n")
    preprocessor = {
        "feature_extractor_type": "EncodecFeatureExtractor",
        "feature_size": 1,
        "sampling_rate": SAMPLE_RATE,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor, indent=2) + "\n")


def load_codec(folder: Path, device: torch.device) -> tuple[CodecConfig, dict[str, Tensor]]:
    """Read configuration and float32 weights of a `speech_tokenizer` folder."""
    config = codec_config(json.loads((folder / "config.json").read_text()), str(folder))
    tensors = load_file(folder / "model.safetensors")
    return config, {name: tensor.float().to(device) for name, tensor in tensors.items()}
