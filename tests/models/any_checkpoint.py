"""Small checkpoints of random weights that izwi has no family for, as transformers writes them."""

from __future__ import annotations

import json

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

END = "<|end|>"
TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m.role }}: {{ m.content }}<|end|>\n{% endfor %}"
    "<|turn|>assistant:"
)


def write_llama(folder, seed=0):
    """Write a Llama with a byte-level tokenizer and a template; returns transformers' model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
    )
    return _written(folder, LlamaForCausalLM(config), 256)


def write_mamba(folder, seed=0):
    """Write a Mamba, whose state transformers' continuous batching does not hold."""
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(seed)
    config = MambaConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=2, state_size=8, initializer_range=0.3
    )
    return _written(folder, MambaForCausalLM(config), 256)


def _written(folder, model, end_id):
    model.generation_config.eos_token_id = end_id
    model.save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END, "<|turn|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": END,
                "chat_template": TEMPLATE,
            }
        )
    )
    return model.eval()
