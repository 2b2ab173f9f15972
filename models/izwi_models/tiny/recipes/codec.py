"""Train the 12 Hz codec of izwi-tiny-tts on synthesized speech: audio to codes and back.

The encoder is causal, like the published one: if codes depended on later audio, a talker would use
that in training and fail in generation.
"""

from __future__ import annotations

import argparse
import re
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

from izwi.backends.torch.ops import TorchOps
from izwi_models.qwen3_codec.config import CodecConfig, codec_config
from izwi_models.qwen3_codec.decoder import decode_latents, zero_state
from izwi_models.qwen3_codec.encoder import encode_latents
from izwi_models.qwen3_codec.tensors import tensor_shapes
from izwi_models.tiny.recipes.adversary import Adversary
from izwi_models.tiny.recipes.codec_aims import HARMONIC_BANDS_HZ, Aims, aims_of, take_aims
from izwi_models.tiny.recipes.codec_folder import write_codec
from izwi_models.tiny.recipes.data import Corpus
from izwi_models.tiny.recipes.fused import FusedOps
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
    masked_loss,
    resume_weights,
    take_schedule,
)
from izwi_models.tiny.recipes.people.kokoro_speech import LABELS, UNLABELLED
from izwi_models.tiny.recipes.perception import Perception
from izwi_models.tiny.recipes.phone_classifier import PhoneClassifier
from izwi_models.tiny.recipes.residual import Codebooks
from izwi_models.tiny.recipes.settings import CODEC
from izwi_models.tiny.recipes.spectral import gap_loss, log_mel, low_band_loss, spectral_loss
from izwi_models.tiny.recipes.speech import FRAME, SAMPLE_RATE
from izwi_models.tiny.recipes.voicing import compare_pitch, periodicity_loss

_SEMANTIC = "encoder.quantizer.semantic_residual_vector_quantizer"
_ACOUSTIC = "encoder.quantizer.acoustic_residual_vector_quantizer"
_FIRST, _REST = "decoder.quantizer.rvq_first", "decoder.quantizer.rvq_rest"
_PHONE_HEAD = "phone_head.weight"
_PHONES = LABELS
_WARMUP_SHARE = 0.15  # share of the time without quantizer
_SHAPES = ((24, 40), (72, 14))  # (frames, rows) of a batch: crops, and starts of utterances
_JUDGED = (24, 16)  # rows and frames of a batch that the discriminators judge
_ADVERSARY_RAMP = 300  # steps over which the weight of their loss rises


class CodecTrainer:
    """The codec, its codebooks and their optimizer."""

    def __init__(
        self,
        device: torch.device,
        checkpoint: Path,
        seed: int,
        aims: Aims,
        decoder_only: bool = False,
        perception: Perception | None = None,
    ):
        torch.manual_seed(seed)
        self.perception = perception
        self.aims, self.decoder_only = aims, decoder_only
        self.adversary = Adversary(device, seed)
        self.adversary_steps = 0  # steps with discriminators so far
        self.classifier = PhoneClassifier(device, seed) if aims.phones else None
        # shares of plosives recognized: in the original, in the codec's speech
        self._plosives = self.classifier.right if self.classifier else torch.zeros(2, device=device)
        self._say = torch.zeros((), device=device)  # current weight of their loss
        self.config: CodecConfig = codec_config(CODEC, "settings.CODEC")
        self.device = device
        self.ops = FusedOps(device, compiled=device.type == "cuda")
        self._plain = TorchOps(device)  # evaluation has other shapes, which are not compiled
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
        if decoder_only:  # without a gradient, the encoder's weights must not decay either
            views = self.weights.views(torch.float32, self.weights.decayed)
            for name in views:
                if name.startswith("encoder."):
                    views[name].zero_()
        self.optimizer = Optimizer(self.weights, clip=1.0, betas=(0.8, 0.99), decay=0.01)
        self.metrics = torch.zeros(12, device=device)
        self.gate = torch.full((), float(self.resumed), device=device)

    def hold(self, audio: Tensor, labels: Tensor) -> None:
        """Compute the gradient of a batch. May be captured.

        Args:
            audio: (rows, samples) at 24 kHz, whole frames.
            labels: (rows, frames, 4) phoneme numbers.
        """
        weights = self.weights.views(torch.float32)
        with torch.set_grad_enabled(not self.decoder_only):
            latents = encode_latents(self.ops, weights, self.config, audio)
            first, rest = self.project(weights, latents)
            coded_first, coded_rest, commitment, _ = self.books.quantise(
                first, rest, learn=not self.decoder_only
            )
        # the gate is 0 while the autoencoder warms up without a quantizer
        mixed_first = first + self.gate * (coded_first - first)
        mixed_rest = rest + self.gate * (coded_rest - rest)
        made = self.decode(weights, mixed_first, mixed_rest, len(audio))
        spectral = spectral_loss(made, audio, SAMPLE_RATE)
        low_band = low_band_loss(made, audio, SAMPLE_RATE, self.aims.cutoff_hz)
        logits = F.linear(mixed_first, weights[_PHONE_HEAD]).view(-1, _PHONES)
        known = (labels != UNLABELLED).flatten().float()
        phone = masked_loss(logits, labels.flatten().clamp_max(_PHONES - 1), known)
        right = (logits.argmax(-1) == labels.flatten()).float().mean()
        gaps = gap_loss(made, audio)
        heard = torch.zeros_like(gaps)
        if self.perception is not None:
            heard = self.perception.distance(made, audio)
        noisy = torch.zeros_like(gaps)
        if self.aims.periodicity:
            noisy = periodicity_loss(made, audio, HARMONIC_BANDS_HZ, SAMPLE_RATE)
        confused = torch.zeros_like(gaps)
        if self.classifier is not None:
            confused = self.classifier.judge(made, audio, labels.flatten(1))
        values = [spectral, low_band, commitment, phone, right, self.optimizer.norm, gaps, heard]
        values += [noisy, confused, *self._plosives]
        self.metrics.copy_(torch.stack(values).detach())
        loss = spectral + self.aims.low_band * low_band
        loss = loss + self.aims.gaps * gaps + self.aims.perception * heard
        loss = loss + self.aims.periodicity * noisy + self.aims.phones * confused
        if self.adversary_steps:
            loss = loss + self._objection(made, audio)
        if not self.decoder_only:
            loss = loss + 0.1 * phone + 0.25 * self.gate * commitment
        self.optimizer.hold(loss)

    def _objection(self, made: Tensor, audio: Tensor) -> Tensor:
        """Return the discriminators' loss for a part of the batch, with its current weight."""
        rows, samples = _JUDGED[0], min(_JUDGED[1] * FRAME, made.shape[1])
        room = made.shape[1] - samples + 1
        first = (torch.rand((), device=self.device) * room).long()
        index = first + torch.arange(samples, device=self.device)
        ours, theirs = (x[:rows].index_select(1, index) for x in (made, audio))
        return self._say * self.adversary.oppose(ours, theirs)

    def apply(self, share: float, rate: float) -> None:
        """Update the codec, its codebooks and, from `aims.adversary_from`, the discriminators."""
        self.optimizer.apply()
        if self.classifier is not None:
            self.classifier.apply()
        if not self.decoder_only:
            self.books.follow()
        if share >= self.aims.adversary_from:
            if self.adversary_steps:
                self.adversary.optimizer.rate.fill_(rate)
                self.adversary.optimizer.apply()
            self.adversary_steps += 1
            ramp = min(1.0, self.adversary_steps / _ADVERSARY_RAMP)
            self._say.fill_(self.aims.adversary * ramp)

    def shown(self) -> str:
        """Return the losses of the last batch as text."""
        names = ["spectral", "low band", "commitment", "phone", "phone right", "norm"]
        names += ["gaps", "heard", "noisy harmonics"]
        names += ["phones confused", "plosives right in the original", "plosives right"]
        names += ["adversary", "layers apart"]
        values = self.metrics.tolist() + self.adversary.metrics.tolist()
        return ", ".join(f"{n} {v:.3f}" for n, v in zip(names, values, strict=True))

    def project(self, weights: dict[str, Tensor], latents: Tensor) -> tuple[Tensor, Tensor]:
        """Project latents to the inputs of codebook 0 and of the others, (n, width) each."""
        flat = latents.float().flatten(0, 1)
        first = F.linear(flat, weights[f"{_SEMANTIC}.input_proj.weight"][:, :, 0])
        return first, F.linear(flat, weights[f"{_ACOUSTIC}.input_proj.weight"][:, :, 0])

    def decode(
        self,
        weights: dict[str, Tensor],
        first: Tensor,
        rest: Tensor,
        rows: int,
        ops: TorchOps | None = None,
    ) -> Tensor:
        """Decode (rows * frames, width) quantized projections to (rows, samples)."""
        joined = F.linear(first, weights[f"{_FIRST}.output_proj.weight"][:, :, 0])
        joined = joined + F.linear(rest, weights[f"{_REST}.output_proj.weight"][:, :, 0])
        latents = joined.unflatten(0, (rows, -1)).transpose(1, 2)
        if rows not in self._silence:
            self._silence[rows] = zero_state(self.ops, self.config, rows)
        return decode_latents(ops or self.ops, weights, self.config, latents, self._silence[rows])[
            0
        ]

    def checkpoint(self) -> dict[str, Tensor]:
        """Return all tensors of the published layout: averaged weights and codebooks."""
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
        """Return figures on held-out speech as text: log mels (80 bands), voicing, used entries."""
        weights = self.weights.views(torch.float32, self.optimizer.averaged)
        rows = torch.arange(min(count, len(corpus)), device=self.device)
        frames = corpus.device_frames[rows]
        audio = corpus.audio(corpus.device_starts[rows], 40, frames)
        first, rest = self.project(weights, encode_latents(self.ops, weights, self.config, audio))
        coded_first, coded_rest, _, codes = self.books.quantise(first, rest, learn=False)
        parts = []
        for name, a, b in (("quantised", coded_first, coded_rest), ("free", first, rest)):
            made = self.decode(weights, a, b, len(rows), self._plain)
            mels = [log_mel(x, SAMPLE_RATE, 1024, 256, 80) for x in (made, audio)]
            parts.append(f"{name} {(mels[0] - mels[1]).abs().mean().item():.3f}")
            voiced, kept, off = compare_pitch(made, audio)
            low_band = low_band_loss(made, audio, SAMPLE_RATE, self.aims.cutoff_hz).item()
            heard = self.perception.distance(made, audio).item() if self.perception else 0.0
            noisy = periodicity_loss(made, audio, HARMONIC_BANDS_HZ, SAMPLE_RATE).item()
            parts.append(
                f"low band {low_band:.3f}, voiced {voiced:.2f}, kept {kept:.3f}, off {off:.3f}, "
                f"gaps {gap_loss(made, audio).item():.5f}, heard {heard:.3f}, "
                f"noisy harmonics {noisy:.3f}"
            )
        used = [len(codes[:, book].unique()) for book in range(self.books.count)]
        return f"held-out mel L1 {', '.join(parts)}, entries used {used}"


def _quieten(tensors: dict[str, Tensor]) -> None:
    """Scale down weights so that the initial output is quiet; residual units add up."""
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
    """Return whether a tensor gets no gradient: codebooks, and projections that are not used."""
    unused = name.startswith((f"{_SEMANTIC}.output_proj", f"{_ACOUSTIC}.output_proj"))
    unused = unused or name.startswith((f"{_FIRST}.input_proj", f"{_REST}.input_proj"))
    return unused or "codebook" in name


def train(
    trainer: CodecTrainer, corpus: Corpus, heldout: Corpus, args: argparse.Namespace, rank: int = 0
) -> None:
    """Train for the given time; rank 0 writes the checkpoint at intervals."""
    clock = Clock(args.seconds)
    log = Log(args.out / f"codec{rank}.log", clock)
    stepper = Stepper(trainer.device, capture=not args.plain)
    generator = np.random.default_rng(args.seed + 100 * rank)
    torch.manual_seed(args.seed + 100 * rank)
    shapes = _SHAPES if trainer.device.type == "cuda" else ((8, 4),)
    counts = [max(1, round(rows * args.batch)) for _, rows in shapes]
    batches = [torch.zeros(rows, dtype=torch.long, device=trainer.device) for rows in counts]
    long_enough = np.flatnonzero(corpus.frames >= shapes[0][0])
    number = sum(t.numel() for t in trainer.checkpoint().values())
    log(f"codec: {number / 1e6:.2f} M parameters, {len(corpus)} utterances")
    begin, end = args.schedule
    quantised, step, saved, share = trainer.resumed, 0, 0.0, begin
    while share < end and (args.steps is None or step < args.steps):
        kind = step % len(shapes)
        items = long_enough if kind == 0 else np.arange(len(corpus))
        batches[kind].copy_(torch.from_numpy(generator.choice(items, counts[kind])))
        trainer.optimizer.rate.fill_(learning_rate(share, step, args.rate))
        opposed = trainer.adversary_steps > 0
        stepper.run(
            (kind, opposed),
            partial(_step, trainer, corpus, batches[kind], shapes[kind][0], crop=kind == 0),
        )
        trainer.apply(share, learning_rate(share, step, args.rate))
        step += 1
        if step == len(shapes) and not args.plain:
            # all graphs are captured; a search for algorithms would empty the allocator's cache
            torch.backends.cudnn.benchmark = False
        if step % 20 == 0:
            share = begin + (end - begin) * clock.joint_share(trainer.device)
        if not quantised and share > _WARMUP_SHARE:
            trainer.books.start(*_latents(trainer, corpus, long_enough, generator))
            trainer.gate.fill_(1.0)
            quantised = True
            log(f"step {step}: quantiser on")
        elif step % 200 == 0 and share < 0.8 and not trainer.decoder_only:
            trainer.books.revive(*_latents(trainer, corpus, long_enough, generator))
        if step in (2, 20, 100) or step % 500 == 0:
            log(f"step {step}: {trainer.shown()}")
        if rank == 0 and clock.elapsed - saved > args.save_every:
            saved = clock.elapsed
            write_codec(trainer.checkpoint(), args.out)
            log(f"step {step}: {trainer.evaluate(heldout)}")
    if rank == 0:
        write_codec(trainer.checkpoint(), args.out)
        log(f"done after {step} steps: {trainer.evaluate(heldout)}")


def _step(trainer: CodecTrainer, corpus: Corpus, items: Tensor, frames: int, crop: bool) -> None:
    lengths = corpus.device_frames[items]
    first = corpus.device_starts[items]
    if crop:
        room = (lengths - frames + 1).float()
        shift = (torch.rand(len(items), device=trainer.device) * room).long().clamp_min(0)
        first, lengths = first + shift, lengths - shift
    audio = corpus.audio(first, frames, lengths)
    audio = audio * (0.4 + 0.6 * torch.rand(len(items), 1, device=trainer.device))
    trainer.hold(audio, corpus.labels(first, frames))


@torch.no_grad()
def _latents(
    trainer: CodecTrainer, corpus: Corpus, items: np.ndarray, generator: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Return the projections of 512 random crops, (n, width) each."""
    chosen = torch.from_numpy(generator.choice(items, 512)).to(trainer.device)
    frames = _SHAPES[0][0] if trainer.device.type == "cuda" else 8
    audio = corpus.audio(corpus.device_starts[chosen], frames, corpus.device_frames[chosen])
    weights = trainer.weights.views(torch.float32)
    return trainer.project(weights, encode_latents(trainer.ops, weights, trainer.config, audio))


def main() -> None:
    """Train, continuing from the checkpoint in the output folder if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder that the speech recipe wrote")
    parser.add_argument("out", type=Path, help="checkpoint folder of izwi-tiny-tts")
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--rate", type=float, default=6e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, help="number of parts of the corpus to read")
    parser.add_argument(
        "--decoder-only",
        action="store_true",
        help="train only the decoder, so that codes and talkers stay valid",
    )
    parser.add_argument(
        "--requantise", action="store_true", help="start with new codebooks, after a warm-up"
    )
    take_aims(parser)
    parser.add_argument("--listener", type=Path, help="checkpoint folder of a transcriber")
    parser.add_argument("--plain", action="store_true", help="no CUDA graphs")
    parser.add_argument(
        "--batch", type=float, default=1.0, help="factor on the rows of a batch, on each device"
    )
    parser.add_argument("--save-every", type=float, default=90, help="seconds")
    parser.add_argument(
        "--steps", type=int, help="end after this many steps, if the time is not over"
    )
    take_schedule(parser)
    args = parser.parse_args()
    rank, world, device = join_ranks()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    corpus = Corpus(args.data, "train", device, args.jobs, share=(rank, world))
    heldout = Corpus(args.data, "heldout", device)
    checkpoint = args.out / "speech_tokenizer" / "model.safetensors"
    perception = Perception(args.listener, device) if args.listener else None
    trainer = CodecTrainer(
        device, checkpoint, args.seed, aims_of(args), args.decoder_only, perception
    )
    if args.requantise:
        trainer.resumed = False
        trainer.gate.zero_()
    train(trainer, corpus, heldout, args, rank)
    leave_ranks()


if __name__ == "__main__":
    main()
