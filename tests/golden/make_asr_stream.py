"""Make tests/golden/asr_stream.json: how the reference recogniser streams.

The tests read the file alone; run this only to make it anew, from the root of the repository and
in the first environment of make_asr.py:

    python tests/golden/make_asr_stream.py

The reference streams through vLLM only; here what stands for vLLM is a script, or its own
transformers model on random weights. The file holds

    scripted   [{language, context, rules [chunks, tokens], generated [text, ...],
               steps [{prefix, ids}, ...]}, ...]; the last text answers `finish`; `ids` are those of
               the prompt, the audio as one pad
    run        {seconds, chunk_s, language, tokens, generated [text, ...], prefixes [text, ...],
               margin, answer [language, text]}
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from tests.golden.make_asr import (  # noqa: E402
    hide_torchaudio,
    reference,
    reference_processor,
    tensors,
)
from tests.models.tiny_asr import SPECIALS, TINY, waveform  # noqa: E402

SCRIPTS: tuple[tuple[str | None, str, tuple[int, int], tuple[str, ...]], ...] = (
    (
        None,
        "",
        (2, 5),
        (
            "language English<asr_text>the",
            "language English<asr_text>then the system",
            "stands in the land, and",
            " and then it thanked them",
            "hem all, the end.",
            " of it.",
        ),
    ),
    (
        "German",
        "the system\n\nland",
        (1, 3),
        ("schöne Straße", "aße 你好", "你好吗", "吗\ufffd weiter so", "und weiter so", " ganz"),
    ),
    (None, "ctx", (2, 5), ("", "language Chi", "nese<asr_text>你好世界", "世界和平的人们", "。")),
    ("English", "", (0, 4), ("\n\nfirst", "t line and more", "ore of it", "")),
    ("English", "", (3, 2), ("one", "one two", "one two three", "ee four five")),
)
CHUNK_S, SECONDS, STEPS, LANGUAGE = 1.0, 5.4, 8, None


def main() -> None:
    """Write the file."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(2)
    hide_torchaudio()
    processor = reference_processor()
    made = {"scripted": [scripted(processor, *case) for case in SCRIPTS], "run": run(processor)}
    path = HERE / "asr_stream.json"
    path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(path, path.stat().st_size, "bytes")


def streaming(processor: Any, generate: Callable[[dict[str, Any]], str]) -> Any:
    """The reference's wrapper over something that answers one prompt."""
    from qwen_asr.inference.qwen3_asr import Qwen3ASRModel

    def answers(batch: list[dict[str, Any]], **_: Any) -> list[Any]:
        return [SimpleNamespace(outputs=[SimpleNamespace(text=generate(ask))]) for ask in batch]

    return Qwen3ASRModel(
        backend="vllm",
        model=SimpleNamespace(generate=answers),
        processor=processor,
        sampling_params=None,
        max_new_tokens=None,
    )


def scripted(
    processor: Any,
    language: str | None,
    context: str,
    rules: tuple[int, int],
    generated: tuple[str, ...],
) -> dict[str, Any]:
    """Prefixes and prompts where the answers are given."""
    script, prompts = iter(generated), []

    def generate(ask: dict[str, Any]) -> str:
        prompts.append(ask["prompt"])
        return next(script)

    wrapper = streaming(processor, generate)
    state = wrapper.init_streaming_state(context, language, *rules, chunk_size_sec=1.0)
    for _ in generated[1:]:
        wrapper.streaming_transcribe(np.zeros(16000, np.float32), state)
    wrapper.streaming_transcribe(np.zeros(1000, np.float32), state)
    wrapper.finish_streaming_transcribe(state)
    assert len(prompts) == len(generated)
    return {
        "language": language,
        "context": context,
        "rules": rules,
        "generated": generated,
        "steps": [
            {
                "prefix": prompt.removeprefix(state.prompt_raw),
                "ids": processor.tokenizer(prompt)["input_ids"],
            }
            for prompt in prompts
        ],
    }


def run(processor: Any) -> dict[str, Any]:
    """One stream on random weights, cut into chunks, with a tail."""
    model = reference(TINY)
    model.load_state_dict(tensors(model), strict=True)
    stops = [SPECIALS["<|im_end|>"], SPECIALS["<|endoftext|>"]]
    generated, prompts, margins = [], [], []

    def generate(ask: dict[str, Any]) -> str:
        prompts.append(ask["prompt"])
        audio = ask["multi_modal_data"]["audio"]
        inputs = processor(text=[ask["prompt"]], audio=audio, return_tensors="pt")
        model.thinker.rope_deltas = None
        with torch.no_grad():
            out = model.generate(
                **inputs,
                max_new_tokens=STEPS,
                eos_token_id=stops,
                output_logits=True,
            )
        margins.extend(float(-np.diff(step.topk(2).values[0])[0]) for step in out.logits)
        ids = out.sequences[0, inputs["input_ids"].shape[1] :]
        generated.append(processor.tokenizer.decode(ids, skip_special_tokens=True))
        return generated[-1]

    wrapper = streaming(processor, generate)
    state = wrapper.init_streaming_state("", LANGUAGE, chunk_size_sec=CHUNK_S)
    samples = waveform(SECONDS)
    for start in range(0, len(samples), 6000):
        wrapper.streaming_transcribe(samples[start : start + 6000], state)
    wrapper.finish_streaming_transcribe(state)
    print(generated, "margin", min(margins))
    assert min(margins) > 0.01
    return {
        "seconds": SECONDS,
        "chunk_s": CHUNK_S,
        "language": LANGUAGE,
        "tokens": STEPS,
        "generated": generated,
        "prefixes": [prompt.removeprefix(state.prompt_raw) for prompt in prompts],
        "margin": min(margins),
        "answer": [state.language, state.text],
    }


if __name__ == "__main__":
    main()
