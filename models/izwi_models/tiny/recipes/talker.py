"""Train the talker, its code predictor and the speaker encoder of izwi-tiny-tts.

In training the talker gets the true history, but when it speaks, its own. So the history is
corrupted here: codes are replaced at random, and fine codebooks are taken from another row. Judge a
checkpoint by what it generates (`evaluate.py`); the loss alone is misleading.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

from izwi.checkpoint import parse_config
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_tts import talker
from izwi_models.qwen3_tts.config import TTSConfig, tensor_shapes
from izwi_models.qwen3_tts.speaker import speaker_embedding
from izwi_models.tiny.recipes.codes import encode_corpus, settle_silence
from izwi_models.tiny.recipes.data import Corpus, bucket_batches, text_table
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
from izwi_models.tiny.recipes.settings import TTS_GENERATION, tts_config
from izwi_models.tiny.recipes.spectral import speaker_mel
from izwi_models.tiny.recipes.speech import UNKNOWN_PHONE
from izwi_models.tiny.recipes.voices import NAMED, all_voices

_PHONES = UNKNOWN_PHONE + 1
_CLIP_FRAMES = 30  # length of a reference clip, 2.4 s
_EDGES = [56, 72, 88, 104, 120, 144, 168]
_SHORT_FRAMES = 18  # maximum length of one to three words
_PREDICTOR_FRAMES = 8192
_DAMAGED_ROWS, _DAMAGED_CODES = 0.7, 0.12
_SWAPPED_ROWS = 0.3
_STILL_WEIGHT = 4.0  # weight of a silent frame: pauses are rare, and noise in them is audible


@dataclass(frozen=True, slots=True)
class Targets:
    """Targets of a batch's hidden states, (rows, frames + 1) each."""

    where: Tensor  # position whose state predicts each frame, including the end
    first: Tensor  # id of codebook 0, or the end of speech
    counted: Tensor  # weight; 0 for padding


class TalkerTrainer:
    """The weights of model.safetensors, two heads used only in training, and the corpus."""

    def __init__(self, args: argparse.Namespace, corpus: Corpus, device: torch.device):
        self.device, self.corpus = device, corpus
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.ops = FusedNorms(device, self.dtype)
        tokenizer = QwenTokenizer(args.out)
        self.newline = tokenizer.encode("\n")[0]
        self.settings = tts_config(tokenizer.encode("assistant")[0])
        self.config = parse_config(TTSConfig, self.settings, "settings")
        ids = [tokenizer.encode(text) for text in corpus.texts]
        self._texts, self.text_lengths = text_table(ids, device)
        hidden = self.config.talker_config.hidden_size
        voices = len(all_voices())
        heads = {"phone_head.weight": (4 * _PHONES, hidden), "voice_head.weight": (voices, hidden)}
        tensors = initial_weights({**tensor_shapes(self.config), **heads}, args.seed)
        self.resumed = resume_weights(tensors, args.out / "model.safetensors")
        own = {name: value for name, value in tensors.items() if args.own.search(name)}
        self._fixed = {name: value.to(device) for name, value in tensors.items() if name not in own}
        self._shared = {name: value.to(self.dtype) for name, value in self._fixed.items()}
        self.weights = FlatWeights(own, device)
        self.optimizer = Optimizer(self.weights, clip=1.0, average=0.9995)
        self.metrics = torch.zeros(6, device=device)
        codec = args.out / "speech_tokenizer"
        self.codes = encode_corpus(corpus, codec, device)
        still = settle_silence(self.codes, corpus, codec)
        self._frame_weights = 1.0 + (_STILL_WEIGHT - 1.0) * still
        self._voice_table = _by_voice(corpus, device)
        self._voices = torch.tensor(corpus.voices, device=device)

    # -- a batch -----------------------------------------------------------------------------
    def hold(self, items: Tensor, length: int) -> None:
        """Compute the gradient of a batch; see `loss`."""
        self.optimizer.hold(self.loss(items, length))

    def loss(self, items: Tensor, length: int) -> Tensor:
        """Compute the loss of the utterances `items` (rows,), padded to `length` positions."""
        weights = self._shared | self.weights.views(self.dtype)
        frames = min(length - 12, 104)
        lengths, starts = self.corpus.device_frames[items], self.corpus.device_starts[items]
        offsets = torch.arange(frames, device=self.device)
        places = (starts[:, None] + offsets).clamp_max(len(self.codes) - 1)
        codes, weighed = self.codes[places].long(), self._frame_weights[places]
        vectors, voice_loss = self._speakers(weights)
        x, targets = self._lay_out(weights, items, codes, vectors, length)
        # the end must weigh as much as the silence that may follow instead, or speech ends too late
        inside = offsets < lengths[:, None]
        targets.counted[:, :-1] *= torch.where(inside, weighed, _STILL_WEIGHT)
        context = self.ops.dense_context(len(items), length)
        hidden = talker.hidden_states(self.ops, weights, self.config, x, context)
        rows = torch.arange(len(items), device=self.device)[:, None]
        states = hidden[rows, targets.where]  # (rows, frames + 1, hidden)
        logits = talker.codec_logits(self.ops, weights, states).float()
        first_loss = _masked_loss(logits, targets.first, targets.counted)
        states = states[:, :-1]
        phone_loss = self._phone_loss(weights, states, starts, inside)
        rest_loss = self._predictor_loss(weights, states, codes, inside * weighed)
        right = ((logits.argmax(-1) == targets.first) * targets.counted).sum()
        values = [first_loss, rest_loss, phone_loss, voice_loss, self.optimizer.norm]
        values.append(right / targets.counted.sum())
        self.metrics.copy_(torch.stack([v.detach().float() for v in values]))
        return first_loss + rest_loss + 0.3 * phone_loss + 0.05 * voice_loss

    def _speakers(self, weights: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return a vector for each voice from one of its clips, and their classification loss."""
        table, counts = self._voice_table
        drawn = (torch.rand(len(table), device=self.device) * counts).long()
        item = table.gather(1, drawn[:, None])[:, 0]
        room = (self.corpus.device_frames[item] - _CLIP_FRAMES - 2).clamp_min(0)
        shift = (torch.rand(len(item), device=self.device) * (room + 1)).long() + 1
        first = self.corpus.device_starts[item] + shift
        sound = self.corpus.sound(first, _CLIP_FRAMES, self.corpus.device_frames[item] - shift)
        sound = sound * (0.2 + 0.8 * torch.rand(len(item), 1, device=self.device))
        noise = torch.rand(len(item), 1, device=self.device) * 0.003
        mel = speaker_mel(sound + noise * torch.randn_like(sound)).to(self.dtype)
        config = self.config.speaker_encoder_config
        assert config is not None
        vectors = speaker_embedding(self.ops, weights, config, mel)
        logits = F.linear(vectors, weights["voice_head.weight"]).float()
        voices = torch.arange(len(table), device=self.device)
        spoken = counts > 0
        loss = F.cross_entropy(logits, voices, reduction="none")
        return vectors, (loss * spoken).sum() / spoken.sum()

    def _lay_out(
        self, weights: dict[str, Tensor], items: Tensor, codes: Tensor, vectors: Tensor, length: int
    ) -> tuple[Tensor, Targets]:
        """Return input embeddings (rows, length, hidden) in both text modes, and their targets."""
        config, device = self.config.talker_config, self.device
        rows = len(items)
        text_lengths = self.text_lengths[items][:, None]
        streaming = torch.rand(rows, 1, device=device) < 0.5
        told = torch.rand(rows, 1, device=device) < 0.5  # whether the language is given
        head = 8 + told.long()
        first_frame = torch.where(streaming, head + 1, head + text_lengths + 2)
        at = torch.arange(length, device=device)[None]
        text = self._text_track(items, at, head, text_lengths)
        codec = torch.full((rows, length), -1, device=device)
        codec = torch.where(
            at == 3, torch.where(told, config.codec_think_id, config.codec_nothink_id), codec
        )
        codec = torch.where(at == 4, config.codec_think_bos_id, codec)
        language = config.codec_language_id["english"]
        codec = torch.where(told & (at == 5), language, codec)
        codec = torch.where(at == 5 + told.long(), config.codec_think_eos_id, codec)
        codec = torch.where(at == head - 1, config.codec_pad_id, codec)
        beside_text = ~streaming & (at >= head) & (at <= head + text_lengths)
        codec = torch.where(beside_text, config.codec_pad_id, codec)
        codec = torch.where(at == first_frame - 1, config.codec_bos_id, codec)
        x = talker.embed_text(self.ops, weights, text)
        controls = talker.embed_codec(self.ops, weights, codec.clamp_min(0))
        x = x + controls * (codec >= 0)[..., None]
        speaker = self._speaker_slot(weights, items, vectors)
        x = x + speaker[:, None] * (at == head - 2)[..., None]
        frames = self._embed_history(weights, codes)
        frame = at - first_frame
        inside = (frame >= 0) & (frame < self.corpus.device_frames[items][:, None])
        row_numbers = torch.arange(rows, device=device)[:, None]
        history = frames[row_numbers, frame.clamp(0, codes.shape[1] - 1)]
        x = x + history * inside[..., None]
        return x, self._targets(items, codes, first_frame, length)

    def _text_track(self, items: Tensor, at: Tensor, head: Tensor, lengths: Tensor) -> Tensor:
        """Return (rows, length) text ids: role, pads, text, its end, pads."""
        config = self.config
        texts = self._texts[items]
        text = texts.gather(1, (at - head).clamp(0, texts.shape[1] - 1))
        text = torch.where((at >= head) & (at < head + lengths), text, config.tts_pad_token_id)
        text = torch.where(at == head + lengths, config.tts_eos_token_id, text)
        text = torch.where(at == head - 1, config.tts_bos_token_id, text)
        role = (config.im_start_token_id, config.assistant_token_id, self.newline)
        for position, token in enumerate(role):
            text = torch.where(at == position, token, text)
        return text

    def _speaker_slot(self, weights: dict[str, Tensor], items: Tensor, vectors: Tensor) -> Tensor:
        """Return (rows, hidden): the embedding of a named voice, or a clip's vector at random."""
        voices = self._voices[items]
        base = min(self.config.talker_config.spk_id.values())
        named = talker.embed_codec(self.ops, weights, voices.clamp_max(len(NAMED) - 1) + base)
        by_name = (voices < len(NAMED)) & (torch.rand(len(items), device=self.device) < 0.6)
        return torch.where(by_name[:, None], named, vectors[voices].to(named.dtype))

    def _embed_history(self, weights: dict[str, Tensor], codes: Tensor) -> Tensor:
        """Embed frames with random errors, as in the talker's own output."""
        rows, _, books = codes.shape
        device = self.device
        size = self.config.talker_config.code_predictor_config.vocab_size
        swapped = torch.rand(rows, 1, 1, device=device) < _SWAPPED_ROWS
        kept = (torch.rand(rows, 1, 1, device=device) * books).long() + 1
        fine = torch.arange(books, device=device) >= kept
        heard = torch.where(swapped & fine, codes.roll(1, 0), codes)
        broken = torch.rand(rows, 1, 1, device=device) < _DAMAGED_ROWS
        broken = broken & (torch.rand(heard.shape, device=device) < _DAMAGED_CODES)
        heard = torch.where(broken, torch.randint_like(heard, size), heard)
        return talker.embed_frame(self.ops, weights, heard.flatten(0, 1)).unflatten(0, (rows, -1))

    def _targets(self, items: Tensor, codes: Tensor, first_frame: Tensor, length: int) -> Targets:
        frame = torch.arange(codes.shape[1] + 1, device=self.device)[None]
        lengths = self.corpus.device_frames[items][:, None]
        first = F.pad(codes[..., 0], (0, 1))
        end = self.config.talker_config.codec_eos_token_id
        return Targets(
            where=(first_frame - 1 + frame).clamp_max(length - 1),
            first=torch.where(frame == lengths, end, first),
            counted=(frame <= lengths).float(),
        )

    # -- losses besides codebook 0 -------------------------------------------------------------
    def _phone_loss(
        self, weights: dict[str, Tensor], states: Tensor, starts: Tensor, real: Tensor
    ) -> Tensor:
        labels = self.corpus.labels(starts, states.shape[1])  # (rows, frames, 4)
        logits = F.linear(states, weights["phone_head.weight"]).float()
        counted = real[..., None].expand(labels.shape).float()
        return _masked_loss(logits.unflatten(-1, (4, _PHONES)), labels, counted)

    def _predictor_loss(
        self, weights: dict[str, Tensor], states: Tensor, codes: Tensor, weighed: Tensor
    ) -> Tensor:
        """Compute the loss of codebooks 1.. for a sample of the frames; `weighed` is 0 in pads."""
        real = weighed > 0
        scores = torch.rand(real.shape, device=self.device) + real
        count = min(_PREDICTOR_FRAMES, real.numel())
        chosen = scores.flatten().topk(count, sorted=False).indices
        frames = codes.flatten(0, 1)[chosen]
        logits = talker.predictor_logits(
            self.ops, weights, self.config, states.flatten(0, 1)[chosen], frames
        )
        counted = weighed.flatten()[chosen][:, None].expand(frames[:, 1:].shape)
        return _masked_loss(logits.float(), frames[:, 1:], counted)

    # -- the checkpoint ------------------------------------------------------------------------
    def save(self, out: Path) -> None:
        """Write the averaged weights in the published layout."""
        views = self._fixed | self.weights.views(torch.float32, self.optimizer.averaged)
        tensors = {name: views[name] for name in tensor_shapes(self.config)}
        save_tensors(tensors, out / "model.safetensors", torch.float16)
        (out / "config.json").write_text(json.dumps(self.settings, indent=2) + "\n")
        generation = json.dumps(TTS_GENERATION, indent=2) + "\n"
        (out / "generation_config.json").write_text(generation)


def _masked_loss(logits: Tensor, targets: Tensor, counted: Tensor) -> Tensor:
    losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    return (losses * counted.flatten()).sum() / counted.sum().clamp_min(1)


def _by_voice(corpus: Corpus, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the longer utterances of each voice, (voices, most) padded, and their counts."""
    long = corpus.frames >= _CLIP_FRAMES + 2  # a clip must not be silence after a single word
    lists = [np.flatnonzero((corpus.voices == v) & long) for v in range(len(all_voices()))]
    table = torch.zeros(len(lists), max(map(len, lists)), dtype=torch.long)
    for row, items in enumerate(lists):
        table[row, : len(items)] = torch.from_numpy(items)
    return table.to(device), torch.tensor([len(items) for items in lists], device=device)


def train(trainer: TalkerTrainer, args: argparse.Namespace, rank: int) -> None:
    """Train for the given time; rank 0 writes the checkpoint at intervals."""
    clock = Clock(args.seconds)
    log = Log(args.out / f"talker{rank}.log", clock)
    stepper = Stepper(trainer.device, capture=not args.plain)
    generator = np.random.default_rng(args.seed + 100 * rank)
    torch.manual_seed(args.seed + 100 * rank)
    corpus = trainer.corpus
    lengths = trainer.text_lengths.cpu().numpy() + corpus.frames + 12
    usable = np.where((lengths <= _EDGES[-1]) & (corpus.frames <= 104 - 1), lengths, 10**6)
    shortest = np.flatnonzero(corpus.frames <= _SHORT_FRAMES)
    drawn = np.concatenate([np.arange(len(corpus)), np.repeat(shortest, args.repeat_short)])
    buffers: dict[int, Tensor] = {}
    count = sum(torch.Size(s).numel() for s in tensor_shapes(trainer.config).values())
    log(f"talker: {count / 1e6:.2f} M parameters, {len(corpus)} utterances")
    step, epoch, saved, stopped = 0, 0, 0.0, False
    while not stopped:  # ranks must check the time at the same steps; their epochs differ in length
        for length, items in bucket_batches(usable[drawn], _EDGES, args.positions, generator):
            stopped = step % 20 == 0 and clock.joint_share(trainer.device) >= 1
            stopped = stopped or step == args.steps
            if stopped:
                break
            buffer = buffers.setdefault(
                length, torch.zeros(len(items), dtype=torch.long, device=trainer.device)
            )
            buffer.copy_(torch.from_numpy(drawn[items]))
            trainer.optimizer.rate.fill_(learning_rate(clock.share, step, args.rate))
            stepper.run(length, partial(trainer.hold, buffer, length))
            trainer.optimizer.apply()
            step += 1
            if step in (1, 10, 50) or step % 500 == 0:
                names = ("first", "rest", "phone", "voice", "norm", "right")
                values = trainer.metrics.tolist()
                log(
                    f"step {step} epoch {epoch}: "
                    + ", ".join(f"{n} {v:.3f}" for n, v in zip(names, values, strict=True))
                )
            if rank == 0 and clock.elapsed - saved > args.save_every:
                saved = clock.elapsed
                trainer.save(args.out)
        epoch += 1
    if rank == 0:
        trainer.save(args.out)
    log(f"done after {step} steps, {epoch} epochs")


def main() -> None:
    """Train, continuing from the checkpoint in the output folder if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder that the speech recipe wrote")
    parser.add_argument("out", type=Path, help="checkpoint folder with tokenizer and codec")
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--positions", type=int, default=49_152)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--repeat-short", type=int, default=0, help="additional draws of each short utterance"
    )
    parser.add_argument("--jobs", type=int, help="number of parts of the corpus to read")
    parser.add_argument(
        "--own",
        type=re.compile,
        default=re.compile(""),
        help="pattern of the tensors to train",
    )
    parser.add_argument("--plain", action="store_true", help="no CUDA graphs")
    parser.add_argument("--save-every", type=float, default=60, help="seconds")
    parser.add_argument(
        "--steps", type=int, help="end after this many steps, if the time is not over"
    )
    args = parser.parse_args()
    rank, world, device = join_ranks()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    corpus = Corpus(args.data, "train", device, args.jobs, share=(rank, world))
    train(TalkerTrainer(args, corpus, device), args, rank)
    leave_ranks()


if __name__ == "__main__":
    main()
