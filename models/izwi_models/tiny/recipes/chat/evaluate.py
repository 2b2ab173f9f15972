"""Score held-out questions, with wordings and numbers that were not trained.

An answer is right if each of its tokens, including the end, is the most likely one after the right
tokens before it. That is equivalent to greedy decoding giving the answer, and takes one pass.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from safetensors.torch import load_file
from torch import Tensor

from izwi.backends.torch.ops import TorchOps
from izwi_models.qwen3.decoder import decode
from izwi_models.qwen3_chat.config import EMBEDDING, PREFIX, ChatConfig, read_config
from izwi_models.tiny.recipes.chat import settings
from izwi_models.tiny.recipes.chat.conversations import (
    KINDS,
    Tokens,
    draw_dialogue,
    encode,
    system_message,
)
from izwi_models.tiny.recipes.chat.wording import Draw

_ROWS = 32


@dataclass(slots=True)
class Scores:
    """Numbers of answers and of right answers, by kind of question; texts of wrong ones."""

    asked: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def shares(self) -> dict[str, float]:
        """Return the share of right answers of each kind, and of all."""
        kinds = {kind: self.right[kind] / count for kind, count in sorted(self.asked.items())}
        return kinds | {"all": self.right.total() / max(self.asked.total(), 1)}


class Asked:
    """A checkpoint under evaluation."""

    def __init__(self, config: ChatConfig, weights: dict[str, Tensor], device: torch.device):
        self._config, self._weights, self._device = config, weights, device
        self._ops = TorchOps(device)

    @torch.no_grad()
    def predictions(self, rows: list[Tokens]) -> list[Tensor]:
        """Return the most likely id after each id of each conversation, (n - 1,) int64 each."""
        length = max(len(row.ids) for row in rows)
        ids = torch.full((len(rows), length), settings.PAD)
        for place, row in enumerate(rows):
            ids[place, : len(row.ids)] = torch.from_numpy(row.ids)
        table = self._weights[EMBEDDING]
        context = self._ops.dense_context(len(rows), length)
        x = F.embedding(ids.to(self._device), table)
        hidden = decode(self._ops, self._weights, self._config, PREFIX, x, context)
        best = F.linear(hidden, table).argmax(-1).cpu()
        return [line[: len(row.ids) - 1] for line, row in zip(best, rows, strict=True)]


def score(asked: Asked, number: int, seed: int, *, held_out: bool = True) -> Scores:
    """Score `number` conversations of each kind by the answer to their last question.

    Args:
        asked: The checkpoint.
        number: Conversations of each kind.
        seed: Seed of the conversations.
        held_out: Ask held-out questions; otherwise those that may have been trained.
    """
    dice, scores = random.Random(seed), Scores()
    for kind in KINDS:
        for begin in range(0, number, _ROWS):
            rows, shown = [], []
            for place in range(begin, min(begin + _ROWS, number)):
                draw = Draw(dice, held_out=held_out, spoken=place % 2 == 0)
                dialogue = draw_dialogue(draw, kind)
                rows.append(encode(dialogue, system_message(dialogue, dice)))
                shown.append(f"{kind}: {dialogue.turns[-1].user}")
            for tokens, best, question in zip(rows, asked.predictions(rows), shown, strict=True):
                said = tokens.spans[-1]
                truth = torch.from_numpy(tokens.ids[said[0] : said[1]])
                given = best[said[0] - 1 : said[1] - 1]
                scores.asked[kind] += 1
                if torch.equal(truth, given):
                    scores.right[kind] += 1
                else:
                    scores.wrong.append(f"{question} -> {_text(given)} | {_text(truth)}")
    return scores


def load(folder: Path, device: torch.device) -> Asked:
    """Load a checkpoint folder."""
    weights = load_file(folder / "model.safetensors")
    return Asked(read_config(folder), {n: t.float().to(device) for n, t in weights.items()}, device)


def _text(ids: Tensor) -> str:
    return bytes(value for value in ids.tolist() if value < 256).decode(errors="replace")


def main() -> None:
    """Print the scores and some wrong answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="checkpoint folder")
    parser.add_argument("--number", type=int, default=200, help="questions of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--trained", action="store_true", help="ask questions that may have been trained"
    )
    parser.add_argument("--wrong", type=int, default=20, help="wrong answers to print")
    parser.add_argument("--out", type=Path, help="write the scores to this JSON file")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    scores = score(load(args.folder, device), args.number, args.seed, held_out=not args.trained)
    for line in scores.wrong[: args.wrong]:
        print(line)
    print(json.dumps(scores.shares(), indent=2))
    if args.out:
        args.out.write_text(json.dumps(scores.shares(), indent=2) + "\n")


if __name__ == "__main__":
    main()
