"""Train the talker, its code predictor and the speaker encoder of izwi-tiny-tts.

In training the talker gets the true history, but when it speaks, its own. So the history is
corrupted here: codes are replaced at random, and fine codebooks are taken from another row. Judge a
checkpoint by what it generates (`evaluate.py`); the loss alone is misleading.
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

from izwi.checkpoints.folder import parse_config
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_tts import talker
from izwi_models.qwen3_tts.config import TTSConfig, tensor_shapes
from izwi_models.qwen3_tts.speaker import speaker_embedding
from izwi_models.tiny.recipes.codes import encode_corpus, settle_silence
from izwi_models.tiny.recipes.data import Clips, Corpus, bucket_batches, text_table
from izwi_models.tiny.recipes.fused import FusedNorms
from izwi_models.tiny.recipes.harness import (
    Clock,
    FlatWeights,
    Log,
    Optimizer,
    Stepper,
    divergence,
    initial_weights,
    join_ranks,
    joint_most,
    learning_rate,
    leave_ranks,
    masked_loss,
    resume_weights,
    save_tensors,
    take_schedule,
)
from izwi_models.tiny.recipes.people.kokoro_speech import LABELS, UNLABELLED
from izwi_models.tiny.recipes.rows import NEWEST
from izwi_models.tiny.recipes.settings import TTS_GENERATION, tts_config
from izwi_models.tiny.recipes.spectral import speaker_mel
from izwi_models.tiny.recipes.talker_batch import Batch, Layout, Targets
from izwi_models.tiny.recipes.voices import NAMED, all_voices

_PHONES = LABELS
_CLIP_FRAMES = 30  # length of a reference clip, 2.4 s
_EDGES = [56, 72, 88, 104, 120, 144, 168]
_SHORT_FRAMES = 18  # maximum length of one to three words
_PREDICTOR_FRAMES = 8192
_DAMAGED_ROWS, _DAMAGED_CODES = 0.7, 0.12
_SWAPPED_ROWS = 0.3
_STILL_WEIGHT = 4.0  # weight of a silent frame: pauses are rare, and noise in them is audible


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
        # each rank has read other utterances, so maybe other voices
        voices = joint_most(max(len(all_voices()), int(corpus.voices.max()) + 1), device)
        heads = {"phone_head.weight": (4 * _PHONES, hidden), "voice_head.weight": (voices, hidden)}
        tensors = initial_weights({**tensor_shapes(self.config), **heads}, args.seed)
        self.resumed = resume_weights(tensors, args.out / "model.safetensors")
        self._anchor = float(args.anchor)
        self._auxiliary = 0.0 if args.anchor else 1.0  # their heads start anew
        first = tensors if args.anchor else {}
        self._teacher = {name: value.to(device, self.dtype) for name, value in first.items()}
        own = {name: value for name, value in tensors.items() if args.own.search(name)}
        self._fixed = {name: value.to(device) for name, value in tensors.items() if name not in own}
        self._shared = {name: value.to(self.dtype) for name, value in self._fixed.items()}
        self.weights = FlatWeights(own, device)
        self.optimizer = Optimizer(self.weights, clip=1.0, average=0.9995)
        self.metrics = torch.zeros(7, device=device)
        codec = args.out / "speech_tokenizer"
        self.codes = encode_corpus(corpus, codec, device)
        still = settle_silence(self.codes, corpus, codec)
        self._frame_weights = 1.0 + (_STILL_WEIGHT - 1.0) * still
        self._clips = Clips(corpus, _CLIP_FRAMES + 2)
        self._voices = torch.tensor(corpus.voices, device=device)
        named = [voice.name for voice in NAMED]
        newest = torch.tensor([named.index(name) for name in NEWEST], device=device)
        self._is_newest = torch.isin(self._voices, newest)

    def hold(self, items: Tensor, length: int) -> None:
        """Compute the gradient of a batch; see `loss`."""
        self.optimizer.hold(self.loss(items, length))

    def loss(self, items: Tensor, length: int) -> Tensor:
        """Compute the loss of the utterances `items` (rows,), padded to `length` positions."""
        weights = self._shared | self.weights.views(self.dtype)
        batch = self._draw_batch(items, length)
        vectors, voice_loss = self._speakers(weights, self._voices[items])
        states = self._states(weights, batch, vectors)
        first, rest = self._logits(weights, batch, states)
        targets = batch.targets
        first_loss = masked_loss(first, targets.first, targets.counted)
        rest_loss = masked_loss(rest, batch.fine_codes, batch.fine_weights)
        phone_loss = self._phone_loss(weights, states[:, :-1], batch)
        drift = torch.zeros_like(first_loss)
        if self._anchor:
            with torch.no_grad():
                wanted = self._states(self._teacher, batch, vectors)
                first_aims, rest_aims = self._logits(self._teacher, batch, wanted)
            kept = ~self._is_newest[items][:, None]
            kept_frames = kept.expand(batch.inside.shape).flatten()[batch.frames][:, None]
            drift = divergence(first, first_aims, targets.counted * kept)
            drift = drift + divergence(rest, rest_aims, batch.fine_weights * kept_frames)
        right = ((first.argmax(-1) == targets.first) * targets.counted).sum()
        values = [first_loss, rest_loss, phone_loss, voice_loss, drift, self.optimizer.norm]
        values.append(right / targets.counted.sum())
        self.metrics.copy_(torch.stack([v.detach().float() for v in values]))
        auxiliary = 0.3 * phone_loss + 0.05 * voice_loss
        return first_loss + rest_loss + self._auxiliary * auxiliary + self._anchor * drift

    def _draw_batch(self, items: Tensor, length: int) -> Batch:
        """Draw all that is random in a batch, so that other weights can be given the same."""
        frames = min(length - 12, 104)
        lengths, starts = self.corpus.device_frames[items], self.corpus.device_starts[items]
        offsets = torch.arange(frames, device=self.device)
        places = (starts[:, None] + offsets).clamp_max(len(self.codes) - 1)
        codes, weighed = self.codes[places].long(), self._frame_weights[places]
        layout = self._lay_out(items, codes, length)
        targets = self._targets(items, codes, layout.first_frame, length)
        # the end must weigh as much as the silence that may follow instead, or speech ends too late
        inside = offsets < lengths[:, None]
        targets.counted[:, :-1] *= torch.where(inside, weighed, _STILL_WEIGHT)
        chosen = self._draw_frames(inside)
        chosen_codes = codes.flatten(0, 1)[chosen]
        fine_weights = (inside * weighed).flatten()[chosen][:, None]
        return Batch(
            items=items,
            layout=layout,
            targets=targets,
            inside=inside,
            frames=chosen,
            codes=chosen_codes,
            fine_weights=fine_weights.expand(chosen_codes[:, 1:].shape),
        )

    def _states(self, weights: dict[str, Tensor], batch: Batch, vectors: Tensor) -> Tensor:
        """Return the states that predict each frame and the end: (rows, frames + 1, hidden)."""
        x = self._embed(weights, batch, vectors)
        context = self.ops.dense_context(*x.shape[:2])
        hidden = talker.hidden_states(self.ops, weights, self.config, x, context)
        rows = torch.arange(len(x), device=self.device)[:, None]
        return hidden[rows, batch.targets.where]

    def _logits(
        self, weights: dict[str, Tensor], batch: Batch, states: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return float32 logits of codebook 0, and of the others for the chosen frames.

        The shapes are (rows, frames + 1, vocabulary) and (chosen, codebooks - 1, vocabulary).
        """
        first = talker.codec_logits(self.ops, weights, states)
        chosen = states[:, :-1].flatten(0, 1)[batch.frames]
        rest = talker.predictor_logits(self.ops, weights, self.config, chosen, batch.codes)
        return first.float(), rest.float()

    def _speakers(self, weights: dict[str, Tensor], voices: Tensor) -> tuple[Tensor, Tensor]:
        """Return a vector for each row from a clip of its voice, and their classification loss."""
        item = self._clips.draw(voices)
        room = (self.corpus.device_frames[item] - _CLIP_FRAMES - 2).clamp_min(0)
        shift = (torch.rand(len(item), device=self.device) * (room + 1)).long() + 1
        first = self.corpus.device_starts[item] + shift
        audio = self.corpus.audio(first, _CLIP_FRAMES, self.corpus.device_frames[item] - shift)
        audio = audio * (0.2 + 0.8 * torch.rand(len(item), 1, device=self.device))
        noise = torch.rand(len(item), 1, device=self.device) * 0.003
        mel = speaker_mel(audio + noise * torch.randn_like(audio)).to(self.dtype)
        config = self.config.speaker_encoder_config
        assert config is not None
        vectors = speaker_embedding(self.ops, weights, config, mel)
        logits = F.linear(vectors, weights["voice_head.weight"]).float()
        spoken = self._clips.counts[voices] > 0
        loss = F.cross_entropy(logits, voices, reduction="none")
        return vectors, (loss * spoken).sum() / spoken.sum().clamp_min(1)

    def _lay_out(self, items: Tensor, codes: Tensor, length: int) -> Layout:
        """Draw the input of a batch, in both text modes, with and without the language."""
        config, device = self.config.talker_config, self.device
        rows = len(items)
        text_lengths = self.text_lengths[items][:, None]
        streaming = torch.rand(rows, 1, device=device) < 0.5
        told = torch.rand(rows, 1, device=device) < 0.5  # whether the language is given
        head = 8 + told.long()
        first_frame = torch.where(streaming, head + 1, head + text_lengths + 2)
        at = torch.arange(length, device=device)[None]
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
        return Layout(
            text=self._text_track(items, at, head, text_lengths),
            codec=codec,
            speaker=head - 2,
            by_name=torch.rand(rows, device=device) < 0.6,
            first_frame=first_frame,
            history=self._damaged(codes),
        )

    def _embed(self, weights: dict[str, Tensor], batch: Batch, vectors: Tensor) -> Tensor:
        """Return input embeddings (rows, length, hidden)."""
        items, layout = batch.items, batch.layout
        rows, length = layout.text.shape
        at = torch.arange(length, device=self.device)[None]
        x = talker.embed_text(self.ops, weights, layout.text)
        controls = talker.embed_codec(self.ops, weights, layout.codec.clamp_min(0))
        x = x + controls * (layout.codec >= 0)[..., None]
        speaker = self._speaker_slot(weights, batch, vectors)
        x = x + speaker[:, None] * (at == layout.speaker)[..., None]
        codes = layout.history
        frames = talker.embed_frame(self.ops, weights, codes.flatten(0, 1)).unflatten(0, (rows, -1))
        frame = at - layout.first_frame
        inside = (frame >= 0) & (frame < self.corpus.device_frames[items][:, None])
        row_numbers = torch.arange(rows, device=self.device)[:, None]
        history = frames[row_numbers, frame.clamp(0, codes.shape[1] - 1)]
        return x + history * inside[..., None]

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

    def _speaker_slot(self, weights: dict[str, Tensor], batch: Batch, vectors: Tensor) -> Tensor:
        """Return (rows, hidden): the embedding of a named voice, or a clip's vector."""
        voices = self._voices[batch.items]
        base = min(self.config.talker_config.spk_id.values())
        named = talker.embed_codec(self.ops, weights, voices.clamp_max(len(NAMED) - 1) + base)
        by_name = (voices < len(NAMED)) & batch.layout.by_name
        return torch.where(by_name[:, None], named, vectors.to(named.dtype))

    def _damaged(self, codes: Tensor) -> Tensor:
        """Return frames with random errors, as in the talker's own output."""
        rows, _, books = codes.shape
        device = self.device
        size = self.config.talker_config.code_predictor_config.vocab_size
        swapped = torch.rand(rows, 1, 1, device=device) < _SWAPPED_ROWS
        kept = (torch.rand(rows, 1, 1, device=device) * books).long() + 1
        fine = torch.arange(books, device=device) >= kept
        heard = torch.where(swapped & fine, codes.roll(1, 0), codes)
        broken = torch.rand(rows, 1, 1, device=device) < _DAMAGED_ROWS
        broken = broken & (torch.rand(heard.shape, device=device) < _DAMAGED_CODES)
        return torch.where(broken, torch.randint_like(heard, size), heard)

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

    def _phone_loss(self, weights: dict[str, Tensor], states: Tensor, batch: Batch) -> Tensor:
        starts = self.corpus.device_starts[batch.items]
        labels = self.corpus.labels(starts, states.shape[1])  # (rows, frames, 4)
        logits = F.linear(states, weights["phone_head.weight"]).float()
        counted = batch.inside[..., None] & (labels != UNLABELLED)
        known = labels.clamp_max(_PHONES - 1)
        return masked_loss(logits.unflatten(-1, (4, _PHONES)), known, counted.float())

    def _draw_frames(self, real: Tensor) -> Tensor:
        """Draw the frames whose codebooks 1.. are predicted: indices into all rows' frames."""
        scores = torch.rand(real.shape, device=self.device) + real
        count = min(_PREDICTOR_FRAMES, real.numel())
        return scores.flatten().topk(count, sorted=False).indices

    def save(self, out: Path) -> None:
        """Write the averaged weights in the published layout."""
        views = self._fixed | self.weights.views(torch.float32, self.optimizer.averaged)
        tensors = {name: views[name] for name in tensor_shapes(self.config)}
        save_tensors(tensors, out / "model.safetensors", torch.float16)
        (out / "config.json").write_text(json.dumps(self.settings, indent=2) + "\n")
        generation = json.dumps(TTS_GENERATION, indent=2) + "\n"
        (out / "generation_config.json").write_text(generation)


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
    begin, end = args.schedule
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
            trainer.optimizer.rate.fill_(
                learning_rate(begin + (end - begin) * clock.share, step, args.rate)
            )
            stepper.run(length, partial(trainer.hold, buffer, length))
            trainer.optimizer.apply()
            step += 1
            if step in (1, 10, 50) or step % 500 == 0:
                names = ("first", "rest", "phone", "voice", "drift", "norm", "right")
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
    parser.add_argument(
        "--anchor",
        type=float,
        default=0.0,
        help="weight of the divergence from the first weights, but for the newest voices",
    )
    parser.add_argument("--plain", action="store_true", help="no CUDA graphs")
    parser.add_argument("--save-every", type=float, default=60, help="seconds")
    parser.add_argument("--steps", type=int, help="end after so many, before the time is over")
    take_schedule(parser)
    args = parser.parse_args()
    rank, world, device = join_ranks()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    corpus = Corpus(args.data, "train", device, args.jobs, share=(rank, world))
    train(TalkerTrainer(args, corpus, device), args, rank)
    leave_ranks()


if __name__ == "__main__":
    main()
