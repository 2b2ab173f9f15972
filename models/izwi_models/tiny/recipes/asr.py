"""Train izwi-tiny-asr on synthesised speech, with the exact prompt of Qwen3-ASR.

It never hears izwi-tiny-tts, so that it can judge it.
"""

from __future__ import annotations

import argparse
import json
import re
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
from izwi_models.qwen3_asr.config import EMBEDDING, TEXT_PREFIX, AsrConfig, tensor_shapes
from izwi_models.qwen3_asr.encoder import Windows, chunk_positions, encode_windows
from izwi_models.tiny.recipes.asr_text import Template, unspoken_answers
from izwi_models.tiny.recipes.augment import disturbed, no_speech, through_channels
from izwi_models.tiny.recipes.cut_off import Beginnings, Cuts
from izwi_models.tiny.recipes.data import (
    Corpus,
    bucket_batches,
    read_words,
    text_table,
)
from izwi_models.tiny.recipes.features import MELS_A_FRAME, augmented_mel, token_counts
from izwi_models.tiny.recipes.harness import (
    Clock,
    FlatWeights,
    Log,
    Optimizer,
    Stepper,
    divergence,
    initial_weights,
    learning_rate,
    masked_loss,
    resume_weights,
    save_tensors,
)
from izwi_models.tiny.recipes.pauses import longest_pauses
from izwi_models.tiny.recipes.people.kokoro_speech import LABELS, UNLABELLED
from izwi_models.tiny.recipes.selection import Selection
from izwi_models.tiny.recipes.settings import ASR_GENERATION, VOCABULARY, asr_config_in
from izwi_models.tiny.recipes.spectral import to_16k
from izwi_models.tiny.recipes.speech import EDGE, FRAME, LABEL, PHONES, SILENCE

_PARTS = "train replies people flite piper voice"  # of the corpus
_PHONES = LABELS
PHONE_HEAD = "phone_head.safetensors"  # for going on; served checkpoints are without it
_EDGES = [25, 31, 37, 43, 50, 62, 75, 100]  # codec frames; whole and half seconds
_LABELS = FRAME // LABEL  # of a codec frame
_LABELS_A_CHUNK = 50
_SMOOTHING = 0.05
_MISHEARD = 0.06  # share of the ids that the decoder reads wrongly in training
_UNSPOKEN_ROWS = 192  # texts without audio in a step
_ENGLISH_WEIGHT = 0.3
_SILENT_ROWS = 8  # one in so many holds no speech, and its answer no words
_MOVED_SHARE = 0.3  # of utterances, with silence before and after
_MOST_LEAD = 5  # codec frames of silence before those
_ABRUPT_ROWS = 0.25  # share that begins in the silence before the first word, or right at it
_PAUSED_ROWS = 0.5  # share, of those that pause at all, that pause for longer
_MOST_SILENCE = 25  # codec frames that an utterance gets for that, at times


class AsrTrainer:
    """The weights, a phoneme head that is thrown away, and the corpus."""

    def __init__(self, args: argparse.Namespace, corpus: Corpus, device: torch.device):
        self.device, self.corpus = device, corpus
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.ops = TorchOps(device, self.dtype)
        self.settings = asr_config_in(args.out, args.layers, args.larger)
        self.config = parse_config(AsrConfig, self.settings, "settings.ASR")
        tokenizer = QwenTokenizer(args.out)
        self.template = Template(tokenizer)
        answers = [
            [*self.template.opening, *tokenizer.encode(text), self.template.end]
            for text in corpus.texts
        ]
        self.answers, self.answer_lengths = text_table(answers, device)
        self._unspoken = unspoken_answers(args.unspoken, self.template, tokenizer, device)
        spoken = read_words(args.data, _PARTS, args.jobs)
        self._beginnings = Beginnings(corpus, spoken, tokenizer)
        self._cut_share, self._harder = float(args.cut_share), not args.gentle
        self._moved_share = float(args.moved_share)
        self._misheard = _MISHEARD if self._harder else 0.0
        self._before = torch.tensor(self.template.before, device=device)
        self._after = torch.tensor(self.template.after, device=device)
        width = self.config.audio.output_dim
        tensors = initial_weights(
            {**tensor_shapes(self.config), "phone_head.weight": (4 * _PHONES, width)}, args.seed
        )
        self.resumed = resume_weights(tensors, args.out / "model.safetensors")
        resume_weights(tensors, args.out / PHONE_HEAD)
        # phonemes would be learned by a head that starts anew
        self._anchor, self._phone_weight = float(args.anchor), 0.0 if args.anchor else 0.3
        first = tensors if args.anchor else {}
        self._teacher = {name: value.to(device, self.dtype) for name, value in first.items()}
        own = {name: value for name, value in tensors.items() if args.own.search(name)}
        self._fixed = {name: value.to(device) for name, value in tensors.items() if name not in own}
        self._shared = {name: value.to(self.dtype) for name, value in self._fixed.items()}
        self.weights = FlatWeights(own, device)
        self.optimizer = Optimizer(
            self.weights, clip=1.0, average=0.999, orthogonal=args.orthogonal
        )
        self.metrics = torch.zeros(6, device=device)
        self._positions = self.ops.array(chunk_positions(self.config.audio))
        phones = json.loads(PHONES.read_text())
        self._silence = phones[SILENCE]
        silences = [number for name, number in phones.items() if name.startswith(SILENCE)]
        self._pauses = torch.from_numpy(longest_pauses(corpus, silences)).to(device)

    def hold(self, items: Tensor, frames: int, text_length: int) -> None:
        """Compute the gradient of a batch."""
        self.optimizer.hold(self.loss(items, frames, text_length))

    def loss(self, items: Tensor, frames: int, text_length: int) -> Tensor:
        """Loss of utterances padded to `frames` codec frames and `text_length` answer ids."""
        weights = self._shared | self.weights.views(self.dtype)
        cuts = self._beginnings.draw(items, self._cut_share)
        samples, labels, lengths = self._heard(items, cuts, frames)
        mel = augmented_mel(samples, lengths, harder=self._harder)
        tokens = token_counts(lengths * MELS_A_FRAME)
        audio = self._encode(weights, mel, tokens)
        phone_loss = self._phone_loss(weights, audio, labels, lengths)
        answers, answer_lengths = self._wanted(items, cuts, text_length)
        written = self._misread(answers)
        logits = self._answer(weights, written, audio, tokens)
        targets = answers
        counted = torch.arange(text_length, device=self.device) < answer_lengths[:, None]
        losses = F.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), reduction="none", label_smoothing=_SMOOTHING
        ).view(targets.shape)
        total = counted.sum()
        text_loss = (losses * counted).sum() / total
        right = ((logits.argmax(-1) == targets) * counted).sum() / total
        drift = torch.zeros_like(text_loss)
        if self._anchor:
            with torch.no_grad():
                audio = self._encode(self._teacher, mel, tokens)
                wanted = self._answer(self._teacher, written, audio, tokens)
            spoken = slice(-(-len(items) // _SILENT_ROWS), None)
            drift = divergence(logits[spoken], wanted[spoken], counted[spoken])
        english = self._english_loss(weights, audio) if self._unspoken else torch.zeros_like(drift)
        values = torch.stack([text_loss, phone_loss, drift, right, english, self.optimizer.norm])
        self.metrics.copy_(values.detach())
        total = text_loss + self._phone_weight * phone_loss + self._anchor * drift
        return total + _ENGLISH_WEIGHT * english

    def _misread(self, answers: Tensor) -> Tensor:
        """Replace some ids of answers (rows, ids), so that the decoder does not trust them all."""
        wrong = torch.rand(answers.shape, device=self.device) < self._misheard
        wrong[:, : len(self.template.opening)] = False
        others = torch.randint(VOCABULARY, answers.shape, device=self.device)
        return torch.where(wrong, others, answers)

    def _english_loss(self, weights: dict[str, Tensor], audio: Tensor) -> Tensor:
        """Return the loss of texts that nobody says: the decoder learns English from them."""
        table, all_lengths = self._unspoken
        items = torch.randint(len(table), (_UNSPOKEN_ROWS,), device=self.device)
        answers, lengths = table[items], all_lengths[items]
        nothing = audio.new_zeros(len(items), 1, audio.shape[2])
        none = torch.zeros_like(items)
        logits = self._answer(weights, self._misread(answers), nothing, none)
        places = torch.arange(answers.shape[1], device=self.device)
        counted = (places >= len(self.template.opening)) & (places < lengths[:, None])
        return masked_loss(logits, answers, counted)

    def _encode(self, weights: dict[str, Tensor], mel: Tensor, tokens: Tensor) -> Tensor:
        """Encode features (rows, mels, frames): (rows, longest, width)."""
        return encode_windows(
            self.ops,
            weights,
            self.config.audio,
            mel.to(self.dtype),
            windows=Windows(self._positions, tokens),
        )

    def _heard(self, items: Tensor, cuts: Cuts, frames: int) -> tuple[Tensor, Tensor, Tensor]:
        """Audio at 16 kHz, phonemes (rows, frames, 4), and how many frames of each row count.

        The first rows hold no speech; some of the others stand amid silence, or pause in the
        middle, so that what comes after a long pause is heard, too. Nothing comes after those that
        are cut off.
        """
        rows, device = len(items), self.device
        spoken, starts = -(-cuts.labels // _LABELS), self.corpus.device_starts[items]
        cut = self._pauses[items]
        paused = (cut > 0) & ~cuts.is_cut & (torch.rand(rows, device=device) < _PAUSED_ROWS)
        gap = (torch.rand(rows, device=device) * (frames - spoken + 1)).long() * paused
        filled = spoken + gap
        moved = torch.rand(rows, device=device) < self._moved_share
        room = (frames - filled) * (moved | cuts.is_cut)
        room = torch.where(cuts.is_cut, room.clamp_max(_MOST_LEAD), room)
        lead = (torch.rand(rows, device=device) * (room + 1)).long()
        lengths = filled + lead
        tail = (torch.rand(rows, device=device) * (frames - lengths + 1)).long()
        lengths = lengths + tail * (moved & ~cuts.is_cut)
        at = torch.arange(frames * _LABELS, device=device) - _LABELS * lead[:, None]
        at = at + self._missing_lead(rows, lead)[:, None]
        cut, pause = cut[:, None], _LABELS * gap[:, None]
        inside = (at >= 0) & (at < cuts.labels[:, None] + pause)
        inside = inside & ((at < cut) | (at >= cut + pause))
        at = torch.where(at < cut, at, at - pause) + _LABELS * starts[:, None]
        at = at.clamp(0, len(self.corpus.phones) - 1)
        labels = self.corpus.phones[at].long().masked_fill(~inside, self._silence)
        labels = labels.unflatten(1, (frames, _LABELS))
        samples = at[..., None] * LABEL + torch.arange(LABEL, device=device)
        audio = self.corpus.samples[samples.flatten(1)].float() / 32768
        audio = audio * inside[..., None].expand(-1, -1, LABEL).flatten(1)
        silent = -(-rows // _SILENT_ROWS)
        labels[:silent] = self._silence
        audio = to_16k(audio)
        disturbing = disturbed(through_channels(audio) if self._harder else audio)
        empty = no_speech(silent, disturbing.shape[1], device)
        return torch.cat([empty, disturbing[silent:]]), labels, lengths

    def _missing_lead(self, rows: int, lead: Tensor) -> Tensor:
        """Draw how much of each utterance's own silence before it is cut away: (rows,) labels.

        Live sessions and trimmed files begin with the first word, while the corpus has 160 ms of
        silence first.
        """
        abrupt = (torch.rand(rows, device=self.device) < _ABRUPT_ROWS) & (lead == 0)
        return (torch.rand(rows, device=self.device) * (EDGE // LABEL + 1)).long() * abrupt

    def _wanted(self, items: Tensor, cuts: Cuts, text_length: int) -> tuple[Tensor, Tensor]:
        """Answers (rows, text_length) and their lengths: no words for rows without speech."""
        silent = -(-len(items) // _SILENT_ROWS)
        answers, lengths = self.answers[items], self.answer_lengths[items]
        opening = len(self.template.opening)
        last = torch.where(cuts.is_cut, opening + cuts.tokens, lengths - 1)[:, None]
        answers = answers.scatter(1, last, self.template.end)[:, :text_length]
        lengths = last[:, 0] + 1
        answers[:silent, opening] = self.template.end
        lengths[:silent] = opening + 1
        return answers, lengths

    def _answer(
        self, weights: dict[str, Tensor], answers: Tensor, audio: Tensor, tokens: Tensor
    ) -> Tensor:
        """Logits (rows, text_length, vocabulary) after the ids of answers."""
        text_length = answers.shape[1]
        rows, most = audio.shape[:2]
        before, after = len(self._before), len(self._after)
        length = before + most + after + text_length - 1
        at = torch.arange(length, device=self.device)[None]
        tail = at - before - tokens[:, None]  # counts from the end of the audio
        ids = answers.gather(1, (tail - after).clamp(0, text_length - 1))
        ids = torch.where(tail < after, self._after[tail.clamp(0, after - 1)], ids)
        ids = torch.where(at < before, self._before[at.clamp_max(before - 1)], ids)
        x = F.embedding(ids, weights[EMBEDDING])
        row_numbers = torch.arange(rows, device=self.device)[:, None]
        placed = audio[row_numbers, (at - before).clamp(0, most - 1)]
        x = torch.where(((at >= before) & (tail < 0))[..., None], placed, x)
        context = self.ops.dense_context(rows, length)
        hidden = decode(self.ops, weights, self.config.text, TEXT_PREFIX, x, context)
        first = before + tokens[:, None] + after - 1
        states = hidden[row_numbers, first + torch.arange(text_length, device=self.device)]
        return F.linear(states, weights[EMBEDDING]).float()

    def _phone_loss(
        self,
        weights: dict[str, Tensor],
        audio: Tensor,
        labels: Tensor,
        lengths: Tensor,
    ) -> Tensor:
        """Each token stands for four labels of 20 ms, thirteen tokens for a second of fifty."""
        frames = labels.shape[1]
        real = torch.arange(frames, device=self.device) < lengths[:, None]
        unknown = ~real[..., None] | (labels == UNLABELLED)
        labels = labels.masked_fill(unknown, -100).flatten(1)
        labels = F.pad(labels, (0, -labels.shape[1] % _LABELS_A_CHUNK), value=-100)
        labels = F.pad(labels.unflatten(1, (-1, _LABELS_A_CHUNK)), (0, 2), value=-100)
        labels = labels.flatten(1).unflatten(1, (-1, 4))[:, : audio.shape[1]]
        logits = F.linear(audio, weights["phone_head.weight"]).float()
        return F.cross_entropy(logits.view(-1, _PHONES), labels.flatten(), ignore_index=-100)

    def save(self, out: Path) -> dict[str, Tensor]:
        """Write the averaged weights in the published layout, and return them."""
        views = self._fixed | self.weights.views(torch.float32, self.optimizer.averaged)
        tensors = {name: views[name] for name in tensor_shapes(self.config)}
        save_tensors(tensors, out / "model.safetensors", torch.float16)
        head = {name: views[name] for name in views if name not in tensors}
        save_tensors(head, out / PHONE_HEAD, torch.float16)
        preprocessor = {
            "feature_extractor_type": "WhisperFeatureExtractor",
            "feature_size": 128,
            "sampling_rate": 16000,
            "n_fft": 400,
            "hop_length": 160,
            "padding_side": "right",
            "padding_value": 0.0,
        }
        for name, values in (
            ("config", self.settings),
            ("generation_config", ASR_GENERATION),
            ("preprocessor_config", preprocessor),
        ):
            (out / f"{name}.json").write_text(json.dumps(values, indent=2) + "\n")
        return tensors


def train(trainer: AsrTrainer, args: argparse.Namespace) -> None:
    """Train for the time given and write the checkpoint as it goes."""
    clock = Clock(args.seconds)
    log = Log(args.out / "asr.log", clock)
    stepper = Stepper(trainer.device, capture=not args.plain)
    generator = np.random.default_rng(args.seed)
    torch.manual_seed(args.seed)
    corpus, device = trainer.corpus, trainer.device
    text_lengths = trainer.answer_lengths.cpu().numpy()
    longest = {edge: int(text_lengths[corpus.frames <= edge].max(initial=1)) for edge in _EDGES}
    buffers: dict[int, Tensor] = {}
    count = sum(torch.Size(s).numel() for s in tensor_shapes(trainer.config).values())
    log(f"asr: {count / 1e6:.2f} M parameters, {len(corpus)} utterances, {trainer.resumed} resumed")
    tensors = trainer.save(args.out)
    selection = Selection(args.chosen_by, args.out, device) if args.chosen_by else None

    def choose(tensors: dict[str, Tensor]) -> None:
        if selection is not None:
            rates = selection.consider(tensors).items()
            log("words wrong: " + ", ".join(f"{name} {rate:.1f} %" for name, rate in rates))

    choose(tensors)  # those that it goes on from are in the first means
    step, epoch, saved = 0, 0, 0.0
    while clock.share < 1 and step != args.steps:
        most = np.minimum(_MOST_SILENCE, _EDGES[-1] - corpus.frames).clip(0)
        padded = corpus.frames + (most * generator.random(len(corpus)) ** 2).astype(np.int64)
        for edge, items in bucket_batches(padded, _EDGES, args.frames, generator):
            if clock.share >= 1 or step == args.steps:
                break
            buffer = buffers.setdefault(edge, torch.zeros(len(items), dtype=torch.long).to(device))
            buffer.copy_(torch.from_numpy(items))
            share = args.schedule[0] + clock.share * (args.schedule[1] - args.schedule[0])
            trainer.optimizer.rate.fill_(learning_rate(share, step, args.rate))
            stepper.run(edge, partial(trainer.hold, buffer, edge, longest[edge]))
            stepper.run("apply", trainer.optimizer.apply)
            step += 1
            if step in (1, 10, 50) or step % 500 == 0:
                names = ("text", "phone", "drift", "right", "english", "norm")
                values = zip(names, trainer.metrics.tolist(), strict=True)
                log(f"step {step} epoch {epoch}: " + ", ".join(f"{n} {v:.3f}" for n, v in values))
            if clock.elapsed - saved > args.save_every:
                saved = clock.elapsed
                choose(trainer.save(args.out))
        epoch += 1
    choose(trainer.save(args.out))
    log(f"done after {step} steps, {epoch} epochs")


def main() -> None:
    """Train, or go on from the checkpoint in the output folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder that the speech recipe wrote")
    parser.add_argument("out", type=Path, help="checkpoint folder with the tokenizer")
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--frames", type=int, default=12_000, help="padded frames in a batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, help="read only so many parts of the corpus")
    parser.add_argument(
        "--layers", type=int, help="of encoder and decoder each: for a judge that is no relative"
    )
    parser.add_argument("--larger", action="store_true", help="a new one with 14 M parameters")
    parser.add_argument(
        "--own",
        type=re.compile,
        default=re.compile(""),
        help="pattern of the tensors to train; an aligner that has the others stays as it is",
    )
    parser.add_argument(
        "--cut-share", type=float, default=0.0, help="share of utterances that are cut off"
    )
    parser.add_argument(
        "--moved-share",
        type=float,
        default=_MOVED_SHARE,
        help="share of utterances with silence before and after",
    )
    parser.add_argument(
        "--anchor",
        type=float,
        default=0.0,
        help="weight of the divergence from the first weights' answers to speech",
    )
    parser.add_argument("--unspoken", type=Path, help="file of texts for the decoder alone")
    parser.add_argument("--gentle", action="store_true", help="no channels, warps and wider gaps")
    parser.add_argument("--orthogonal", action="store_true", help="Muon for matrices")
    parser.add_argument(
        "--schedule",
        type=float,
        nargs=2,
        default=(0.0, 1.0),
        help="part of the whole training that this is; the rate falls in the second half of it",
    )
    parser.add_argument("--plain", action="store_true", help="no CUDA graphs")
    parser.add_argument(
        "--chosen-by", type=Path, help="clips (selection.py) by which best.safetensors is chosen"
    )
    parser.add_argument("--save-every", type=float, default=60, help="seconds")
    parser.add_argument("--steps", type=int, help="end after so many, before the time is over")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    corpus = Corpus(args.data, _PARTS, device, args.jobs)
    train(AsrTrainer(args, corpus, device), args)


if __name__ == "__main__":
    main()
