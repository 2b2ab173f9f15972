"""Make tests/golden/vl.npz: what transformers computes of Qwen3-VL from a seed.

The tests read the file alone; run this only to make it anew, from the root of the repository:

    python tests/golden/make_vl.py

It needs transformers 5.23.0, torch 2.13.0 (cpu) and Pillow.

vl.npz holds (float32 unless said):

    images        JSON, one object per image: width, height, seed, grid (rows, columns of patches),
                  digest (SHA-256 of the processor's pixel_values)
    encoded_{n}   (tokens, 3 * 48 / CODE_STEP): image n's embeddings and DeepStack features
    cases         JSON, one object per model and conversation: tied, turns (text, or an image's
                  number, in lists), ids, rotary (3 lists), greedy (ids), margin
    logits_{n}    (STEPS, 512 / LOGIT_STEP) of case n, teacher-forced with `greedy`
    real          JSON, {size: {config, digest, names, parameters}}
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from tests.models.tiny_chat import write_tokenizer  # noqa: E402
from tests.models.tiny_vl import (  # noqa: E402
    GAINS,
    PIXELS,
    SEED,
    SPECIALS,
    TEMPLATE,
    TEXT,
    TINY,
    UNTIED,
    VISION,
    drawn_image,
)
from tests.random_weights import random_weights  # noqa: E402

LOGIT_STEP, CODE_STEP = 7, 5
STEPS = 20
# width, height
SIZES = ((64, 64), (100, 70), (37, 211), (640, 480), (20, 24), (96, 48), (300, 9))
# Turns of the user and the assistant; a number is an image.
CONVERSATIONS: tuple[tuple[tuple[Any, ...], ...], ...] = (
    ((0, "What is this?"),),
    (("Look: ", 1, " and then ", 4, "compare them."),),
    (
        ("Hello there.",),
        ("Hi.",),
        (2, "Now?"),
        ("the system",),
        ("And this ", 3, 5),
    ),
    (("Only words, no image.",),),
)

# hidden, intermediate, layers, heads, tied; vision: hidden, inner, depth, DeepStack layers.
# The published config.json of each size.
REAL: dict[str, tuple[tuple[int, int, int, int, bool], tuple[int, int, int, list[int]]]] = {
    "2B": ((2048, 6144, 28, 16, True), (1024, 4096, 24, [5, 11, 17])),
    "4B": ((2560, 9728, 36, 32, True), (1024, 4096, 24, [5, 11, 17])),
    "8B": ((4096, 12288, 36, 32, False), (1152, 4304, 27, [8, 16, 24])),
}


def main() -> None:
    """Write the file."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    processor = make_processor()
    images = [drawn_image(width, height, n) for n, (width, height) in enumerate(SIZES)]
    made: dict[str, Any] = {"real": json.dumps(real())}
    models = [reference(TINY), reference(UNTIED)]
    facts = []
    for n, image in enumerate(images):
        known, encoded = processed(processor, models[0], image)
        facts.append({"width": SIZES[n][0], "height": SIZES[n][1], "seed": n, **known})
        made[f"encoded_{n}"] = encoded[:, ::CODE_STEP]
    cases = []
    for model, tied in zip(models, (True, False), strict=True):
        for turns in CONVERSATIONS:
            case, logits = answered(processor, model, images, turns)
            made[f"logits_{len(cases)}"] = logits[:, ::LOGIT_STEP].numpy()
            cases.append({"tied": tied, "turns": turns, **case})
    made |= {"images": json.dumps(facts), "cases": json.dumps(cases)}
    np.savez_compressed(HERE / "vl.npz", **made)
    print("vl.npz", (HERE / "vl.npz").stat().st_size, "bytes")


def make_processor() -> Any:
    """The reference's processor over the tiny vocabulary, with images resized by Pillow."""
    from transformers import AutoTokenizer
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder), TEMPLATE, SPECIALS)
        (Path(folder) / "config.json").write_text('{"model_type": "qwen3"}')
        tokens = AutoTokenizer.from_pretrained(folder)
    values = {key: value for key, value in PIXELS.items() if key != "image_processor_type"}
    processor = Qwen3VLProcessor.__new__(Qwen3VLProcessor)
    processor.image_processor, processor.tokenizer = Qwen2VLImageProcessorPil(**values), tokens
    return processor


def processed(processor: Any, model: Any, image: Any) -> tuple[dict[str, Any], Any]:
    """Facts of one image and its encoding, (tokens, 3 * width)."""
    out = processor.image_processor(images=[image], return_tensors="np")
    pixels, grid = out["pixel_values"], out["image_grid_thw"]
    assert pixels.dtype == np.float32
    with torch.no_grad():
        seen = model.model.get_image_features(torch.tensor(pixels), torch.tensor(grid))
    parts = [seen.pooler_output[0], *[one[0] for one in seen.deepstack_features]]
    digest = hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest()
    known = {"grid": grid[0, 1:].tolist(), "digest": digest}
    return known, torch.cat(parts, 1).numpy()


def reference(values: dict[str, Any]) -> Any:
    """The reference model with weights from the seed."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**values)).eval()
    model.set_attn_implementation("eager")
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if values["tie_word_embeddings"]:
        del shapes["lm_head.weight"]
    weights = random_weights(shapes, SEED, GAINS)
    missing, unexpected = model.load_state_dict(
        {name: torch.from_numpy(weight) for name, weight in weights.items()}, strict=False
    )
    model.tie_weights()
    assert not unexpected
    assert missing == (["lm_head.weight"] if values["tie_word_embeddings"] else [])
    rope = model.config.text_config.rope_parameters
    assert float(rope["rope_theta"]) == TEXT["rope_theta"]
    assert rope["mrope_section"] == TEXT["rope_scaling"]["mrope_section"]
    return model


def answered(
    processor: Any, model: Any, images: list[Any], turns: Any
) -> tuple[dict[str, Any], torch.Tensor]:
    """Facts of one case and its teacher-forced logits (STEPS, vocabulary)."""
    messages = []
    for n, turn in enumerate(turns):
        parts = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}
            for part in turn
        ]
        messages.append({"role": ("user", "assistant")[n % 2], "content": parts})
    text = processor.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    shown = [images[part] for turn in turns for part in turn if isinstance(part, int)]
    more: dict[str, Any] = {}
    if shown:
        out = processor.image_processor(images=shown, return_tensors="np")
        grid = torch.tensor(out["image_grid_thw"])
        more = {"pixel_values": torch.tensor(out["pixel_values"]), "image_grid_thw": grid}
        pad, places = "<|image_pad|>", text.split("<|image_pad|>")
        counts = [int(one.prod()) // VISION["spatial_merge_size"] ** 2 for one in grid]
        text = places[0]
        for count, rest in zip(counts, places[1:], strict=True):
            text += pad * count + rest
    ids = processor.tokenizer(text, add_special_tokens=False)["input_ids"]
    asked = torch.tensor([ids])

    def kinds(whole: torch.Tensor) -> dict[str, Any]:
        return {"mm_token_type_ids": (whole == 278).int()} if shown else {}

    with torch.no_grad():
        out = model.generate(
            asked,
            do_sample=False,
            max_new_tokens=STEPS,
            eos_token_id=None,
            pad_token_id=269,
            **more,
            **kinds(asked),
        )
        model.model.rope_deltas = None
        fed = out[:, :-1]
        logits = model(fed, **more, **kinds(fed)).logits[0, len(ids) - 1 :]
        rotary = torch.arange(len(ids)).expand(3, -1)
        if shown:
            rotary = model.model.get_rope_index(asked, (asked == 278).int(), grid)[0][:, 0]
    greedy = out[0, len(ids) :].tolist()
    assert logits.argmax(-1).tolist() == greedy
    best = logits.topk(2).values
    margin = float((best[:, 0] - best[:, 1]).min())
    print(greedy, "margin", margin)
    assert margin > 2e-4  # ten times what float32 differs by
    assert len(set(greedy)) > 6
    assert 278 not in greedy
    return {"ids": ids, "rotary": rotary.tolist(), "greedy": greedy, "margin": margin}, logits


def real() -> dict[str, Any]:
    """Digest of the names and shapes of each published size."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    facts = {}
    for size, (text, vision) in REAL.items():
        hidden, inner, layers, heads, tied = text
        own, own_inner, depth, deep = vision
        values = {
            **TINY,
            "tie_word_embeddings": tied,
            "image_token_id": 151655,
            "text_config": TEXT
            | {
                "hidden_size": hidden,
                "intermediate_size": inner,
                "num_hidden_layers": layers,
                "num_attention_heads": heads,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "max_position_embeddings": 262144,
                "vocab_size": 151936,
                "rope_scaling": {
                    "mrope_interleaved": True,
                    "mrope_section": [24, 20, 20],
                    "rope_type": "default",
                },
            },
            "vision_config": VISION
            | {
                "hidden_size": own,
                "intermediate_size": own_inner,
                "depth": depth,
                "deepstack_visual_indexes": deep,
                "num_heads": 16,
                "num_position_embeddings": 2304,
                "out_hidden_size": hidden,
                "patch_size": 16,
            },
        }
        with torch.device("meta"):
            state = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**values)).state_dict()
        shapes = {name: list(tensor.shape) for name, tensor in state.items()}
        if tied:
            shapes.pop("lm_head.weight", None)
        digest = hashlib.sha256(json.dumps(sorted(shapes.items())).encode()).hexdigest()
        count = sum(int(np.prod(shape)) for shape in shapes.values())
        facts[size] = {"config": values, "digest": digest, "names": len(shapes)}
        facts[size]["parameters"] = count
    return facts


if __name__ == "__main__":
    main()
