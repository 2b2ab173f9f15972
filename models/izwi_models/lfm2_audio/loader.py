"""Load an LFM2-Audio checkpoint folder in the published layouts.

config.json, model.safetensors, tokenizer.json, and the codec:
tokenizer-e351c8d8-checkpoint125.safetensors    Mimi, of LFM2-Audio-1.5B audio_detokenizer/
of LFM2.5-Audio-1.5B, if present
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from izwi.checkpoints.folder import read_json, tensor_names
from izwi.checkpoints.weightless import weightless
from izwi.errors import CheckpointError
from izwi.model.family import Family
from izwi.model.protocol import Backend
from izwi_models.lfm2_audio import backbone, depthformer, embedding
from izwi_models.lfm2_audio.audio_config import (
    MimiConfig,
    detokenizer_config,
    encoder_config,
    preprocessor_config,
)
from izwi_models.lfm2_audio.audio_parts import audio_part
from izwi_models.lfm2_audio.audio_tensors import detokenizer_shapes, encoder_shapes, mimi_shapes
from izwi_models.lfm2_audio.codecs import FrameCodec, detokenizer_codec, mimi_codec
from izwi_models.lfm2_audio.config import (
    ARCHITECTURE,
    LFM2AudioConfig,
    read_config,
    tensor_shapes,
    unused_shapes,
)
from izwi_models.lfm2_audio.model import LFM2Audio
from izwi_models.lfm2_audio.prepare import Checkpoint
from izwi_models.lfm2_audio.prompt import LFM2Prompt
from izwi_models.lfm2_audio.segments import SegmentEncoder
from izwi_models.lfm2_audio.tokenizer import LFM2Tokenizer

_MIMI = "tokenizer-e351c8d8-checkpoint125.safetensors"
_DETOKENIZER = "audio_detokenizer"
_OF_ENCODER = ("conformer.", "audio_adapter.")


def load(folder: Path, backend: Backend) -> LFM2Audio:
    """Read configuration, tokenizer, weights and the codec.

    Raises:
        CheckpointError: Something is missing or does not match; the message names the file, key or
            tensor.
    """
    config, where = read_config(folder), str(folder / "config.json")
    encoder = encoder_config(config.encoder, f"{where}.encoder")
    preprocessor = preprocessor_config(config.preprocessor, f"{where}.preprocessor")
    tokenizer = LFM2Tokenizer(folder)
    if tokenizer.vocab_size > config.lfm.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} ids, the model "
            f"{config.lfm.vocab_size}"
        )
    ops = backend.ops
    shapes = tensor_shapes(config) | encoder_shapes(encoder, config.lfm.hidden_size)
    unused = {n: s for n, s in unused_shapes(config).items() if n in tensor_names(folder)}
    weights = dict(backend.load_weights(folder, shapes | unused))
    for name in unused:
        del weights[name]
    segments = SegmentEncoder(ops, weights, encoder)
    weights = {name: w for name, w in weights.items() if not name.startswith(_OF_ENCODER)}
    weights = backbone.pack(ops, embedding.pack(ops, weights, config), config.lfm)
    weights = depthformer.pack(ops, weights, config)
    codec = _load_codec(folder, backend, config)
    prepare_audio = partial(audio_part, preprocessor, encoder)
    is_newer = (folder / _DETOKENIZER).is_dir()
    checkpoint = Checkpoint(config, tokenizer, is_newer, prepare_audio)
    return LFM2Audio(ops, weights, checkpoint, codec, segments)


def _load_codec(folder: Path, backend: Backend, config: LFM2AudioConfig) -> FrameCodec:
    own = folder / _DETOKENIZER
    if own.is_dir():
        path = own / "config.json"
        sizes = detokenizer_config(read_json(path), str(path))
        weights = backend.load_weights(own, detokenizer_shapes(sizes))
        return detokenizer_codec(backend.ops, weights, sizes)
    file = folder / _MIMI
    if not file.is_file():
        raise CheckpointError(f"{folder} has no codec: neither {_DETOKENIZER}/ nor {_MIMI}")
    mimi = MimiConfig(num_codebooks=config.codebooks)
    weights = backend.load_weights(file, mimi_shapes(mimi, tensor_names(file)))
    return mimi_codec(backend.ops, weights, mimi)


FAMILY = Family(ARCHITECTURE, *weightless(load), prompts=(LFM2Prompt,))
