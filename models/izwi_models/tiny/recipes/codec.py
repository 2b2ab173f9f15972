"""Train the 12 Hz codec of izwi-tiny-tts on synthesised speech: sound to codes and back.

The published encoder is causal, and it is trained directly: codes that look ahead would let a
talker cheat in training and babble when it runs freely.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from safetensors.torch import load_file
from torch import Tensor

from izwi.ops.torch_ops import TorchOps
from izwi_models.qwen3_codec.config import CodecConfig, codec_config
from izwi_models.qwen3_codec.decoder import decode_latents, zero_state
from izwi_models.qwen3_codec.encoder import encode_latents
from izwi_models.qwen3_codec.tensors import tensor_shapes
from izwi_models.tiny.recipes.data import Corpus
from izwi_models.tiny.recipes.harness import (
    Clock,
    FlatWeights,
    Log,
    Optimizer,
    initial_weights,
    learning_rate,
    resume_weights,
    save_tensors,
)
from izwi_models.tiny.recipes.residual import Codebooks
from izwi_models.tiny.recipes.settings import CODEC
from izwi_models.tiny.recipes.spectral import log_mel, spectral_loss
from izwi_models.tiny.recipes.speech import SAMPLE_RATE, UNKNOWN_PHONE

_SEMANTIC = "encoder.quantizer.semantic_residual_vector_quantizer"
_ACOUSTIC = "encoder.quantizer.acoustic_residual_vector_quantizer"
_FIRST, _REST = "decoder.quantizer.rvq_first", "decoder.quantizer.rvq_rest"
_PHONE_HEAD = "phone_head.weight"
_PHONES = UNKNOWN_PHONE + 1
_WARMUP_SHARE = 0.15  # of the time without quantiser
_SHAPES = ((24, 40), (72, 14))  # (frames, rows) of a batch: crops, and starts of utterances


def snake(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """The activation of `izwi.ops.torch_ops.TorchOps.snake`, for the compiler to fuse."""
    frequency = torch.exp(alpha)[:, None]
    amplitude = 1.0 / (torch.exp(beta) + 1e-9)[:, None]
    return x + amplitude * torch.sin(x * frequency).square()


class FusedOps(TorchOps):
    """The same operations with the decoder's activation compiled: it takes most of a step."""

    def __init__(self, device: torch.device, compiled: bool):
        super().__init__(device)
        torch._dynamo.config.recompile_limit = 64
        self._snake = torch.compile(snake, dynamic=True) if compiled else snake

    def snake(self, x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        """See `Ops.snake`."""
        return self._snake(x, alpha, beta)

    def clip(self, x: Tensor, low: float | None, high: float | None) -> Tensor:
        """Leave `x` as it is: sound beyond full scale must keep its gradient."""
        del low, high
        return x


class CodecTrainer:
    """The codec, its codebooks and their optimiser."""

    def __init__(
        self, device: torch.device, checkpoint: Path, seed: int, decoder_only: bool = False
    ):
        torch.manual_seed(seed)
        self.decoder_only = decoder_only
        self.config: CodecConfig = codec_config(CODEC, "settings.CODEC")
        self.device = device
        self.ops = FusedOps(device, compiled=device.type == "cuda")
        self._silence: dict[int, dict[str, Tensor]] = {}
        encoder = self.config.encoder_config
        self.books = Codebooks(
            self.config.encoder_valid_num_quantizers,
            encoder.codebook_size,
            encoder.codebook_dim,
            device,
        )
        shapes = tensor_shapes(self.config)
        tensors = initial_weights(
            {**shapes, _PHONE_HEAD: (4 * _PHONES, encoder.codebook_dim)}, seed
        )
        _quieten(tensors)
        self.resumed = resume_weights(tensors, checkpoint) > 0
        if self.resumed:
            names = [_entry_name(i) for i in range(self.books.count)]
            self.books.load(torch.stack([tensors[f"{n}.embed_sum"] for n in names]).to(device))
        self._fixed = {name: t for name, t in tensors.items() if _is_fixed(name)}
        trained = {name: t for name, t in tensors.items() if not _is_fixed(name)}
        self.weights = FlatWeights(trained, device)
        if decoder_only:  # no gradient reaches the encoder; decay must not either
            views = self.weights.views(torch.float32, self.weights.decayed)
            for name in views:
                if name.startswith("encoder."):
                    views[name].zero_()
        self.optimizer = Optimizer(self.weights, clip=1.0, betas=(0.8, 0.99), decay=0.01)
        self.metrics = torch.zeros(5, device=device)
        self.gate = torch.full((), float(self.resumed), device=device)

    def loss(self, sound: Tensor, labels: Tensor) -> Tensor:
        """Spectral, phoneme and commitment loss of (rows, samples); moves the codebooks."""
        weights = self.weights.views(torch.float32)
        with torch.set_grad_enabled(not self.decoder_only):
            latents = encode_latents(self.ops, weights, self.config, sound)
            first, rest = self.project(weights, latents)
            coded_first, coded_rest, commitment, _ = self.books.quantise(
                first, rest, learn=not self.decoder_only
            )
        # the gate is closed while the autoencoder warms up without a quantiser
        mixed_first = first + self.gate * (coded_first - first)
        mixed_rest = rest + self.gate * (coded_rest - rest)
        made = self.decode(weights, mixed_first, mixed_rest, len(sound))
        spectral = spectral_loss(made, sound, SAMPLE_RATE)
        logits = F.linear(mixed_first, weights[_PHONE_HEAD]).view(-1, _PHONES)
        phone = F.cross_entropy(logits, labels.flatten())
        right = (logits.argmax(-1) == labels.flatten()).float().mean()
        values = torch.stack([spectral, commitment, phone, right, self.optimizer.norm])
        self.metrics.copy_(values.detach())
        if self.decoder_only:
            return spectral
        return spectral + 0.1 * phone + 0.25 * self.gate * commitment

    def project(self, weights: dict[str, Tensor], latents: Tensor) -> tuple[Tensor, Tensor]:
        """What codebook 0 and the others code, (n, width) each."""
        flat = latents.float().flatten(0, 1)
        first = F.linear(flat, weights[f"{_SEMANTIC}.input_proj.weight"][:, :, 0])
        return first, F.linear(flat, weights[f"{_ACOUSTIC}.input_proj.weight"][:, :, 0])

    def decode(self, weights: dict[str, Tensor], first: Tensor, rest: Tensor, rows: int) -> Tensor:
        """Sound of (rows * frames, width) coded projections."""
        joined = F.linear(first, weights[f"{_FIRST}.output_proj.weight"][:, :, 0])
        joined = joined + F.linear(rest, weights[f"{_REST}.output_proj.weight"][:, :, 0])
        latents = joined.unflatten(0, (rows, -1)).transpose(1, 2)
        if rows not in self._silence:
            self._silence[rows] = zero_state(self.ops, self.config, rows)
        return decode_latents(self.ops, weights, self.config, latents, self._silence[rows])[0]

    def checkpoint(self) -> dict[str, Tensor]:
        """Every tensor of the published layout, the averaged weights and the codebooks."""
        averaged = self.weights.views(torch.float32, self.optimizer.averaged)
        tensors = {**self._fixed, **averaged}
        del tensors[_PHONE_HEAD]
        for book in range(self.books.count):
            entries = self.books.entries[book]
            encoder, decoder = _entry_name(book), _decoder_entry_name(book)
            tensors[f"{encoder}.embed_sum"] = tensors[f"{decoder}.embedding_sum"] = entries
        return tensors

    @torch.no_grad()
    def evaluate(self, corpus: Corpus, count: int = 64) -> str:
        """Distance of log mels (80 bands) on held-out speech, and how many entries are used."""
        weights = self.weights.views(torch.float32, self.optimizer.averaged)
        rows = torch.arange(min(count, len(corpus)), device=self.device)
        frames = corpus.device_frames[rows]
        sound = corpus.sound(corpus.device_starts[rows], 40, frames)
        first, rest = self.project(weights, encode_latents(self.ops, weights, self.config, sound))
        coded_first, coded_rest, _, codes = self.books.quantise(first, rest, learn=False)
        parts = []
        for name, a, b in (("quantised", coded_first, coded_rest), ("free", first, rest)):
            made = self.decode(weights, a, b, len(rows))
            mels = [log_mel(x, SAMPLE_RATE, 1024, 256, 80) for x in (made, sound)]
            parts.append(f"{name} {(mels[0] - mels[1]).abs().mean().item():.3f}")
        used = [len(codes[:, book].unique()) for book in range(self.books.count)]
        return f"held-out mel L1 {', '.join(parts)}, entries used {used}"


def _quieten(tensors: dict[str, Tensor]) -> None:
    """Start with soft sound: drawn by fan-in, the residual units would add up to a roar."""
    for name in tensors:
        if re.fullmatch(r"decoder\.decoder\.\d+\.block\.[2-4]\.conv[12]\.conv\.weight", name):
            tensors[name] *= 0.5
    tensors["decoder.decoder.6.conv.weight"] *= 0.3


def _entry_name(book: int) -> str:
    group, index = (_SEMANTIC, 0) if book == 0 else (_ACOUSTIC, book - 1)
    return f"{group}.layers.{index}.codebook"


def _decoder_entry_name(book: int) -> str:
    group, index = (_FIRST, 0) if book == 0 else (_REST, book - 1)
    return f"{group}.vq.layers.{index}._codebook"


def _is_fixed(name: str) -> bool:
    """Codebooks, which move by means, and projections that exist but are never used."""
    unused = name.startswith((f"{_SEMANTIC}.output_proj", f"{_ACOUSTIC}.output_proj"))
    unused = unused or name.startswith((f"{_FIRST}.input_proj", f"{_REST}.input_proj"))
    return unused or "codebook" in name


def train(trainer: CodecTrainer, corpus: Corpus, heldout: Corpus, args: argparse.Namespace) -> None:
    """Train for the time given and write the checkpoint as it goes."""
    clock = Clock(args.seconds)
    log = Log(args.out / "codec.log", clock)
    generator = np.random.default_rng(args.seed)
    shapes = _SHAPES if trainer.device.type == "cuda" else ((8, 4),)
    batches = [torch.zeros(rows, dtype=torch.long, device=trainer.device) for _, rows in shapes]
    long_enough = np.flatnonzero(corpus.frames >= shapes[0][0])
    number = sum(t.numel() for t in trainer.checkpoint().values())
    log(f"codec: {number / 1e6:.2f} M parameters, {len(corpus)} utterances")
    quantised, step, saved = trainer.resumed, 0, 0.0
    while clock.share < 1:
        kind = step % len(shapes)
        frames, rows = shapes[kind]
        items = long_enough if kind == 0 else np.arange(len(corpus))
        batches[kind].copy_(torch.from_numpy(generator.choice(items, rows)))
        trainer.optimizer.rate.fill_(learning_rate(clock.share, step, args.rate))
        _step(trainer, corpus, batches[kind], frames, crop=kind == 0)
        trainer.optimizer.apply()
        step += 1
        if not quantised and clock.share > _WARMUP_SHARE:
            trainer.books.start(*_latents(trainer, corpus, long_enough, generator))
            trainer.gate.fill_(1.0)
            quantised = True
            log(f"step {step}: quantiser on; {trainer.evaluate(heldout)}")
        elif step % 200 == 0 and clock.share < 0.8 and not trainer.decoder_only:
            trainer.books.revive(*_latents(trainer, corpus, long_enough, generator))
        if step in (2, 20, 100) or step % 500 == 0:
            values = trainer.metrics.tolist()
            names = ("spectral", "commitment", "phone", "phone right", "norm")
            shown = ", ".join(f"{n} {v:.3f}" for n, v in zip(names, values, strict=True))
            log(f"step {step}: {shown}")
        if clock.elapsed - saved > 90:
            saved = clock.elapsed
            export(trainer, args.out)
            log(f"step {step}: {trainer.evaluate(heldout)}")
    export(trainer, args.out)
    log(f"done after {step} steps: {trainer.evaluate(heldout)}")


def _step(trainer: CodecTrainer, corpus: Corpus, items: Tensor, frames: int, crop: bool) -> None:
    lengths = corpus.device_frames[items]
    first = corpus.device_starts[items]
    if crop:
        room = (lengths - frames + 1).float()
        shift = (torch.rand(len(items), device=trainer.device) * room).long().clamp_min(0)
        first, lengths = first + shift, lengths - shift
    sound = corpus.sound(first, frames, lengths)
    sound = sound * (0.4 + 0.6 * torch.rand(len(items), 1, device=trainer.device))
    trainer.optimizer.hold(trainer.loss(sound, corpus.labels(first, frames)))


@torch.no_grad()
def _latents(
    trainer: CodecTrainer, corpus: Corpus, items: np.ndarray, generator: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Projections of 512 fresh crops."""
    chosen = torch.from_numpy(generator.choice(items, 512)).to(trainer.device)
    frames = _SHAPES[0][0] if trainer.device.type == "cuda" else 8
    sound = corpus.sound(corpus.device_starts[chosen], frames, corpus.device_frames[chosen])
    weights = trainer.weights.views(torch.float32)
    return trainer.project(weights, encode_latents(trainer.ops, weights, trainer.config, sound))


def export(trainer: CodecTrainer, out: Path) -> None:
    """Write the published layout."""
    folder = out / "speech_tokenizer"
    save_tensors(trainer.checkpoint(), folder / "model.safetensors", torch.float16)
    settings: dict[str, Any] = CODEC
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    preprocessor = {
        "feature_extractor_type": "EncodecFeatureExtractor",
        "feature_size": 1,
        "sampling_rate": SAMPLE_RATE,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor, indent=2) + "\n")


def load_codec(folder: Path, device: torch.device) -> tuple[CodecConfig, dict[str, Tensor]]:
    """Configuration and float32 weights of a `speech_tokenizer` folder."""
    config = codec_config(json.loads((folder / "config.json").read_text()), str(folder))
    tensors = load_file(folder / "model.safetensors")
    return config, {name: tensor.float().to(device) for name, tensor in tensors.items()}


def main() -> None:
    """Train, or go on from the checkpoint in the output folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder that the speech recipe wrote")
    parser.add_argument("out", type=Path, help="checkpoint folder of izwi-tiny-tts")
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--rate", type=float, default=6e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, help="read only so many parts of the corpus")
    parser.add_argument(
        "--decoder-only",
        action="store_true",
        help="go on with the decoder alone: codes, and talkers that speak them, stay valid",
    )
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    corpus = Corpus(args.data, "train", device, args.jobs)
    heldout = Corpus(args.data, "heldout", device)
    checkpoint = args.out / "speech_tokenizer" / "model.safetensors"
    trainer = CodecTrainer(device, checkpoint, args.seed, args.decoder_only)
    train(trainer, corpus, heldout, args)


if __name__ == "__main__":
    main()
