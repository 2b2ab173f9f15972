"""Train izwi-tiny-chat on random conversations of the closed world.

No corpus is stored: processes draw conversations while the device trains, so repetitions are rare.
The loss is on the assistant's messages, with a small weight on the other tokens.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from izwi_models.qwen3.decoder import decode
from izwi_models.qwen3_chat.config import EMBEDDING, PREFIX, read_config, tensor_shapes
from izwi_models.tiny.recipes.chat import settings
from izwi_models.tiny.recipes.chat.conversations import (
    Tokens,
    draw_trained,
    encode,
    system_message,
)
from izwi_models.tiny.recipes.chat.wording import Draw
from izwi_models.tiny.recipes.fused import FusedNorms
from izwi_models.tiny.recipes.harness import (
    Clock,
    FlatWeights,
    Log,
    Optimizer,
    Stepper,
    initial_weights,
    join_ranks,
    learning_rate,
    leave_ranks,
    resume_weights,
    save_tensors,
)

# Lengths that conversations are padded to, in tokens; longer ones are skipped.
_EDGES = (*range(96, 257, 32), *range(320, 641, 64), *range(768, 1793, 128))
LONGEST_TRAINED = _EDGES[-1]
_SPOKEN = 0.5  # share of conversations with numbers in words
_LOGGED = 200  # steps between lines of the log


class Batch(NamedTuple):
    """Conversations of similar length: (rows, length) int64 ids and float32 loss weights."""

    ids: Tensor
    weights: Tensor


class Conversations(IterableDataset[Batch]):
    """An endless stream of batches; each process draws its own conversations."""

    def __init__(self, tokens_per_batch: int, question_weight: float, seed: int):
        self._tokens, self._seed = tokens_per_batch, seed
        self._question_weight = question_weight

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        dice = random.Random(self._seed * 1000 + (worker.id if worker else 0))
        waiting: dict[int, list[Tokens]] = defaultdict(list)
        while True:
            draw = Draw(dice, spoken=dice.random() < _SPOKEN)
            dialogue = draw_trained(draw)
            tokens = encode(dialogue, system_message(dialogue, dice))
            edge = next((edge for edge in _EDGES if len(tokens.ids) <= edge), None)
            if edge is None:
                continue
            rows = waiting[edge]
            rows.append(tokens)
            if len(rows) == self._tokens // edge:
                yield _padded(rows, edge, self._question_weight)
                rows.clear()


def _padded(rows: list[Tokens], length: int, question_weight: float) -> Batch:
    ids = np.full((len(rows), length), settings.PAD, np.int64)
    weights = np.zeros((len(rows), length), np.float32)
    for row, tokens in enumerate(rows):
        count = len(tokens.ids)
        ids[row, :count] = tokens.ids
        weights[row, :count] = np.where(tokens.answers, 1.0, question_weight)
    return Batch(torch.from_numpy(ids), torch.from_numpy(weights))


class ChatTrainer:
    """The model in training: weights, optimizer and loss."""

    def __init__(self, out: Path, device: torch.device, seed: int):
        self.device, self.out = device, out
        write_folder(out)
        self.config = read_config(out)
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.ops = FusedNorms(device, self.dtype)
        tensors = initial_weights(tensor_shapes(self.config), seed)
        self.resumed = resume_weights(tensors, out / "model.safetensors")
        self.weights = FlatWeights(tensors, device)
        self.optimizer = Optimizer(self.weights, decay=0.05, orthogonal=True)
        self.metrics = torch.zeros(3, device=device)  # loss, right tokens, right answers

    def hold(self, batch: Batch) -> None:
        """Compute the gradient of a batch. May be captured."""
        loss, metrics = self.loss(batch)
        self.optimizer.hold(loss)
        self.metrics.lerp_(torch.stack([loss.detach(), *metrics]), 0.02)

    def loss(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Compute the mean cross entropy, and the shares of right tokens and right answers."""
        ids, weights = batch
        views = self.weights.views(self.dtype)
        table = views[EMBEDDING]
        rows, length = ids.shape
        context = self.ops.dense_context(rows, length)
        x = F.embedding(ids, table)
        hidden = decode(self.ops, views, self.config, PREFIX, x, context)
        logits = F.linear(hidden[:, :-1], table).float()
        following, weighs = ids[:, 1:], weights[:, 1:]
        losses = F.cross_entropy(logits.flatten(0, 1), following.flatten(), reduction="none")
        loss = (losses.view_as(weighs) * weighs).sum() / weighs.sum()
        answers = weighs == 1
        right = logits.detach().argmax(-1) == following
        share = (right & answers).sum() / answers.sum()
        whole = (right | ~answers).all(1).float().mean()
        return loss, (share, whole)

    def save(self) -> None:
        """Write the averaged weights in the published layout."""
        views = self.weights.views(torch.float32, self.optimizer.averaged)
        save_tensors(views, self.out / "model.safetensors", torch.float16)


def write_folder(out: Path) -> None:
    """Write all files of the checkpoint except its weights."""
    out.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": settings.CONFIG,
        "generation_config.json": settings.GENERATION,
        "tokenizer_config.json": settings.tokenizer_config(),
        "vocab.json": settings.byte_tokens(),
    }
    for name, values in files.items():
        (out / name).write_text(json.dumps(values, indent=2) + "\n")
    (out / "merges.txt").write_text("#version: 0.2\n")


def train(trainer: ChatTrainer, args: argparse.Namespace, rank: int) -> None:
    """Train for the given time, and write the checkpoint at intervals."""
    clock = Clock(args.seconds)
    log = Log(args.out.with_suffix(".log"), clock)
    stepper = Stepper(trainer.device, capture=not args.plain)
    data = Conversations(args.tokens, args.question_weight, args.seed * 100 + rank)
    loader = DataLoader(
        data,
        batch_size=None,
        num_workers=args.workers,
        pin_memory=trainer.device.type == "cuda",
        prefetch_factor=8 if args.workers else None,
    )
    buffers: dict[int, Batch] = {}
    saved = 0.0
    if rank == 0:
        log(f"{trainer.weights.flat.numel() / 1e6:.2f} M parameters, {trainer.resumed} resumed")
    for step, batch in enumerate(loader):
        share = clock.joint_share(trainer.device) if step % 20 == 0 else clock.share
        if step % 20 == 0 and share >= 1:
            break
        length = batch.ids.shape[1]
        if length not in buffers:
            buffers[length] = Batch(*(values.to(trainer.device) for values in batch))
        for kept, values in zip(buffers[length], batch, strict=True):
            kept.copy_(values, non_blocking=True)
        trainer.optimizer.rate.fill_(learning_rate(share, step, args.rate))
        stepper.run(length, partial(trainer.hold, buffers[length]))
        trainer.optimizer.apply()
        if rank == 0 and (step in (1, 10, 50) or step % _LOGGED == 0):
            loss, right, whole = trainer.metrics.tolist()
            log(f"step {step}: loss {loss:.4f}, tokens right {right:.4f}, all right {whole:.4f}")
        if rank == 0 and clock.elapsed - saved > 60:
            saved = clock.elapsed
            trainer.save()
    if rank == 0:
        trainer.save()
        log(f"done after {step} steps")


def main() -> None:
    """Train, continuing from the checkpoint in the output folder if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="checkpoint folder")
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--tokens", type=int, default=131_072, help="padded tokens in a batch")
    parser.add_argument(
        "--question-weight", type=float, default=0.05, help="weight of tokens outside the answers"
    )
    parser.add_argument("--workers", type=int, default=12, help="processes that draw conversations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="no CUDA graphs")
    args = parser.parse_args()
    rank, _, device = join_ranks()
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(args.seed)
    train(ChatTrainer(args.out, device, args.seed), args, rank)
    leave_ranks()


if __name__ == "__main__":
    main()
