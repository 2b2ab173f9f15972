"""Make tests/golden/asr.npz and asr_native.npz: what the reference recogniser computes from a seed.

The tests read the files alone; run this only to make them anew, from the root of the repository:

    python tests/golden/make_asr.py            writes asr.npz
    python tests/golden/make_asr.py native     writes asr_native.npz

The first needs python 3.11, torch 2.13.0 (cpu), transformers 4.57.6 and, installed without their
dependencies, qwen-asr 0.0.6, accelerate, librosa, soundfile, nagisa, soynlp and qwen-omni-utils;
the second needs transformers 5.23.0 and librosa.

The eager path of qwen-asr lets every token hear the whole audio; the mask that it builds and
forgets is put in here, and asr_native.npz comes from code that has the windows itself.

asr.npz holds (float32 unless said):

    features_{s}       every FEATURE_STEP-th value of the features (128, frames) of waveform(s)
    encoded_{s}        (tokens, 48), of waveform(s)
    cases              JSON, one object per case: seconds, context, language, prompt (ids), greedy
                       (ids), margin (smallest distance of the best two logits), answer
                       [language, text]
    logits_{n}         (steps, 512 / LOGIT_STEP) of case n, teacher-forced with `greedy`
    parsed             JSON, [[raw, forced, language, text], ...]
    splits             JSON, [[seconds, limit_s, search_s, [stops in samples]], ...]
    real               JSON, {size: {config, digest, names, parameters}}

asr_native.npz holds encoded_{s} and logits_{n} of the same cases.
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

from tests.models.tiny_asr import (  # noqa: E402
    GAINS,
    PREPROCESSOR,
    SEED,
    SPECIALS,
    TINY,
    waveform,
    write_tokenizer,
)
from tests.random_weights import random_weights  # noqa: E402

FEATURE_SECONDS = (0.35, 3.2, 20.0)
FEATURE_STEP = 37
ENCODE_SECONDS = (0.35, 1.0, 3.2, 8.0, 8.01, 20.0, 61.0)
LOGIT_STEP = 3
STEPS = 26
CASES: tuple[tuple[float, str, str | None], ...] = (
    (3.2, "", None),
    (9.1, "", "English"),
    (10.3, "", None),
    (1.7, "ctx words", None),
    (2.1, "the system\n\nland, ünïcode", "German"),
    (0.35, "ctx words", None),
)
RAW = [
    "",
    "   ",
    "plain words",
    " language English<asr_text> hello there ",
    "language english<asr_text>hello",
    "LANGUAGE cHINESE<asr_text>你好",
    "language None<asr_text>",
    "language None<asr_text>  still something",
    "language German\n\n<asr_text>zwei\nZeilen",
    "noise\nlanguage French <asr_text>a<asr_text>b",
    "language <asr_text>no name",
    "<asr_text>only text",
    "language English",
    "language English<asr_text>" + "a" * 20,
    "language English<asr_text>" + "a" * 21 + "b",
    "language English<asr_text>" + "ha" * 30 + " end",
    "language English<asr_text>" + "ha" * 19 + " end of it, that was not enough to count",
    "x" * 20 + "y" * 20,
    "x" * 20 + "y" * 19,
    "one two " * 25,
    "ab" * 20 + "cd" * 22 + "e" * 50,
    "0123456789" * 20 + "tail",
    "12345678901234567890A" * 30,
    "go. " * 20,
    "\n" * 30 + "x",
]


def main() -> None:
    """Write the file of the mode asked for."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(2)
    if sys.argv[1:] == ["native"]:
        made, name = native(json.loads(str(np.load(HERE / "asr.npz")["cases"]))), "asr_native.npz"
    else:
        made, name = packaged(), "asr.npz"
    np.savez_compressed(HERE / name, **made)
    print(name, (HERE / name).stat().st_size, "bytes")


# -- qwen-asr ---------------------------------------------------------------------------------
def packaged() -> dict[str, Any]:
    """Everything of asr.npz."""
    hide_torchaudio()
    from qwen_asr.inference.qwen3_asr import Qwen3ASRModel

    model, processor = reference(TINY), reference_processor()
    model.load_state_dict(tensors(model), strict=True)
    with_windows(model.thinker.audio_tower)
    wrapper = Qwen3ASRModel(
        backend="transformers",
        model=model,
        processor=processor,
        max_inference_batch_size=1,
        max_new_tokens=STEPS,
    )
    made: dict[str, Any] = {}
    for seconds in sorted({*FEATURE_SECONDS, *ENCODE_SECONDS}):
        features = extracted(processor, seconds)
        if seconds in FEATURE_SECONDS:
            made[f"features_{seconds}"] = features.flatten()[::FEATURE_STEP].numpy()
        if seconds in ENCODE_SECONDS:
            length = torch.tensor([features.shape[1]])
            with torch.no_grad():
                out = model.thinker.audio_tower(features, feature_lens=length)
            made[f"encoded_{seconds}"] = out.last_hidden_state.numpy()
    cases = []
    for n, case in enumerate(CASES):
        facts, logits = transcribed(wrapper, *case)
        made[f"logits_{n}"] = logits[:, ::LOGIT_STEP].numpy()
        cases.append(facts)
    return made | {
        "cases": json.dumps(cases),
        "parsed": json.dumps(parsed()),
        "splits": json.dumps(splits()),
        "real": json.dumps({size: real(size) for size in ("0.6B", "1.7B")}),
    }


def hide_torchaudio() -> None:
    """Let `import torchaudio` succeed and hold nothing: no wheel of it fits a CPU torch."""
    module = types.ModuleType("torchaudio")
    module.__spec__ = importlib.machinery.ModuleSpec("torchaudio", loader=None)
    module.__version__ = "2.11.0"  # type: ignore[attr-defined]
    sys.modules["torchaudio"] = module


def reference(values: dict[str, Any]) -> Any:
    """The reference model with its own initial weights."""
    from qwen_asr.core.transformers_backend import (
        Qwen3ASRConfig,
        Qwen3ASRForConditionalGeneration,
    )

    config = Qwen3ASRConfig(**{k: copy.deepcopy(v) for k, v in values.items() if k != "model_type"})
    thinker = config.thinker_config
    for part in (config, thinker, thinker.audio_config, thinker.text_config):
        part._attn_implementation = "sdpa"
    model = Qwen3ASRForConditionalGeneration(config).eval()
    model.thinker.lm_head.weight = model.thinker.model.embed_tokens.weight
    return model


def tensors(model: Any) -> dict[str, torch.Tensor]:
    """Seeded weights under the reference's own names; the tied head repeats the embedding."""
    head, embedding = "thinker.lm_head.weight", "thinker.model.embed_tokens.weight"
    shapes = {name: tuple(t.shape) for name, t in model.state_dict().items() if name != head}
    made = {k: torch.from_numpy(v) for k, v in random_weights(shapes, SEED, GAINS).items()}
    return made | {head: made[embedding]}


def with_windows(tower: Any) -> None:
    """Hand every layer the mask that the tower prepares but does not use."""
    for layer in tower.layers:

        def windowed(x: Any, lengths: Any, attention_mask: Any = None, _run: Any = layer.forward):
            return _run(x, lengths, attention_mask=tower._prepare_attention_mask(x, lengths))

        layer.forward = windowed


def reference_processor() -> Any:
    """The reference's processor over the tiny vocabulary; its template is not published alone."""
    from qwen_asr.core.transformers_backend import Qwen3ASRProcessor
    from tokenizers import AddedToken
    from transformers import Qwen2TokenizerFast, WhisperFeatureExtractor

    template = (
        "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' }}"
        "{%- if m.content is string -%}{{ m.content }}{%- else -%}"
        "{{ '<|audio_start|><|audio_pad|><|audio_end|>' }}{%- endif -%}"
        "{{ '<|im_end|>\\n' }}{%- endfor -%}{{ '<|im_start|>assistant\\n' }}"
    )
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        vocab = json.loads((Path(folder) / "vocab.json").read_text(encoding="utf-8"))
        # the reference wants its added tokens in the vocabulary, or it would number them itself
        (Path(folder) / "vocab.json").write_text(json.dumps(vocab | SPECIALS), encoding="utf-8")
        tokenizer = Qwen2TokenizerFast(
            vocab_file=f"{folder}/vocab.json",
            merges_file=f"{folder}/merges.txt",
            unk_token=None,
            bos_token=None,
            eos_token="<|im_end|>",
            pad_token="<|endoftext|>",
        )
    special = [name for name in SPECIALS if name != "<asr_text>"]
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.add_tokens([AddedToken("<asr_text>", special=False, normalized=False)])
    assert all(tokenizer.convert_tokens_to_ids(k) == v for k, v in SPECIALS.items())
    tokenizer.audio_token = "<|audio_pad|>"
    tokenizer.audio_bos_token, tokenizer.audio_eos_token = "<|audio_start|>", "<|audio_end|>"
    settings = {k: v for k, v in PREPROCESSOR.items() if k != "feature_extractor_type"}
    extractor = WhisperFeatureExtractor(**settings)
    return Qwen3ASRProcessor(extractor, tokenizer, chat_template=template)


def extracted(processor: Any, seconds: float) -> torch.Tensor:
    """Features (128, frames)."""
    inputs = processor(text=["<|audio_pad|>"], audio=[waveform(seconds)], return_tensors="pt")
    features: torch.Tensor = inputs["input_features"][0]
    return features


def transcribed(
    wrapper: Any, seconds: float, context: str, language: str | None
) -> tuple[dict[str, Any], torch.Tensor]:
    """Facts of one case and its teacher-forced logits (STEPS, vocabulary)."""
    text = wrapper._build_text_prompt(context, language)
    inputs = wrapper.processor(text=[text], audio=[waveform(seconds)], return_tensors="pt")
    stops = [SPECIALS["<|im_end|>"], SPECIALS["<|endoftext|>"]]
    wrapper.model.generation_config.eos_token_id = stops
    prompt = inputs["input_ids"][0]
    with torch.no_grad():
        wrapper.model.thinker.rope_deltas = None
        out = wrapper.model.generate(**inputs, max_new_tokens=STEPS, eos_token_id=stops)
        greedy = out.sequences[0, len(prompt) :]
        whole = torch.cat([prompt, greedy])[None]
        wrapper.model.thinker.rope_deltas = None
        forced = {**inputs, "input_ids": whole, "attention_mask": torch.ones_like(whole)}
        logits = wrapper.model.thinker(**forced).logits[0, len(prompt) - 1 : -1]
    best = logits.topk(2).values
    margin = float((best[:, 0] - best[:, 1]).min())
    print(seconds, language, repr(context), greedy.tolist(), "margin", margin)
    assert logits.argmax(-1).tolist() == greedy.tolist()
    assert len(greedy) >= 24
    assert margin > 0.02
    answer = wrapper.transcribe([(waveform(seconds), 16000)], context=context, language=language)[0]
    return {
        "seconds": seconds,
        "context": context,
        "language": language,
        "prompt": prompt.tolist(),
        "greedy": greedy.tolist(),
        "margin": margin,
        "answer": [answer.language, answer.text],
    }, logits


def parsed() -> list[list[str | None]]:
    """Answers read by the reference."""
    from qwen_asr.inference.utils import parse_asr_output

    asked = [(raw, None) for raw in RAW] + [(raw, "German") for raw in RAW]
    return [[raw, forced, *parse_asr_output(raw, user_language=forced)] for raw, forced in asked]


def splits() -> list[list[Any]]:
    """Where the reference cuts."""
    from qwen_asr.inference.utils import split_audio_into_chunks

    made = []
    for seconds, limit, search in ((30.0, 8.0, 1.0), (7.9, 8.0, 1.0), (61.0, 20.0, 5.0)):
        pieces = split_audio_into_chunks(waveform(seconds), 16000, limit, search_expand_sec=search)
        stops = np.cumsum([len(piece) for piece, _ in pieces]).tolist()
        made.append([seconds, limit, search, stops])
    return made


def real(size: str) -> dict[str, Any]:
    """Digest of the names and shapes of a published size, without its tied head."""
    big = size == "1.7B"
    values = copy.deepcopy(TINY)
    values["thinker_config"]["audio_config"].update(
        d_model=1024 if big else 896,
        encoder_layers=24 if big else 18,
        encoder_attention_heads=16 if big else 14,
        encoder_ffn_dim=4096 if big else 3584,
        output_dim=2048 if big else 1024,
        downsample_hidden_size=480,
    )
    values["thinker_config"]["text_config"].update(
        vocab_size=151936,
        hidden_size=2048 if big else 1024,
        intermediate_size=6144 if big else 3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
    )
    with torch.device("meta"):
        state = reference(values).state_dict()
    shapes = {k: list(v.shape) for k, v in state.items() if k != "thinker.lm_head.weight"}
    listed = json.dumps(sorted(shapes.items()))
    return {
        "config": values,
        "digest": hashlib.sha256(listed.encode()).hexdigest(),
        "names": len(shapes),
        "parameters": sum(state[name].numel() for name in shapes),
    }


# -- transformers 5 ---------------------------------------------------------------------------
def native(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything of asr_native.npz. Audio below 1 s is left out: it is padded differently there."""
    from transformers.models.qwen3_asr import Qwen3ASRConfig, Qwen3ASRForConditionalGeneration
    from transformers.models.qwen3_asr.feature_extraction_qwen3_asr import (
        Qwen3ASRFeatureExtractor,
    )

    thinker = TINY["thinker_config"]
    text = {k: v for k, v in thinker["text_config"].items() if not k.startswith("rope")}
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e6}
    unknown = ("conv_chunksize", "max_source_positions", "scale_embedding")
    audio = {k: v for k, v in thinker["audio_config"].items() if k not in unknown}
    config = Qwen3ASRConfig(
        audio_config=audio, text_config=text, audio_token_id=thinker["audio_token_id"]
    )
    model = Qwen3ASRForConditionalGeneration(config).eval()
    state = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    shapes = {published_name(name): tuple(t.shape) for name, t in state.items()}
    weights = random_weights(shapes, SEED, GAINS)
    loaded = {name: torch.from_numpy(weights[published_name(name)]) for name in state}
    loaded["lm_head.weight"] = loaded["model.language_model.embed_tokens.weight"]
    model.load_state_dict(loaded, strict=True)
    extractor = Qwen3ASRFeatureExtractor(feature_size=128)

    def features(seconds: float) -> dict[str, torch.Tensor]:
        out = extractor(
            [waveform(seconds)], sampling_rate=16000, padding="longest", return_attention_mask=True
        )
        return {"input_features": out["input_features"], "mask": out["attention_mask"]}

    made: dict[str, Any] = {}
    with torch.no_grad():
        for seconds in (s for s in ENCODE_SECONDS if s >= 1):
            read = features(seconds)
            out = model.model.get_audio_features(read["input_features"], read["mask"])
            out = getattr(out, "pooler_output", out)
            out = out if torch.is_tensor(out) else torch.cat(list(out))
            made[f"encoded_{seconds}"] = out.reshape(-1, audio["output_dim"]).numpy()
        for n, case in enumerate(cases):
            if case["seconds"] < 1:
                continue
            read, ids = features(case["seconds"]), torch.tensor([case["prompt"] + case["greedy"]])
            logits = model(
                input_ids=ids,
                input_features=read["input_features"],
                input_features_mask=read["mask"],
                attention_mask=torch.ones_like(ids),
            ).logits[0, len(case["prompt"]) - 1 : -1]
            assert logits.argmax(-1).tolist() == case["greedy"]
            made[f"logits_{n}"] = logits[:, ::LOGIT_STEP].numpy()
    return made


def published_name(name: str) -> str:
    """Name in the published layout of a tensor of transformers 5."""
    for ours, theirs in (
        ("thinker.audio_tower.proj1", "model.multi_modal_projector.linear_1"),
        ("thinker.audio_tower.proj2", "model.multi_modal_projector.linear_2"),
        ("thinker.audio_tower", "model.audio_tower"),
        ("thinker.model", "model.language_model"),
    ):
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    raise KeyError(name)


if __name__ == "__main__":
    main()
