"""Make tests/golden/chat.npz: what transformers computes of Qwen3 chat from a seed.

The tests read the file alone; run this only to make it anew, from the root of the repository:

    python tests/golden/make_chat.py TEMPLATES

It needs transformers 5.23.0 and torch 2.13.0 (cpu). TEMPLATES is a folder with the `chat_template`
of tokenizer_config.json of three checkpoints: asked.jinja (Qwen/Qwen3-0.6B), always.jinja
(Qwen/Qwen3-4B-Thinking-2507), never.jinja (Qwen/Qwen3-4B-Instruct-2507). They are not ours and not
kept here; what they make of conversations is.

chat.npz holds (float32 unless said):

    prompts       JSON, one object per conversation and template: template, thinking (or null),
                  messages, text, ids
    cases         JSON, one object per model and prompt: tied, prompt (ids), greedy (ids), margin
                  (smallest distance of the best two logits)
    logits_{n}    (steps, 512 / LOGIT_STEP) of case n, teacher-forced with `greedy`
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

from tests.models.tiny_chat import GAINS, SEED, SPECIALS, TINY, UNTIED, write_tokenizer  # noqa: E402
from tests.random_weights import random_weights  # noqa: E402

LOGIT_STEP = 7
STEPS = 24
SETTINGS: dict[str, tuple[bool | None, ...]] = {
    "ASKED": (None, True, False),
    "ALWAYS": (None,),
    "NEVER": (None,),
}

System, User, Assistant = "system", "user", "assistant"
THOUGHT = "<think>\nthe user\n\nsays hello\n</think>\n\nHello."
CONVERSATIONS: tuple[tuple[tuple[str, ...], ...], ...] = (
    ((User, "Hello there."),),
    ((System, "You are the system."), (User, "Ünïcode 你好 🙂 ok?")),
    ((User, "\n\n two lines\n"), (Assistant, "\n\nyes\n\n"), (User, "  and\tmore  \n\n")),
    ((User, "a"), (Assistant, THOUGHT), (User, "b"), (Assistant, "c"), (User, "d")),
    ((User, "a"), (Assistant, "x</think>y"), (User, "b"), (Assistant, "</think>"), (User, "")),
    ((User, "a"), (Assistant, "said", "\n\nthe thought\n"), (User, "b")),
    ((User, "a"), (Assistant, "\nsaid last")),
    ((User, "a"), (Assistant, THOUGHT)),
    ((User, "a"), (Assistant, "\n\nsaid", "the thought\n")),
    ((User, "a"), (Assistant, "first", "thought of it"), (Assistant, "second")),
    ((User, "a"), (Assistant, "first"), (Assistant, "second", "")),
    ((User, "a"), (System, "a later system"), (User, "b")),
    ((User, "a"), (Assistant, "f", "t"), (User, "<tool_response>\n3\n</tool_response>")),
    ((User, "a"), (Assistant, "f", "t"), (User, "<tool_response>\n3")),
    ((System, "nobody asks"),),
    ((Assistant, "I begin."), (Assistant, THOUGHT)),
)
# of the conversations, for the model's own numbers
SPOKEN = (0, 1, 3)

# hidden, intermediate, layers, heads, tied; all have 8 key-value heads of 128
REAL: dict[str, tuple[int, int, int, int, bool]] = {
    "0.6B": (1024, 3072, 28, 16, True),
    "1.7B": (2048, 6144, 28, 16, True),
    "4B": (2560, 9728, 36, 32, True),
    "8B": (4096, 12288, 36, 32, False),
}


def main(templates: Path) -> None:
    """Write the file."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    tokens = tokenizer()
    texts = {name: (templates / f"{name.lower()}.jinja").read_text("utf-8") for name in SETTINGS}
    prompts = [
        prompt(tokens, name, texts[name], thinking, conversation)
        for name, settings in SETTINGS.items()
        for thinking in settings
        for conversation in CONVERSATIONS
    ]
    made: dict[str, Any] = {"prompts": json.dumps(prompts), "real": json.dumps(real())}
    cases = []
    for config in (TINY, UNTIED):
        model = reference(config)
        for n in SPOKEN:
            facts, logits = answered(model, config["tie_word_embeddings"], prompts[n]["ids"])
            made[f"logits_{len(cases)}"] = logits[:, ::LOGIT_STEP].numpy()
            cases.append(facts)
    np.savez_compressed(HERE / "chat.npz", **made, cases=json.dumps(cases))
    print("chat.npz", (HERE / "chat.npz").stat().st_size, "bytes")


def tokenizer() -> Any:
    """The reference's tokenizer over the tiny vocabulary."""
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        (Path(folder) / "config.json").write_text('{"model_type": "qwen3"}')
        tokens = AutoTokenizer.from_pretrained(folder)
    assert all(tokens.convert_tokens_to_ids(name) == index for name, (index, _) in SPECIALS.items())
    return tokens


def prompt(
    tokens: Any, name: str, template: str, thinking: bool | None, conversation: Any
) -> dict[str, Any]:
    """Facts of one conversation in one template."""
    names = ("role", "content", "reasoning_content")
    messages = [dict(zip(names, message, strict=False)) for message in conversation]
    wanted = {} if thinking is None else {"enable_thinking": thinking}
    text = tokens.apply_chat_template(
        messages, chat_template=template, tokenize=False, add_generation_prompt=True, **wanted
    )
    ids = tokens(text, add_special_tokens=False)["input_ids"]
    same = tokens.apply_chat_template(
        messages, chat_template=template, add_generation_prompt=True, return_dict=False, **wanted
    )
    assert ids == same
    known = {"template": name, "thinking": thinking, "messages": messages}
    return known | {"text": text, "ids": ids}


def reference(values: dict[str, Any]) -> Any:
    """The reference model with weights from the seed."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    model = Qwen3ForCausalLM(Qwen3Config(**values)).eval()
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
    assert float(model.config.rope_parameters["rope_theta"]) == values["rope_theta"]
    return model


def answered(model: Any, tied: bool, ids: list[int]) -> tuple[dict[str, Any], torch.Tensor]:
    """Facts of one case and its teacher-forced logits (STEPS, vocabulary)."""
    asked = torch.tensor([ids])
    with torch.no_grad():
        out = model.generate(
            asked, do_sample=False, max_new_tokens=STEPS, eos_token_id=None, pad_token_id=269
        )
        logits = model(out[:, :-1]).logits[0, len(ids) - 1 :]
    greedy = out[0, len(ids) :].tolist()
    assert logits.argmax(-1).tolist() == greedy
    best = logits.topk(2).values
    margin = float((best[:, 0] - best[:, 1]).min())
    print("tied" if tied else "untied", greedy, "margin", margin)
    assert margin > 2e-4  # ten times what float32 differs by
    assert len(set(greedy)) > 6
    return {"tied": tied, "prompt": ids, "greedy": greedy, "margin": margin}, logits


def real() -> dict[str, Any]:
    """Digest of the names and shapes of each published size."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    facts = {}
    for size, (hidden, inner, layers, heads, tied) in REAL.items():
        values = TINY | {
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "tie_word_embeddings": tied,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 40960,
            "max_window_layers": layers,
            "vocab_size": 151936,
            "bos_token_id": 151643,
            "eos_token_id": 151645,
        }
        with torch.device("meta"):
            state = Qwen3ForCausalLM(Qwen3Config(**values)).state_dict()
        shapes = {name: list(tensor.shape) for name, tensor in state.items()}
        if tied:
            shapes.pop("lm_head.weight", None)
        digest = hashlib.sha256(json.dumps(sorted(shapes.items())).encode()).hexdigest()
        count = sum(int(np.prod(shape)) for shape in shapes.values())
        facts[size] = {"config": values, "digest": digest, "names": len(shapes)}
        facts[size]["parameters"] = count
    return facts


if __name__ == "__main__":
    main(Path(sys.argv[1]))
