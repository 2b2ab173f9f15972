"""Train the byte-level BPE tokenizer of the embedded speech and transcription checkpoints."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from izwi_models.qwen3 import tokenizer as qwen
from izwi_models.tiny.recipes.settings import SPECIAL_TOKENS, VOCABULARY

# Words of the chat templates, which must be one token each.
_TEMPLATE_WORDS = ("assistant", "system", "user", "language", " English")
_OFTEN = 100_000


def train_tokenizer(sentences: list[str]) -> Tokenizer:
    """Learn merges on text that is split by Qwen's pre-tokenization."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(qwen._SPLIT), behavior="isolated")
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_of])
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    templates = [word for word in _TEMPLATE_WORDS for _ in range(_OFTEN)]
    tokenizer.train_from_iterator([*sentences, *templates], trainer)
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write vocab.json, merges.txt and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.model.save(str(folder))
    listed = {
        str(VOCABULARY + i): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token != "<asr_text>",  # the published one survives decoding too
        }
        for i, token in enumerate(SPECIAL_TOKENS)
    }
    config = {
        "add_prefix_space": False,
        "added_tokens_decoder": listed,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "Qwen2Tokenizer",
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text)


def main() -> None:
    """Train on train.txt and write the files into the checkpoint folders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path, help="folder with train.txt")
    parser.add_argument("folders", type=Path, nargs="+", help="checkpoint folders")
    args = parser.parse_args()
    tokenizer = train_tokenizer((args.text / "train.txt").read_text().splitlines())
    for folder in args.folders:
        write_tokenizer(tokenizer, folder)
    words = {word: tokenizer.encode(word).ids for word in _TEMPLATE_WORDS}
    print(f"{tokenizer.get_vocab_size()} tokens; template words {words}")


if __name__ == "__main__":
    main()
