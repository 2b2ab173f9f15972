"""Train an aligner from izwi-tiny-asr on synthesized speech, whose word times are known.

The prompt is that of Qwen3-ForcedAligner. Words that espeak-ng pronounces as one ("of the") have
one start and one end time; the borders between them are not trained.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

from izwi.backends.torch.ops import TorchOps
from izwi.checkpoints.folder import parse_config
from izwi_models.qwen3.decoder import decode
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_aligner.config import AlignerConfig, tensor_shapes
from izwi_models.qwen3_aligner.repair import in_order
from izwi_models.qwen3_aligner.words import split_words
from izwi_models.qwen3_asr.config import EMBEDDING, HEAD, TEXT_PREFIX
from izwi_models.qwen3_asr.encoder import Windows, chunk_positions, encode_windows
from izwi_models.tiny.recipes.aligner_folder import OWN, WHOLE, complete
from izwi_models.tiny.recipes.augment import disturbed
from izwi_models.tiny.recipes.data import Corpus, Int64, bucket_batches, read_words, text_table
from izwi_models.tiny.recipes.features import augmented_mel, token_counts
from izwi_models.tiny.recipes.harness import (
    Clock,
    FlatWeights,
    Log,
    Optimizer,
    Stepper,
    initial_weights,
    learning_rate,
    resume_weights,
    save_tensors,
)
from izwi_models.tiny.recipes.settings import ALIGNER, STEP_MS, TIMESTAMP, token_id
from izwi_models.tiny.recipes.spectral import to_16k, whisper_mel
from izwi_models.tiny.recipes.speech import FRAME, SAMPLE_RATE, SpokenWord

_EDGES = [25, 31, 37, 43, 50, 62, 75, 100]  # codec frames; whole and half seconds
_MELS_A_FRAME = 8  # mel frames in 80 ms
_UNKNOWN = -1.0
# The synthesizer's events are about 40 ms off, so classes near a border also count as right, less
# the farther away they are.
_SPREAD_MS = 50.0
_TESTED = 64  # utterances at a time
# Utterances of the corpus begin after 160 ms of silence and have no long pauses. Trained on these
# alone, the model is 600 ms off if there is another second of silence before the first word.
_MOST_SILENCE = 50  # maximum codec frames of silence added around and inside an utterance
_MOST_CUT = 3360  # maximum samples removed from the 3840 of silence before an utterance
_PAUSED_SHARE = 0.5
_TESTED_LATE_MS = 1000.0


class Marks:
    """Ids after the audio of each utterance, and the times of its marks: word starts and ends.

    Attributes:
        ids: (n, longest) ids after the audio.
        lengths: (n,) number of these ids.
        places: (n, most) index of each mark in `ids`.
        counts: (n,) number of marks.
        times: (n, most) times of the marks in ms; _UNKNOWN if not known.
        pauses: Times in ms at which each utterance may be paused: ends of words, if the end and the
            next start are known.
    """

    def __init__(self, corpus: Corpus, words: list[list[SpokenWord]], tokenizer: QwenTokenizer):
        rows, places, times = [], [], []
        for text, spoken in zip(corpus.texts, words, strict=True):
            ids, at = [token_id("<|audio_end|>")], []
            for word in split_words(text, "English"):
                ids += [*tokenizer.encode(word.text), TIMESTAMP, TIMESTAMP]
                at += [len(ids) - 2, len(ids) - 1]
            rows.append(ids)
            places.append(at)
            times.append(known_times(text, spoken))
        self.ids, self.lengths = text_table(rows, corpus.device)
        self.places, self.counts = text_table(places, corpus.device)
        self.times = torch.full(self.places.shape, _UNKNOWN)
        for number, row in enumerate(times):
            self.times[number, : len(row)] = torch.tensor(row)
        self.times = self.times.to(corpus.device)
        self.pauses = [
            [end for end, start in zip(row[1::2], row[2::2], strict=False) if min(end, start) >= 0]
            for row in times
        ]


def known_times(text: str, spoken: list[SpokenWord]) -> list[float]:
    """Return start and end of each word in ms; _UNKNOWN if the synthesizer does not report it."""
    starts = {word.place: word for word in spoken}
    words = split_words(text, "English")
    times = []
    for index, word in enumerate(words):
        mine = starts.get(word.start)
        # it is the last of several words pronounced as one if the next word has its own event
        is_last = index + 1 == len(words) or words[index + 1].start in starts
        said = [other for other in spoken if other.place <= word.start]
        times.append(_UNKNOWN if mine is None else mine.start_ms)
        times.append(said[-1].end_ms if is_last and said else _UNKNOWN)
    return times


@dataclass(frozen=True, slots=True)
class Placed:
    """Utterances of a batch with silence around them, and a pause between two words.

    Attributes:
        items: (rows,) indices of the utterances.
        lengths: (rows,) codec frames, including the added silence.
        leads: (rows,) samples of silence before; if negative, samples removed from the start.
        cuts: (rows,) samples of the utterance before the pause.
        gaps: (rows,) samples of the pause.
    """

    items: Tensor
    lengths: Tensor
    leads: Tensor
    cuts: Tensor
    gaps: Tensor

    def audio(self, corpus: Corpus, frames: int) -> Tensor:
        """Return the audio of the batch, (rows, frames * 1920) float32."""
        lead, cut, gap = (x[:, None] for x in (self.leads, self.cuts, self.gaps))
        at = torch.arange(frames * FRAME, device=corpus.device) - lead
        paused = (at >= cut) & (at < cut + gap)
        at = torch.where(at < cut, at, at - gap)
        spoken = corpus.device_frames[self.items][:, None] * FRAME
        index = corpus.device_starts[self.items][:, None] * FRAME + at
        samples = corpus.samples[index.clamp(0, len(corpus.samples) - 1)].float() / 32768
        return samples * ((at >= 0) & (at < spoken) & ~paused)

    def times(self, marks: Marks) -> tuple[Tensor, Tensor]:
        """Return the times of the marks in ms and whether they are known, (rows, most) each."""
        times = marks.times[self.items]
        lead, cut, gap = (
            x[:, None] * (1000.0 / SAMPLE_RATE) for x in (self.leads, self.cuts, self.gaps)
        )
        starts = torch.arange(times.shape[1], device=times.device) % 2 == 0
        later = times + 2.0 * starts > cut + 1.0  # a start at the cut moves, an end there does not
        return times + lead + gap * later, times >= 0.0


def lengths_in_silence(frames: Int64, generator: np.random.Generator) -> Int64:
    """Draw the lengths of utterances with added silence, (n,) codec frames: mostly little."""
    most = np.minimum(_MOST_SILENCE, _EDGES[-1] - frames).clip(0)
    return frames + (most * generator.random(len(frames)) ** 3).astype(np.int64)


def placed_batch(
    items: Int64,
    room: Int64,
    lengths: Int64,
    pauses: list[list[float]],
    generator: np.random.Generator,
) -> Int64:
    """Draw the position and the pause of each utterance: (5, rows), as in `Placed`.

    Args:
        items: (rows,) indices of the utterances.
        room: (n,) codec frames of silence added to each utterance of the corpus.
        lengths: (n,) codec frames of each, including the silence.
        pauses: Times in ms at which each may be paused.
        generator: Source of randomness.
    """
    samples = room[items] * FRAME
    gaps, cuts = np.zeros_like(samples), np.zeros_like(samples)
    for row, item in enumerate(items):
        if pauses[item] and generator.random() < _PAUSED_SHARE:
            cuts[row] = round(generator.choice(pauses[item]) / 1000.0 * SAMPLE_RATE)
            gaps[row] = generator.integers(samples[row], endpoint=True)
    leads = generator.integers(-_MOST_CUT, samples - gaps, endpoint=True)
    return np.stack([items, lengths[items], leads, cuts, gaps])


class AlignerTrainer:
    """The weights and the corpus."""

    def __init__(self, args: argparse.Namespace, corpus: Corpus, device: torch.device):
        self.device, self.corpus = device, corpus
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.ops = TorchOps(device, self.dtype)
        self.config = parse_config(AlignerConfig, ALIGNER, "settings.ALIGNER")
        self.tokenizer = QwenTokenizer(args.asr)
        self.marks = Marks(corpus, read_words(args.data, "train", args.jobs), self.tokenizer)
        tensors = initial_weights(tensor_shapes(self.config), args.seed)
        self.resumed = resume_weights(tensors, args.asr / WHOLE)
        for name in (WHOLE, OWN):
            self.resumed += resume_weights(tensors, args.out / name)
        own = {name: value for name, value in tensors.items() if args.own.search(name)}
        self._shared = {
            name: value.to(device, self.dtype) for name, value in tensors.items() if name not in own
        }
        self.weights = FlatWeights(own, device)
        self.optimizer = Optimizer(self.weights, clip=1.0, average=args.average)
        self.metrics = torch.zeros(3, device=device)
        self._positions = self.ops.array(chunk_positions(self.config.audio))
        classes = self.config.thinker_config.classify_num
        self._class_ms = torch.arange(classes, device=device) * float(STEP_MS)

    def hold(self, batch: Placed, frames: int, length: int) -> None:
        """Compute the gradient of a batch; see `loss`."""
        self.optimizer.hold(self.loss(batch, frames, length))

    def loss(self, batch: Placed, frames: int, length: int) -> Tensor:
        """Compute the loss of utterances padded to `frames` codec frames and `length` ids."""
        audio = disturbed(to_16k(batch.audio(self.corpus, frames)))
        mel = augmented_mel(audio, batch.lengths)
        views = self._shared | self.weights.views(self.dtype)
        logits = self.logits(views, self.marks, batch.items, mel, batch.lengths, length)
        times, known = batch.times(self.marks)
        apart = (self._class_ms - times[..., None]) / _SPREAD_MS
        wanted = torch.softmax(-0.5 * apart.square(), -1)
        losses = -(wanted * F.log_softmax(logits, -1)).sum(-1)
        loss = (losses * known).sum() / known.sum()
        off_ms = (logits.argmax(-1) * STEP_MS - times).abs()
        error_ms = (off_ms * known).sum() / known.sum()
        self.metrics.copy_(torch.stack([loss, error_ms, self.optimizer.norm]).detach())
        return loss

    def logits(
        self,
        weights: dict[str, Tensor],
        marks: Marks,
        items: Tensor,
        mel: Tensor,
        lengths: Tensor,
        length: int,
    ) -> Tensor:
        """Compute logits (rows, marks, classes) of utterances of `lengths` codec frames."""
        tokens = token_counts(lengths * _MELS_A_FRAME)
        audio = encode_windows(
            self.ops,
            weights,
            self.config.audio,
            mel.to(self.dtype),
            windows=Windows(self._positions, tokens),
        )
        rows, most = audio.shape[:2]
        at = torch.arange(1 + most + length, device=self.device)[None]
        behind = at - 1 - tokens[:, None]  # index after the end of the audio
        ids = marks.ids[items][:, :length].gather(1, behind.clamp(0, length - 1))
        ids = torch.where(at < 1, token_id("<|audio_start|>"), ids)
        x = F.embedding(ids, weights[EMBEDDING])
        row_numbers = torch.arange(rows, device=self.device)[:, None]
        placed = audio[row_numbers, (at - 1).clamp(0, most - 1)]
        x = torch.where(((at >= 1) & (behind < 0))[..., None], placed, x)
        context = self.ops.dense_context(rows, x.shape[1])
        hidden = decode(self.ops, weights, self.config.text, TEXT_PREFIX, x, context)
        places = (1 + tokens[:, None] + marks.places[items]).clamp_max(x.shape[1] - 1)
        return F.linear(hidden[row_numbers, places], weights[HEAD]).float()

    @torch.no_grad()
    def errors_ms(self, corpus: Corpus, marks: Marks, late_ms: float = 0.0) -> np.ndarray:
        """Return absolute errors of all known borders in ms, (borders,), repaired as in serving.

        Args:
            corpus: Utterances; those that are too long with the silence are skipped.
            marks: Their marks.
            late_ms: Silence added before each utterance.
        """
        weights = self._shared | self.weights.views(self.dtype, self.optimizer.averaged)
        longest = int(marks.lengths.max())
        errors: list[float] = []
        lead = round(late_ms / 1000.0 * SAMPLE_RATE)
        padded = corpus.frames + -(-lead // FRAME)
        # sorted by length; above 8 s there would be a second window
        order = np.argsort(padded, kind="stable")[: int((padded <= _EDGES[-1]).sum())]
        for start in range(0, len(order), _TESTED):
            items = order[start : start + _TESTED]
            never = np.zeros_like(items)
            rows = np.stack([items, padded[items], never + lead, never, never])
            batch = Placed(*torch.from_numpy(rows).to(self.device))
            audio = batch.audio(corpus, max(25, int(batch.lengths.max())))
            mel = whisper_mel(to_16k(audio), batch.lengths * (16_000 * 8 // 100))
            logits = self.logits(weights, marks, batch.items, mel, batch.lengths, longest)
            drawn = (logits.argmax(-1) * STEP_MS).tolist()
            times, known = (values.tolist() for values in batch.times(marks))
            counts = marks.counts[batch.items].tolist()
            for row, wanted, is_known, count in zip(drawn, times, known, counts, strict=True):
                fixed = in_order([float(ms) for ms in row[:count]])
                kept = zip(fixed, wanted[:count], is_known[:count], strict=True)
                errors += [abs(ms - time) for ms, time, told in kept if told]
        return np.asarray(errors)

    def save(self, args: argparse.Namespace) -> None:
        """Write the averaged weights in the published layout, with an index of shared tensors."""
        own = self.weights.views(torch.float32, self.optimizer.averaged)
        save_tensors(own, args.out / (OWN if self._shared else WHOLE), torch.float16)
        complete(args.out, args.asr)


def train(trainer: AlignerTrainer, args: argparse.Namespace) -> None:
    """Train for the given time, write the checkpoint at intervals, and evaluate it at the end."""
    clock = Clock(args.seconds)
    log = Log(args.out / "aligner.log", clock)
    stepper = Stepper(trainer.device, capture=not args.plain)
    generator = np.random.default_rng(args.seed)
    torch.manual_seed(args.seed)
    corpus, device = trainer.corpus, trainer.device
    text_lengths = trainer.marks.lengths.cpu().numpy()
    longest = {edge: int(text_lengths[corpus.frames <= edge].max(initial=1)) for edge in _EDGES}
    buffers: dict[int, Tensor] = {}
    log(f"aligner: {len(corpus)} utterances, {trainer.resumed} tensors resumed")
    step, epoch, saved = 0, 0, 0.0
    while clock.share < 1:
        lengths = lengths_in_silence(corpus.frames, generator)
        for edge, items in bucket_batches(lengths, _EDGES, args.frames, generator):
            if clock.share >= 1:
                break
            room = lengths - corpus.frames
            placed = placed_batch(items, room, lengths, trainer.marks.pauses, generator)
            rows = torch.from_numpy(placed)
            buffer = buffers.setdefault(edge, torch.zeros_like(rows).to(device))
            buffer.copy_(rows)
            rate = learning_rate(clock.share, step, args.rate, args.warmup)
            trainer.optimizer.rate.fill_(rate)
            stepper.run(edge, partial(trainer.hold, Placed(*buffer), edge, longest[edge]))
            trainer.optimizer.apply()
            step += 1
            if step in (1, 10, 50) or step % args.every == 0:
                loss, error_ms, norm = trainer.metrics.tolist()
                log(
                    f"step {step} epoch {epoch}: loss {loss:.3f}, off {error_ms:.0f} ms, {norm:.1f}"
                )
            if clock.elapsed - saved > 60:
                saved = clock.elapsed
                trainer.save(args)
        epoch += 1
    trainer.save(args)
    log(f"done after {step} steps, {epoch} epochs")
    heldout = Corpus(args.data, "heldout", device)
    marks = Marks(heldout, read_words(args.data, "heldout", None), trainer.tokenizer)
    for late_ms in (0.0, _TESTED_LATE_MS):
        errors = trainer.errors_ms(heldout, marks, late_ms)
        near = ", ".join(f"{(errors <= ms).mean():.1%} within {ms} ms" for ms in (40, 80, 160))
        log(
            f"held out, {late_ms:.0f} ms late: {len(errors)} borders off by {errors.mean():.0f} ms"
            f" on average, {near}"
        )


def main() -> None:
    """Train, continuing from the checkpoint in the output folder if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder that the speech recipe wrote")
    parser.add_argument("asr", type=Path, help="folder of izwi-tiny-asr, for weights and tokenizer")
    parser.add_argument("out", type=Path, help="checkpoint folder")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=300, help="steps")
    parser.add_argument("--average", type=float, default=0.999)
    parser.add_argument("--every", type=int, default=500, help="steps between lines of the log")
    parser.add_argument("--frames", type=int, default=12_000, help="padded frames in a batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--own",
        type=re.compile,
        default=re.compile(""),
        help="pattern of the tensors to train; others are shared with izwi-tiny-asr",
    )
    parser.add_argument("--jobs", type=int, help="number of parts of the corpus to read")
    parser.add_argument("--plain", action="store_true", help="no CUDA graphs")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    corpus = Corpus(args.data, "train", device, args.jobs)
    train(AlignerTrainer(args, corpus, device), args)


if __name__ == "__main__":
    main()
