"""The ids around audio and text of a transcriber's training, and texts without audio."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.tiny.recipes.data import text_table
from izwi_models.tiny.recipes.settings import token_id

_LONGEST_UNSPOKEN = 40  # ids


class Template:
    """The ids around audio and text."""

    def __init__(self, tokenizer: QwenTokenizer):
        start, end = token_id("<|im_start|>"), token_id("<|im_end|>")
        newline = tokenizer.encode("\n")
        self.before = [start, *tokenizer.encode("system\n"), end, *newline]
        self.before += [start, *tokenizer.encode("user\n"), token_id("<|audio_start|>")]
        self.after = [token_id("<|audio_end|>"), end, *newline]
        self.after += [start, *tokenizer.encode("assistant\n")]
        self.opening = [*tokenizer.encode("language English"), token_id("<asr_text>")]
        self.end = end


def unspoken_answers(
    path: Path | None, template: Template, tokenizer: QwenTokenizer, device: torch.device
) -> tuple[Tensor, ...]:
    """Return answers of texts that nobody says, (n, ids), and their lengths; () without a file.

    Args:
        path: A text a line; long ones are left out.
        template: Of the prompt.
        tokenizer: Splits texts into ids.
        device: Device of the tensors.
    """
    if path is None:
        return ()
    rows = [
        [*template.opening, *tokenizer.encode(text), template.end]
        for text in path.read_text("utf-8").splitlines()
    ]
    return text_table([row for row in rows if len(row) <= _LONGEST_UNSPOKEN], device)
