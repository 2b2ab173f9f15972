"""Make tests/golden/tts.npz: what the reference package computes from seeded weights.

The tests read the file alone; run this only to make it anew, in an environment that holds
python 3.11, torch 2.13.0 (cpu), transformers 4.57.6, qwen-tts 0.1.1 and, both packages having been
installed without their dependencies, accelerate 1.12.0, librosa 0.11.0, soundfile, sox, einops,
onnxruntime and numpy 2.4:

    python tests/golden/make_tts.py

The file holds (float32 unless said):

    seed                    int64, of `tests.models.tiny_tts.tiny_weights`
    forms                   JSON, what was asked for each prompt form, see FORMS
    {form}_prompt           (positions, hidden), embeddings that the talker was fed
    {form}_track            (n, hidden), text embeddings beside the frames
    {form}_codes            uint8 (frames, 16), greedy
    {kind}_hidden           talker states of the prompt of that kind's first form
    {kind}_logits           codec logits of its last 4 positions
    {kind}_frame_hidden     (8, hidden) talker states of that run's first frames
    {kind}_frame_logits     (8, 15, codes) teacher-forced logits of the code predictor
    {form}_steps            int64 (steps,)
    {form}_raw, _processed  (steps, vocabulary) logits of codebook 0 before and after the
                            repetition penalty, the least length and the suppression, for a run
    warped                  the last processed row after temperature 0.9 and top-k 50
    clip                    (24000,) samples of the reference clip
    clip_mel, clip_vector   its log mel (every 7th frame) and its speaker embedding
    tokens                  JSON, [[text, ids of the reference's template], ...]
    config_{checkpoint}     JSON, a config.json of published sizes
    tensors_{checkpoint}    sha256 of the names and shapes of a published checkpoint's tensors
    counts                  JSON, parameters of each of these
"""

from __future__ import annotations

import copy
import hashlib
import importlib.machinery
import json
import sys
import tempfile
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from tests.models import tiny_tts  # noqa: E402

warnings.filterwarnings("ignore")
NEW_TOKENS = 72  # one frame fewer
TEXT = "The user sang in the rain, and nobody minded. 3 times!"
SHORT = "Hi."
REF_TEXT = "in the beginning"
INSTRUCT = "Speak softly\nto the user."
SHORT_CLIP, LONG_CLIP = 5, 80  # frames, fewer and more than there is text

# name: checkpoint kind, text mode, and what differs from a plain request
FORMS: dict[str, dict[str, Any]] = {
    "base_plain_full": {"kind": "base", "full": True, "language": "english"},
    "base_plain_stream": {"kind": "base", "full": False, "language": "auto"},
    "base_xvector_full": {"kind": "base", "full": True, "language": "auto", "clip": 0},
    "base_xvector_stream": {"kind": "base", "full": False, "language": "english", "clip": 0},
    "base_icl_full": {"kind": "base", "full": True, "language": "english", "clip": SHORT_CLIP},
    "base_icl_stream": {"kind": "base", "full": False, "language": "auto", "clip": SHORT_CLIP},
    "base_icl_long": {"kind": "base", "full": False, "language": "german", "clip": LONG_CLIP},
    "voice_speaker_full": {"kind": "custom_voice", "full": True, "speaker": "ryan"},
    "voice_speaker_stream": {
        "kind": "custom_voice",
        "full": False,
        "speaker": "Vivian",
        "language": "english",
    },
    "voice_dialect_auto": {"kind": "custom_voice", "full": True, "speaker": "eric"},
    "voice_dialect_chinese": {
        "kind": "custom_voice",
        "full": False,
        "speaker": "dylan",
        "language": "Chinese",
    },
    "voice_dialect_other": {
        "kind": "custom_voice",
        "full": True,
        "speaker": "eric",
        "language": "german",
    },
    "voice_instruct": {
        "kind": "custom_voice",
        "full": True,
        "speaker": "ryan",
        "language": "english",
        "instruct": INSTRUCT,
    },
    "voice_short": {"kind": "custom_voice", "full": False, "speaker": "ryan", "text": SHORT},
    "design_full": {"kind": "voice_design", "full": True, "instruct": INSTRUCT},
    "design_stream": {
        "kind": "voice_design",
        "full": False,
        "language": "chinese",
        "instruct": INSTRUCT,
    },
    "design_plain": {"kind": "voice_design", "full": True, "language": "english"},
}
FIRST_FORM = {
    "base": "base_icl_stream",
    "custom_voice": "voice_instruct",
    "voice_design": "design_full",
}
TOKENISED = (
    TEXT,
    SHORT,
    " leading space",
    "\nleading break",
    "\n\n  \n two breaks",
    "trailing break\n",
    "trailing space ",
    "tabs\tand  doubled   spaces",
    "1,234.5 and 42",
    "I'm, you're, THEY'LL",
    "émigré naïve e\u0301 ﬁ",
    "你好，世界。",
    "emoji 🎉👩‍👩‍👧 done",
    "assistant\nuser the ther",
    "...!?",
)
GREEDY = {
    "do_sample": False,
    "subtalker_dosample": False,
    "repetition_penalty": 1.05,
    "top_k": 50,
    "top_p": 1.0,
    "temperature": 0.9,
    "subtalker_top_k": 50,
    "subtalker_top_p": 1.0,
    "subtalker_temperature": 0.9,
    "max_new_tokens": NEW_TOKENS,
}


def import_reference() -> Any:
    """The modeling module. qwen_tts imports torchaudio for the 25 Hz codec alone.

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
    from qwen_tts.core.models import modeling_qwen3_tts
    from qwen_tts.core.models.configuration_qwen3_tts import Qwen3TTSConfig

    modeling_qwen3_tts.Config = Qwen3TTSConfig
    return modeling_qwen3_tts


def build(reference: Any, values: dict[str, Any]) -> Any:
    config = reference.Config(**copy.deepcopy(values))
    config._attn_implementation = "eager"
    return reference.Qwen3TTSForConditionalGeneration(config).eval()


def build_tiny(reference: Any, kind: str) -> Any:
    model = build(reference, tiny_tts.tiny_config(kind))
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    weights = tiny_tts.tiny_weights(shapes)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    return model


class Recorder:
    """Stands in for `talker.generate`: keeps what it was given and what it computed."""

    def __init__(self, talker: Any):
        self._generate = talker.generate
        self.given: dict[str, Any] = {}
        self.result: Any = None
        talker.generate = self

    def __call__(self, **arguments: Any) -> Any:
        self.given = arguments
        self.result = self._generate(**arguments, output_logits=True, output_scores=True)
        return self.result


def tokenizer() -> Any:
    from transformers import Qwen2TokenizerFast

    with tempfile.TemporaryDirectory() as folder:
        tiny_tts.write_tokenizer(Path(folder))
        return Qwen2TokenizerFast.from_pretrained(folder)


def ids_of(tokens: Any, text: str) -> torch.Tensor:
    return torch.tensor([tokens(text)["input_ids"]])


def assistant_turn(text: str) -> str:
    return f"<|im_start|>assistant\n{text}<|im_end|>\n"


def run(model: Any, form: dict[str, Any], tokens: Any, vector: torch.Tensor) -> tuple[Any, Any]:
    recorder = Recorder(model.talker)
    text = form.get("text", TEXT)
    arguments: dict[str, Any] = {
        "input_ids": [ids_of(tokens, assistant_turn(text) + "<|im_start|>assistant\n")],
        "languages": [form.get("language", "auto")],
        "speakers": [form.get("speaker")],
        "non_streaming_mode": form["full"],
    }
    if "instruct" in form:
        turn = f"<|im_start|>user\n{form['instruct']}<|im_end|>\n"
        arguments["instruct_ids"] = [ids_of(tokens, turn)]
    if "clip" in form:
        frames = form["clip"]
        arguments["voice_clone_prompt"] = {
            "ref_code": [torch.from_numpy(clip_codes(frames)) if frames else None],
            "ref_spk_embedding": [vector],
            "x_vector_only_mode": [frames == 0],
            "icl_mode": [frames > 0],
        }
        arguments["ref_ids"] = [ids_of(tokens, assistant_turn(REF_TEXT))]
    with torch.inference_mode():
        codes, _ = model.generate(**arguments, **GREEDY)
    model.talker.generate = recorder._generate
    return codes[0], recorder


def clip_codes(frames: int) -> Any:
    """Codes of a reference clip, the same in the tests."""
    return np.random.Generator(np.random.PCG64(frames)).integers(0, 64, (frames, 16))


def record_forms(reference: Any, out: dict[str, Any], vector: torch.Tensor) -> None:
    tokens = tokenizer()
    models = {kind: build_tiny(reference, kind) for kind in FIRST_FORM}
    for name, form in FORMS.items():
        model = models[form["kind"]]
        codes, recorder = run(model, form, tokens, vector)
        assert codes.shape == (NEW_TOKENS - 1, 16), (name, codes.shape)
        prompt = recorder.given["inputs_embeds"][0]
        out[f"{name}_prompt"] = prompt.numpy()
        out[f"{name}_track"] = recorder.given["trailing_text_hidden"][0].numpy()
        out[f"{name}_codes"] = codes.numpy().astype(np.uint8)
        top = torch.stack([row[0] for row in recorder.result.scores]).topk(2).values
        margin = float((top[:, 0] - top[:, 1]).min())
        print(f"{name:24} distinct {len(set(codes[:, 0].tolist()))} margin {margin:.1e}")
        if FIRST_FORM[form["kind"]] == name:
            record_logits(model, form["kind"], prompt, codes, recorder, out)
    steps = [0, 1, 2, 20, 70]
    name = FIRST_FORM["voice_design"]
    _, recorder = run(models["voice_design"], FORMS[name], tokens, vector)
    result = recorder.result
    out[f"{name}_steps"] = np.array(steps)
    out[f"{name}_raw"] = torch.cat([result.logits[step] for step in steps]).numpy()
    out[f"{name}_processed"] = torch.cat([result.scores[step] for step in steps]).numpy()
    from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper

    warped = TemperatureLogitsWarper(0.9)(None, result.scores[steps[-1]])
    out["warped"] = TopKLogitsWarper(50)(None, warped)[0].numpy()


@torch.inference_mode()
def record_logits(
    model: Any, kind: str, prompt: Any, codes: Any, recorder: Any, out: dict[str, Any]
) -> None:
    talker = model.talker
    positions = torch.arange(len(prompt))[None]
    states = talker.model(inputs_embeds=prompt[None], position_ids=positions.expand(3, 1, -1))
    hidden = states.last_hidden_state
    out[f"{kind}_hidden"] = hidden[0].numpy()
    out[f"{kind}_logits"] = talker.codec_head(hidden)[0, -4:].numpy()
    steps = recorder.result.hidden_states
    frame_hidden = torch.cat([step[0][-1][:, -1] for step in steps[:8]])  # (8, hidden)
    frames = codes[:8]
    parts = [frame_hidden, talker.model.codec_embedding(frames[:, 0])]
    tables = talker.code_predictor.model.codec_embedding
    parts += [tables[j - 1](frames[:, j]) for j in range(1, 15)]
    predicted = talker.code_predictor.forward_finetune(inputs_embeds=torch.stack(parts, 1))
    logits = predicted.logits
    assert torch.equal(logits.argmax(-1), frames[:, 1:])
    out[f"{kind}_frame_hidden"] = frame_hidden.numpy()
    out[f"{kind}_frame_logits"] = logits.numpy()


def record_speaker(reference: Any, out: dict[str, Any]) -> torch.Tensor:
    noise = np.random.Generator(np.random.PCG64(1)).standard_normal(24000)
    sweep = np.sin(2 * np.pi * np.cumsum(np.linspace(80, 9000, 24000)) / 24000)
    clip = np.round((0.3 * sweep + 0.02 * noise) * 32767).astype(np.int16)
    samples = clip.astype(np.float32) / 32768
    mel = reference.mel_spectrogram(
        torch.from_numpy(samples)[None],
        n_fft=1024,
        num_mels=128,
        sampling_rate=24000,
        hop_size=256,
        win_size=1024,
        fmin=0,
        fmax=12000,
    )
    vector = build_tiny(reference, "base").extract_speaker_embedding(samples, 24000)
    out["clip"] = clip
    out["clip_mel"] = mel[0].T[::7].numpy()
    out["clip_vector"] = vector.numpy()
    return vector


def record_published(reference: Any, out: dict[str, Any]) -> None:
    counts = {}
    for size, hidden, inner in (("0b6", 1024, 3072), ("1b7", 2048, 6144)):
        for kind in ("base", "custom_voice"):
            config = published_config(size, kind, hidden, inner)
            with torch.device("meta"):
                model = build(reference, config)
            shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
            digest = hashlib.sha256(json.dumps(shapes, sort_keys=True).encode()).hexdigest()
            out[f"tensors_{size}_{kind}"] = digest
            out[f"config_{size}_{kind}"] = json.dumps(config)
            counts[f"{size}_{kind}"] = sum(p.numel() for p in model.parameters())
    print(counts)
    out["counts"] = json.dumps(counts)


def published_config(size: str, kind: str, hidden: int, inner: int) -> dict[str, Any]:
    """The sizes of a published config.json; the ids are the tiny one's and count for nothing."""
    config = tiny_tts.tiny_config(kind)
    config["talker_config"] |= {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 3072,
        "text_vocab_size": 151936,
        "text_hidden_size": 2048,
    }
    config["talker_config"]["code_predictor_config"] |= {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 5,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 2048,
    }
    if kind == "base":  # the other keys are left to the defaults, as published
        config["speaker_encoder_config"] = {"enc_dim": hidden, "sample_rate": 24000}
    return config


def main() -> None:
    """Write tests/golden/tts.npz."""
    torch.set_num_threads(2)
    reference = import_reference()
    from transformers import logging

    logging.set_verbosity_error()
    out: dict[str, Any] = {"seed": np.int64(tiny_tts.SEED)}
    vector = record_speaker(reference, out)
    record_forms(reference, out, vector)
    tokens = tokenizer()
    turns = [(text, assistant_turn(text) + "<|im_start|>assistant\n") for text in TOKENISED]
    out["tokens"] = json.dumps([[text, tokens(turn)["input_ids"]] for text, turn in turns])
    shared = {"text": TEXT, "ref_text": REF_TEXT}
    out["forms"] = json.dumps({name: shared | form for name, form in FORMS.items()})
    record_published(reference, out)
    np.savez_compressed(HERE / "tts.npz", **out)
    print((HERE / "tts.npz").stat().st_size, "bytes")


if __name__ == "__main__":
    main()
