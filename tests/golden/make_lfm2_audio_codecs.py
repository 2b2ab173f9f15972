"""Make tests/golden/lfm2_audio_codecs.npz: LFM2-Audio's features, encoder and codecs.

The tests read the file alone; run this only to make it anew, in an environment that holds
python 3.11, torch 2.13.0 (cpu), transformers 4.57.6, librosa 0.11.0, einops, sentencepiece,
torchaudio 2.11.0 (its files; the extension need not load) and the source of liquid-audio 1.3.0 (on
3.11 four lines of PEP 695 syntax in model/transformer.py and utils.py want rewriting):

    PYTHONPATH=.../liquid_audio_src python tests/golden/make_lfm2_audio_codecs.py

The file holds (float32 unless said):

    seed                     int64, of `random_weights` with GAINS and of all noise
    {encoder,tiny_encoder,preprocessor,detokenizer,tiny_mimi}   JSON of the configurations
    tensors                  JSON, {part: [[name, shape], ...]} of the published layout
    resampled_A_B            A Hz of `noise("resampled", 3000)` at B Hz
    mel_N                    (128, frames) features of `noise(f"mel_{N}", N)` at 16 kHz
    encoded_N                (tokens, 64) encoder and adapter, tiny, of N frames of `noise`
    real_encoded             (tokens, 2048) of REAL_FRAMES
    mimi_codes, mimi_pcm     tiny: uint8 (60, 8), every PCM_STEP-th sample of the one-shot decode
    mimi_real_codes, _pcm    int16 (3, 8) and (5760,)
    detokenizer_codes, _pcm  int16 (27, 8), every PCM_STEP-th sample
    detokenizer_ends         (2, 960), the first samples and the last
"""

from __future__ import annotations

import contextlib
import importlib
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
SEED = 11
GAINS = {"lin.weight": 0.2, "decoder.": 0.7}
PCM_STEP = 29
MEL_SAMPLES = (160, 400, 800, 16077)
ENCODED_FRAMES = (1, 6, 8, 9, 101, 250)
REAL_FRAMES = 101
RATES = ((24000, 16000), (44100, 16000), (8000, 16000), (22050, 16000), (16000, 24000))
ADAPTED = 64

PREPROCESSOR: dict[str, Any] = {
    "sample_rate": 16000,
    "normalize": "per_feature",
    "window_size": 0.025,
    "window_stride": 0.01,
    "window": "hann",
    "features": 128,
    "n_fft": 512,
    "log": True,
    "frame_splicing": 1,
    "dither": 1e-5,
    "pad_to": 0,
    "pad_value": 0.0,
}
ENCODER: dict[str, Any] = {
    "feat_in": 128,
    "feat_out": -1,
    "n_layers": 17,
    "d_model": 512,
    "subsampling": "dw_striding",
    "subsampling_factor": 8,
    "subsampling_conv_channels": 256,
    "causal_downsampling": False,
    "reduction": None,
    "reduction_position": None,
    "reduction_factor": 1,
    "ff_expansion_factor": 4,
    "self_attention_model": "rel_pos",
    "n_heads": 8,
    "att_context_size": [-1, -1],
    "xscaling": False,
    "untie_biases": True,
    "pos_emb_max_len": 5000,
    "conv_kernel_size": 9,
    "conv_norm_type": "batch_norm",
    "conv_context_size": None,
    "dropout": 0.1,
    "dropout_pre_encoder": 0.1,
    "dropout_emb": 0.0,
    "dropout_att": 0.1,
}
TINY_ENCODER = {
    **ENCODER,
    "n_layers": 2,
    "d_model": 32,
    "n_heads": 4,
    "subsampling_conv_channels": 8,
}
DETOKENIZER: dict[str, Any] = {
    "vocab_size": 64,  # 65536 in the published file, whose text embedding is not read
    "hidden_size": 512,
    "intermediate_size": 3328,
    "block_auto_adjust_ff_dim": True,
    "block_multiple_of": 256,
    "block_ffn_dim_multiplier": 1.0,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128000,
    "norm_eps": 1e-5,
    "rope_theta": 1e6,
    "conv_bias": False,
    "conv_L_cache": 3,
    "sliding_window": 30,
    "layer_types": [
        *("conv", "conv", "sliding_attention", "conv"),
        *("sliding_attention", "conv", "sliding_attention", "conv"),
    ],
}
# In the names of `izwi_models.lfm2_audio.audio_config.MimiConfig`.
TINY_MIMI: dict[str, Any] = {
    "codebook_size": 64,
    "codebook_dim": 8,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "intermediate_size": 64,
    "window": 20,
    "num_filters": 4,
    "num_file_codebooks": 10,
}


def random_weights_module() -> types.ModuleType:
    """tests/random_weights.py, loaded by path: nothing of ours is installed here."""
    path = HERE.parent / "random_weights.py"
    spec = importlib.util.spec_from_file_location("random_weights", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_torchaudio() -> None:
    """Make torchaudio's Python files importable where its compiled part is not."""
    with contextlib.suppress(Exception):
        importlib.import_module("torchaudio")
        return
    for name in [name for name in sys.modules if name.split(".")[0] == "torchaudio"]:
        del sys.modules[name]
    root = next(path for path in sys.path if (Path(path) / "torchaudio").is_dir())
    package = types.ModuleType("torchaudio")
    package.__path__ = [str(Path(root) / "torchaudio")]
    package.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None, is_package=True)
    extension: Any = types.ModuleType("torchaudio._extension")
    extension._IS_ALIGN_AVAILABLE = extension._IS_RIR_AVAILABLE = False
    extension._IS_TORCHAUDIO_EXT_AVAILABLE = False
    extension.fail_if_no_align = lambda function: function
    sys.modules |= {"torchaudio": package, "torchaudio._extension": extension}
    package.functional = importlib.import_module("torchaudio.functional")  # type: ignore[attr-defined]


def load(module: Any, draw: types.ModuleType, prefix: str = "") -> Any:
    """Fill a reference module with the weights that its prefixed names draw."""
    kept = ("istft.window",)
    shapes = {prefix + n: tuple(t.shape) for n, t in module.state_dict().items() if n not in kept}
    drawn = draw.random_weights(shapes, SEED, GAINS)
    state = {name[len(prefix) :]: torch.from_numpy(array) for name, array in drawn.items()}
    missing, unexpected = module.load_state_dict(state, strict=False)
    assert set(missing) <= set(kept)
    assert not unexpected
    return module.eval()


def layout(module: Any, prefix: str = "") -> list[list[Any]]:
    """Names and shapes of a module's tensors."""
    return [[prefix + name, list(t.shape)] for name, t in module.state_dict().items()]


def mimi(size: dict[str, Any]) -> Any:
    """Kyutai's model with the widths of `size`; the published one where it is empty."""
    from liquid_audio.moshi.models import loaders
    from liquid_audio.moshi.models.compression import MimiModel
    from liquid_audio.moshi.modules import SEANetDecoder, SEANetEncoder, transformer
    from liquid_audio.moshi.quantization import SplitResidualVectorQuantizer

    if not size:
        return loaders.get_mimi(None)
    hidden = size["hidden_size"]
    convs = {**loaders._seanet_kwargs, "dimension": hidden, "n_filters": size["num_filters"]}
    attention = {
        **loaders._transformer_kwargs,
        "d_model": hidden,
        "num_heads": size["num_heads"],
        "num_layers": size["num_layers"],
        "context": size["window"],
        "dim_feedforward": size["intermediate_size"],
        "input_dimension": hidden,
        "output_dimensions": [hidden],
    }
    quantizer = SplitResidualVectorQuantizer(
        dimension=size["codebook_dim"],
        n_q=size["num_file_codebooks"],
        bins=size["codebook_size"],
        input_dimension=hidden,
        output_dimension=hidden,
    )
    model = MimiModel(
        SEANetEncoder(**convs),
        SEANetDecoder(**convs),
        quantizer,
        channels=1,
        sample_rate=24000,
        frame_rate=12.5,
        encoder_frame_rate=25,
        causal=True,
        resample_method="conv",
        encoder_transformer=transformer.ProjectedTransformer(**attention),
        decoder_transformer=transformer.ProjectedTransformer(**attention),
    )
    model.set_num_codebooks(8)
    return model


def noise(name: str, samples: int, draw: types.ModuleType) -> np.ndarray:
    """Noise that swells, louder at low frequencies as speech is, (samples,) float32."""
    swell = np.linspace(0.2, 1.0, samples, dtype=np.float32)
    noise = draw.random_tensor(name, (samples,), SEED) * swell
    return np.convolve(noise, 0.9 ** np.arange(40))[:samples].astype(np.float32)


def make_features(out: dict[str, Any], draw: types.ModuleType) -> None:
    """Resampling and mel features."""
    from liquid_audio.model.conformer.processor import AudioToMelSpectrogramPreprocessor
    from torchaudio.functional import resample

    for before, after in RATES:
        heard = torch.from_numpy(noise("resampled", 3000, draw))
        out[f"resampled_{before}_{after}"] = resample(heard[None], before, after)[0].numpy()
    front = AudioToMelSpectrogramPreprocessor(**PREPROCESSOR).eval()
    for samples in MEL_SAMPLES:
        heard = torch.from_numpy(noise(f"mel_{samples}", samples, draw))[None]
        out[f"mel_{samples}"] = front(heard, torch.tensor([samples]))[0][0].numpy()


def make_encoder(out: dict[str, Any], tensors: dict[str, Any], draw: types.ModuleType) -> None:
    """Conformer and adapter, tiny in one padded batch, real alone."""
    from liquid_audio.model.conformer.encoder import ConformerEncoder
    from liquid_audio.model.mlp import MLP

    def frames(count: int) -> torch.Tensor:
        return torch.from_numpy(20.0 * draw.random_tensor(f"frames.{count}", (128, count), SEED))

    encoder = load(ConformerEncoder(**TINY_ENCODER), draw, "conformer.")
    adapter = load(MLP(TINY_ENCODER["d_model"], ADAPTED, [ADAPTED]), draw, "audio_adapter.")
    batch = torch.zeros(len(ENCODED_FRAMES), 128, max(ENCODED_FRAMES))
    for row, count in zip(batch, ENCODED_FRAMES, strict=True):
        row[:, :count] = frames(count)
    encoded, lengths = encoder(batch, torch.tensor(ENCODED_FRAMES))
    for row, tokens, count in zip(encoded, lengths, ENCODED_FRAMES, strict=True):
        out[f"encoded_{count}"] = adapter(row.T[:tokens]).numpy()
    encoder = load(ConformerEncoder(**ENCODER), draw, "conformer.")
    adapter = load(MLP(512, 2048, [2048]), draw, "audio_adapter.")
    encoded, _ = encoder(frames(REAL_FRAMES)[None], torch.tensor([REAL_FRAMES]))
    out["real_encoded"] = adapter(encoded[0].T).numpy()
    tensors["encoder"] = layout(encoder, "conformer.") + layout(adapter, "audio_adapter.")


def make_codecs(out: dict[str, Any], tensors: dict[str, Any], draw: types.ModuleType) -> None:
    """Mimi, tiny and real, and the detokenizer."""
    from liquid_audio.detokenizer import LFM2AudioDetokenizer
    from transformers import Lfm2Config

    rng = np.random.Generator(np.random.PCG64(SEED))
    model = load(mimi(TINY_MIMI), draw)
    codes = rng.integers(0, 64, (60, 8))
    pcm = model.decode(torch.from_numpy(codes.T)[None])[0, 0].numpy()
    print("tiny mimi: deviation", pcm.std(), "most", np.abs(pcm).max())
    out["mimi_codes"], out["mimi_pcm"] = codes.astype(np.uint8), pcm[::PCM_STEP]
    model = load(mimi({}), draw)
    codes = rng.integers(0, 2048, (3, 8))
    pcm = model.decode(torch.from_numpy(codes.T)[None])[0, 0].numpy()
    print("mimi: deviation", pcm.std(), "most", np.abs(pcm).max())
    out["mimi_real_codes"], out["mimi_real_pcm"] = codes.astype(np.int16), pcm
    tensors["mimi"] = layout(model)
    kinds = [kind.replace("sliding", "full") for kind in DETOKENIZER["layer_types"]]
    values = {**DETOKENIZER, "layer_types": kinds}
    model = load(LFM2AudioDetokenizer(Lfm2Config(**values)), draw)
    model.lfm.set_attn_implementation("sdpa")  # eager adds the boolean mask to the scores
    codes = rng.integers(0, 2048, (27, 8))
    pcm = model(torch.from_numpy(codes.T)[None])[0].numpy()
    print("detokenizer: deviation", pcm.std(), "most", np.abs(pcm).max())
    out["detokenizer_codes"], out["detokenizer_pcm"] = codes.astype(np.int16), pcm[::PCM_STEP]
    out["detokenizer_ends"] = np.stack([pcm[:960], pcm[-960:]])
    tensors["detokenizer"] = layout(model)


def main() -> None:
    """Run the reference and write the file."""
    torch.set_num_threads(2)
    load_torchaudio()
    draw = random_weights_module()
    tensors: dict[str, Any] = {}
    out: dict[str, Any] = {"seed": SEED}
    for name, values in (
        ("encoder", ENCODER),
        ("tiny_encoder", TINY_ENCODER),
        ("preprocessor", PREPROCESSOR),
        ("detokenizer", DETOKENIZER),
        ("tiny_mimi", TINY_MIMI),
    ):
        out[name] = json.dumps(values)
    with torch.no_grad():
        make_features(out, draw)
        make_encoder(out, tensors, draw)
        make_codecs(out, tensors, draw)
    out["tensors"] = json.dumps(tensors)
    np.savez_compressed(HERE / "lfm2_audio_codecs.npz", **out)


if __name__ == "__main__":
    main()
