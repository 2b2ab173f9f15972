"""Make tests/golden/codec.npz: what the reference codec computes from seeded weights.

The tests read the file alone; run this only to make it anew, in an environment that holds
python 3.11, torch 2.13.0 (cpu), transformers 4.57.6, qwen-tts 0.1.1 and, both packages having been
installed without their dependencies, accelerate 1.12.0, librosa 0.11.0, soundfile, sox, einops,
onnxruntime 1.31.1 and numpy 2.4:

    python tests/golden/make_codec.py

The file holds (float32 unless said):

    {tiny,real}_config   JSON of the config.json
    seed                 int64, of `random_weights` with GAINS and of the audio
    tiny_codes           uint8 (330, 16), frames that are decoded
    tiny_pcm             every PCM_STEP-th sample of the one-shot decode; the step has no common
                         factor with 1920, so every phase of every upsampling layer is among them
    tiny_tail            the last frame in full
    tiny_encoded_N       uint8 (frames, 16), codes of N samples of noise, see `noise`
    tiny_latents         (frames, hidden) before the quantiser, of LATENT_SAMPLES samples
    real_tensors         JSON, [[name, shape], ...] of the published layout
    real_codes, real_pcm int64 (4, 16) and (7680,)
    real_encoded         int64 (5, 16), codes of 9,600 samples
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent
SEED = 7
GAINS = {"decoder.": 0.6}  # more would saturate the clamp
PCM_STEP = 29
LATENT_SAMPLES = 24001
ENCODED_SAMPLES = (24000, 24001, 9600, 9599, 50000, 252000)

REAL: dict[str, Any] = {
    "model_type": "qwen3_tts_tokenizer_12hz",
    "encoder_valid_num_quantizers": 16,
    "input_sample_rate": 24000,
    "output_sample_rate": 24000,
    "decode_upsample_rate": 1920,
    "encode_downsample_rate": 1920,
    "encoder_config": {
        "_frame_rate": 12.5,
        "audio_channels": 1,
        "codebook_dim": 256,
        "codebook_size": 2048,
        "compress": 2,
        "dilation_growth_rate": 2,
        "head_dim": 64,
        "hidden_act": "gelu",
        "hidden_size": 512,
        "intermediate_size": 2048,
        "kernel_size": 7,
        "last_kernel_size": 3,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "norm_eps": 1e-5,
        "normalize": False,
        "num_attention_heads": 8,
        "num_filters": 64,
        "num_hidden_layers": 8,
        "num_key_value_heads": 8,
        "num_quantizers": 32,
        "num_residual_layers": 1,
        "num_semantic_quantizers": 1,
        "pad_mode": "constant",
        "residual_kernel_size": 3,
        "rope_theta": 10000.0,
        "sampling_rate": 24000,
        "sliding_window": 250,
        "trim_right_ratio": 1.0,
        "upsample_groups": 512,
        "upsampling_ratios": [8, 6, 5, 4],
        "use_causal_conv": True,
        "use_conv_shortcut": False,
        "use_streaming": False,
        "vector_quantization_hidden_dimension": 256,
    },
    "decoder_config": {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "codebook_dim": 512,
        "codebook_size": 2048,
        "decoder_dim": 1536,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 512,
        "intermediate_size": 1024,
        "latent_dim": 1024,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "num_attention_heads": 16,
        "num_hidden_layers": 8,
        "num_key_value_heads": 16,
        "num_quantizers": 16,
        "num_semantic_quantizers": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000,
        "semantic_codebook_size": 4096,
        "sliding_window": 72,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "vector_quantization_hidden_dimension": 512,
    },
}

TINY_ENCODER: dict[str, Any] = {
    "codebook_dim": 8,
    "codebook_size": 64,
    "head_dim": 8,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_filters": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "num_quantizers": 20,
    "sliding_window": 10,
    "upsample_groups": 32,
    "vector_quantization_hidden_dimension": 8,
}
TINY_DECODER: dict[str, Any] = {
    "codebook_dim": 16,
    "codebook_size": 64,
    "decoder_dim": 64,
    "head_dim": 8,
    "hidden_size": 16,
    "intermediate_size": 32,
    "latent_dim": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,  # grouped, unlike the published one, so that both are covered
    "sliding_window": 6,
}


def tiny() -> dict[str, Any]:
    """The published configuration with narrow layers."""
    return {
        **REAL,
        "encoder_config": {**REAL["encoder_config"], **TINY_ENCODER},
        "decoder_config": {**REAL["decoder_config"], **TINY_DECODER},
    }


def random_weights_module() -> types.ModuleType:
    """tests/random_weights.py, loaded by path: nothing of ours is installed here."""
    spec = importlib.util.spec_from_file_location(
        "random_weights", HERE.parent / "random_weights.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def import_reference() -> tuple[Any, Any]:
    """Configuration and model class. qwen_tts imports torchaudio for the 25 Hz codec alone.

    The wheels of torchaudio that exist need CUDA libraries, so empty modules stand in.
    """
    for name in ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"):
        stub = types.ModuleType(name)
        stub.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, is_package=True)
        stub.__path__ = []
        sys.modules[name] = stub
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, stub)
    from qwen_tts.core.tokenizer_12hz.configuration_qwen3_tts_tokenizer_v2 import (
        Qwen3TTSTokenizerV2Config,
    )
    from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import (
        Qwen3TTSTokenizerV2Model,
    )

    return Qwen3TTSTokenizerV2Config, Qwen3TTSTokenizerV2Model


def build(values: dict[str, Any], draw: types.ModuleType) -> Any:
    """The reference model with seeded weights, eager attention, float32."""
    config_class, model_class = import_reference()
    config = config_class(**values)
    for part in (config, config.encoder_config, config.decoder_config):
        part._attn_implementation = "eager"
    model = model_class(config).eval()
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    weights = draw.random_weights(shapes, SEED, GAINS)
    # Mimi's codebooks are buffers of the state dict, cached on first use: nothing used them yet
    model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    return model


def noise(samples: int, draw: types.ModuleType) -> np.ndarray:
    """White noise of deviation 0.2, (samples,) float32."""
    return 4.0 * draw.random_tensor(f"noise.{samples}", (samples,), SEED)


def encode(model: Any, samples: np.ndarray) -> np.ndarray:
    """Codes (frames, 16) of one clip."""
    audio = torch.from_numpy(samples)[None]
    mask = torch.ones(audio.shape, dtype=torch.long)
    return model.encode(audio, mask, return_dict=True).audio_codes[0].numpy()


def latents(model: Any, samples: np.ndarray) -> np.ndarray:
    """What the encoder's quantiser reads, (frames, hidden)."""
    mimi = model.encoder
    x = mimi.encoder(torch.from_numpy(samples)[None, None])
    x = mimi.encoder_transformer(x.transpose(1, 2))[0]
    return mimi.downsample(x.transpose(1, 2))[0].transpose(0, 1).numpy()


def main() -> None:
    """Run both sizes and write the file."""
    torch.set_num_threads(2)
    draw = random_weights_module()
    rng = np.random.Generator(np.random.PCG64(SEED))
    out: dict[str, Any] = {"seed": SEED, "tiny_config": json.dumps(tiny())}
    with torch.no_grad():
        model = build(tiny(), draw)
        codes = rng.integers(0, 64, (330, 16))
        pcm = model.decoder(torch.from_numpy(codes).T[None])[0, 0].numpy()
        print("tiny: deviation", pcm.std(), "clipped", np.mean(np.abs(pcm) >= 1))
        out["tiny_codes"] = codes.astype(np.uint8)
        out["tiny_pcm"], out["tiny_tail"] = pcm[::PCM_STEP], pcm[-1920:]
        for samples in ENCODED_SAMPLES:
            encoded = encode(model, noise(samples, draw))
            out[f"tiny_encoded_{samples}"] = encoded.astype(np.uint8)
        out["tiny_latents"] = latents(model, noise(LATENT_SAMPLES, draw))

        model = build(REAL, draw)
        tensors = [[name, list(tensor.shape)] for name, tensor in model.state_dict().items()]
        out["real_config"], out["real_tensors"] = json.dumps(REAL), json.dumps(tensors)
        out["real_codes"] = rng.integers(0, 2048, (4, 16))
        out["real_pcm"] = model.decoder(torch.from_numpy(out["real_codes"]).T[None])[0, 0].numpy()
        out["real_encoded"] = encode(model, noise(9600, draw))
        print(
            "real: deviation", out["real_pcm"].std(), "clipped", np.mean(abs(out["real_pcm"]) >= 1)
        )
        print("real: M parameters", sum(p.numel() for p in model.parameters()) / 1e6)
    np.savez_compressed(HERE / "codec.npz", **out)


if __name__ == "__main__":
    main()
