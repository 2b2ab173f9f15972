"""Models of the published sizes with random weights: speed does not depend on the values.

On machines without a GPU, the embedded checkpoints with their own weights are used instead.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.fixed_length import fix_lengths
from izwi.backends.torch.backend import TorchBackend, torch_backend
from izwi.checkpoints.registry import Registry, embedded
from izwi.ops.ranks import Part
from tests.models.tiny_asr import PREPROCESSOR, write_tokenizer
from tests.models.tiny_tts import GENERATION

_GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
_SPEECH = {
    "tts-1.7b": "config_1b7_custom_voice",
    "tts-0.6b": "config_0b6_custom_voice",
    "tts-1.7b-base": "config_1b7_base",
}
_LISTENING = {"asr-1.7b": "1.7B", "asr-0.6b": "0.6B"}
_EMBEDDED = EMBEDDED, EMBEDDED_LISTENER = "izwi-tiny-tts", "izwi-tiny-asr"
SPEAKING = (*_SPEECH, EMBEDDED)
LISTENING = (*_LISTENING, EMBEDDED_LISTENER)
NAMES = (*SPEAKING, *LISTENING)
_TALKER_POSITIONS = 32_768  # as published
# ids of the embedded tokenizer, which is used instead of the published one
_TEXT_IDS = tuple(
    f"{name}_token_id"
    for name in ("im_start", "im_end", "assistant", "tts_pad", "tts_bos", "tts_eos")
)


def load(
    name: str, device: str, dtype: str, frames: int, weights: str = "auto"
) -> tuple[Registry, TorchBackend]:
    """Load one of NAMES; see `fix_lengths` for its output."""
    backend = backend_of(name, device, dtype, weights)
    registry = Registry(backend)
    with tempfile.TemporaryDirectory() as parent:
        registry.load(str(folder_of(name, Path(parent))), name)
    fix_lengths(registry, frames)
    return registry, backend


def load_listening(name: str, device: str, dtype: str) -> tuple[Registry, TorchBackend]:
    """Load one of LISTENING; see `load`."""
    return load(name, device, dtype, frames=0)


def backend_of(name: str, device: str, dtype: str, weights: str = "auto") -> TorchBackend:
    """Return the backend that provides the weights of one of NAMES."""
    backend = torch_backend(device, dtype, weights)
    return backend if name in _EMBEDDED else RandomBackend(backend.ops)


def folder_of(name: str, parent: Path) -> Path:
    """Return the folder of one of NAMES; it is made inside another folder unless it is embedded."""
    if name in _EMBEDDED:
        return embedded()[name]
    return (write_folder if name in _SPEECH else _write_listening)(name, parent / name)


def _write_listening(name: str, folder: Path) -> Path:
    real = json.loads(str(np.load(_GOLDEN / "asr.npz")["real"]))
    _write(folder / "config.json", real[_LISTENING[name]]["config"])
    _write(folder / "generation_config.json", {"eos_token_id": [304, 256], "do_sample": False})
    _write(folder / "preprocessor_config.json", PREPROCESSOR)
    write_tokenizer(folder)
    return folder


def write_folder(name: str, folder: Path) -> Path:
    """Write a speech checkpoint's folder of a published size without weights, and return it.

    Args:
        name: One of SPEAKING that is not embedded.
        folder: Folder to create.
    """
    goldens, codec = np.load(_GOLDEN / "tts.npz"), np.load(_GOLDEN / "codec.npz")
    tiny = embedded()["izwi-tiny-tts"]
    config = json.loads(str(goldens[_SPEECH[name]]))
    own = json.loads((tiny / "config.json").read_text(encoding="utf-8"))
    config |= {key: own[key] for key in _TEXT_IDS}
    # the golden files' reference was built with fewer
    config["talker_config"]["max_position_embeddings"] = _TALKER_POSITIONS
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", GENERATION)
    _write(folder / "speech_tokenizer" / "config.json", _codec_config(codec))
    for file in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        shutil.copy(tiny / file, folder / file)
    return folder


def _codec_config(codec: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(str(codec["real_config"]))
    return {"encode_downsample_rate": 1920, **config}


def _write(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


class RandomBackend(TorchBackend):
    """A backend that draws weights on the device instead of reading them."""

    def load_weights(
        self,
        folder: Path,  # noqa: ARG002
        shapes: Mapping[str, tuple[int, ...]],
        packable: Container[str] = (),  # noqa: ARG002
        parts: Mapping[str, Part] | None = None,
    ) -> dict[str, Tensor]:
        """Draw weights of the given shapes, small enough that activations stay finite."""
        assert not parts
        generator = torch.Generator(self.ops.device).manual_seed(0)
        return {name: self._draw(name, shape, generator) for name, shape in shapes.items()}

    def _draw(self, name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        ops = self.ops
        if name.endswith(("cluster_usage", "scale")) or (len(shape) == 1 and "norm" in name):
            return torch.ones(shape, device=ops.device, dtype=ops.dtype)
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 4096
        x = torch.randn(shape, device=ops.device, dtype=ops.dtype, generator=generator)
        return x * min(0.5, fan_in**-0.5)
