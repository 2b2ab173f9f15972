"""The synthesized corpus on a device, and batches of similar length."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from izwi_models.tiny.recipes.speech import FRAME, LABEL, SpokenWord

Int64 = npt.NDArray[np.int64]


class Corpus:
    """Utterances, concatenated in one tensor of samples.

    Attributes:
        voices: (n,) voice number of each utterance.
        texts: Text of each utterance.
        frames: (n,) length in codec frames.
        starts: (n,) first frame of each utterance in `samples`.
        samples: (all frames * 1920,) int16 at 24 kHz on the device.
        phones: (all frames * 4,) uint8 phoneme numbers on the device.
    """

    def __init__(
        self,
        folder: Path,
        part: str,
        device: torch.device,
        limit: int | None = None,
        share: tuple[int, int] = (0, 1),
    ):
        """Read STEM.i16, STEM.phones.npy and STEM.json for each stem that starts with `part`.

        Args:
            folder: Output folder of the speech recipe.
            part: "train", "replies", "heldout" or "short"; several, separated by spaces.
            device: Device of the tensors.
            limit: Maximum number of stems.
            share: (rank, world): read every world-th stem, beginning with the rank-th.
        """
        stems = list_stems(folder, part, limit)[share[0] :: share[1]]
        rows = [row for stem in stems for row in json.loads(stem.with_suffix(".json").read_text())]
        self.device = device
        self.voices: Int64 = np.array([row[0] for row in rows])
        self.texts: list[str] = [row[1] for row in rows]
        self.frames: Int64 = np.array([row[2] // FRAME for row in rows])
        self.starts: Int64 = np.concatenate([[0], np.cumsum(self.frames)[:-1]])
        total = int(self.frames.sum())
        self.samples = torch.empty(total * FRAME, dtype=torch.int16, device=device)
        self.phones = torch.empty(total * (FRAME // LABEL), dtype=torch.uint8, device=device)
        at = 0
        for stem in stems:
            audio = torch.from_numpy(np.fromfile(stem.with_suffix(".i16"), np.int16))
            self.samples[at : at + len(audio)] = audio.to(device)
            labels = torch.from_numpy(np.load(stem.with_suffix(".phones.npy")))
            self.phones[at // LABEL : at // LABEL + len(labels)] = labels.to(device)
            at += len(audio)
        self.device_frames = torch.tensor(self.frames, device=device)
        self.device_starts = torch.tensor(self.starts, device=device)

    def __len__(self) -> int:
        return len(self.texts)

    def audio(self, first_frame: Tensor, count: int, kept: Tensor) -> Tensor:
        """Return (rows, count * 1920) float32 from `first_frame`; silence after `kept` frames."""
        offsets = torch.arange(count * FRAME, device=self.device)
        index = (first_frame[:, None] * FRAME + offsets).clamp_max(len(self.samples) - 1)
        return (self.samples[index].float() / 32768) * (offsets < kept[:, None] * FRAME)

    def labels(self, first_frame: Tensor, count: int) -> Tensor:
        """Return (rows, count, 4) int64 phoneme numbers from `first_frame`."""
        parts = FRAME // LABEL
        offsets = torch.arange(count * parts, device=self.device)
        index = (first_frame[:, None] * parts + offsets).clamp_max(len(self.phones) - 1)
        return self.phones[index].long().unflatten(1, (count, parts))


def list_stems(folder: Path, part: str, limit: int | None) -> list[Path]:
    """List the files of a corpus without their suffixes: the first `limit` of each part."""
    return [
        path.with_suffix("")
        for name in part.split()
        for path in sorted(folder.glob(f"{name}*.json"))[:limit]
    ]


class Clips:
    """The longer utterances of each voice.

    Attributes:
        counts: (voices,) int64, number of utterances of each.
    """

    def __init__(self, corpus: Corpus, least_frames: int):
        """Find them; shorter ones are left out: a clip must not be silence after a single word."""
        long = np.flatnonzero(corpus.frames >= least_frames)
        voices = corpus.voices[long]
        counts = np.bincount(voices, minlength=int(corpus.voices.max()) + 1)
        order = np.argsort(voices, kind="stable")
        self._items = torch.tensor(long[order], device=corpus.device)
        self._starts = torch.tensor(np.cumsum(counts) - counts, device=corpus.device)
        self.counts = torch.tensor(counts, device=corpus.device)

    def draw(self, voices: Tensor) -> Tensor:
        """Return an utterance (rows,) of each of these voices (rows,); any if a voice has none."""
        drawn = (torch.rand(len(voices), device=voices.device) * self.counts[voices]).long()
        return self._items[(self._starts[voices] + drawn).clamp_max(len(self._items) - 1)]


def read_words(folder: Path, part: str, limit: int | None) -> list[list[SpokenWord]]:
    """Read the words of each utterance, in the order of `Corpus`."""
    return [
        [SpokenWord(*word) for word in json.loads(line)]
        for stem in list_stems(folder, part, limit)
        for line in stem.with_suffix(".words.jsonl").read_text().splitlines()
    ]


def bucket_batches(
    lengths: Int64, edges: list[int], positions: int, generator: np.random.Generator
) -> list[tuple[int, Int64]]:
    """Cut an epoch into batches of equal shape.

    Args:
        lengths: (n,) length of each item.
        edges: Padded lengths, rising; items longer than the last are skipped.
        positions: Padded positions in a batch.
        generator: Source of randomness.

    Returns:
        (padded length, item numbers) of each batch, in random order.
    """
    batches: list[tuple[int, Int64]] = []
    low = 0
    for edge in edges:
        items = np.flatnonzero((lengths > low) & (lengths <= edge))
        low = edge
        rows = max(1, positions // edge)
        if 0 < len(items) < rows:  # repeat items of a rare length
            items = np.resize(items, rows)
        generator.shuffle(items)
        starts = range(0, len(items) - rows + 1, rows)
        batches += [(edge, items[start : start + rows]) for start in starts]
    order = generator.permutation(len(batches))
    return [batches[i] for i in order]


def text_table(rows: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return token ids padded with zeros, (n, longest) int64, and the lengths (n,)."""
    lengths = torch.tensor([len(row) for row in rows])
    table = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for number, row in enumerate(rows):
        table[number, : len(row)] = torch.tensor(row)
    return table.to(device), lengths.to(device)
