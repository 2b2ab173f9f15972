"""Train the codec's codebooks: entries are moving averages of the latents nearest to them.

Quantizing from the first step collapses the latents (4 of 256 entries used). So training begins
without it; then the codebooks are initialized by k-means, and unused entries are replaced.
"""

from __future__ import annotations

import torch
import torch.distributed
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

_PACE = 0.02  # share of the codebook means that a batch replaces
_DEAD = 0.03  # entries used less than this share of the mean usage are replaced


class Codebooks:
    """All codebooks of a frame: the first quantizes one projection, the others another, in turn."""

    def __init__(self, count: int, size: int, width: int, device: torch.device):
        self.count, self.size = count, size
        self.entries = torch.zeros(count, size, width, device=device)
        self._usage = torch.ones(count, size, device=device)
        self._sums = torch.zeros(count, size, width, device=device)
        self._found = torch.zeros(count, size, 1 + width, device=device)  # hits and sums of a batch

    def load(self, entries: Tensor) -> None:
        """Load a checkpoint's entries, (codebooks, size, width)."""
        self.entries.copy_(entries)
        self._sums.copy_(entries)

    def quantise(
        self, first: Tensor, rest: Tensor, learn: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Quantize two projections of the same latents.

        Args:
            first: (n, width) float32, input of codebook 0.
            rest: (n, width) float32, input of the other codebooks.
            learn: Record the points of each entry, for `follow`.

        Returns:
            Quantised `first` and `rest` (gradients pass straight through), the commitment loss,
            and the codes (n, codebooks).
        """
        codes = [self._nearest(0, first.detach(), learn)]
        coded_first = self.entries[0][codes[0]]
        residual, coded_rest = rest.detach(), torch.zeros_like(rest)
        for book in range(1, self.count):
            code = self._nearest(book, residual, learn)
            found = self.entries[book][code]
            codes.append(code)
            residual, coded_rest = residual - found, coded_rest + found
        commitment = F.mse_loss(first, coded_first) + F.mse_loss(rest, coded_rest)
        through_first = first + (coded_first - first).detach()
        through_rest = rest + (coded_rest - rest).detach()
        return through_first, through_rest, commitment, torch.stack(codes, -1)

    @torch.no_grad()
    def start(self, first: Tensor, rest: Tensor, rounds: int = 12) -> None:
        """Initialize the entries by k-means on (n, width) latents."""
        for book in range(self.count):
            points = first if book == 0 else rest
            chosen = torch.randperm(len(points), device=points.device)[: self.size]
            self.entries[book] = points[chosen]
            self._usage[book] = len(points) / self.size
            self._sums[book] = points[chosen] * self._usage[book][:, None]
            for _ in range(rounds):
                code = self._distance(book, points).argmin(-1)
                self._move(book, points, code)
                self._revive(book, points)
            if book > 0:
                rest = rest - self.entries[book][self._distance(book, rest).argmin(-1)]
        self._follow_first()

    @torch.no_grad()
    def revive(self, first: Tensor, rest: Tensor) -> None:
        """Replace rarely used entries by random latents of (n, width) each."""
        for book in range(self.count):
            points = first if book == 0 else rest
            self._revive(book, points)
            if book > 0:
                rest = rest - self.entries[book][self._distance(book, rest).argmin(-1)]
        self._follow_first()

    def _follow_first(self) -> None:
        """Copy rank 0's codebooks to all ranks, because each rank drew its own."""
        if torch.distributed.is_initialized():
            for tensor in (self.entries, self._usage, self._sums):
                torch.distributed.broadcast(tensor, 0)

    def _distance(self, book: int, points: Tensor) -> Tensor:
        entries = self.entries[book]
        return entries.square().sum(1) - 2 * points @ entries.T

    @torch.no_grad()
    def _nearest(self, book: int, points: Tensor, learn: bool) -> Tensor:
        code = self._distance(book, points).argmin(-1)
        if learn:
            self._found[book] = self._falls(points, code)
        return code

    @torch.no_grad()
    def follow(self) -> None:
        """Update the entries from the points of the last batch, of all ranks."""
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(self._found)
        self._usage.lerp_(self._found[..., 0], _PACE)
        self._sums.lerp_(self._found[..., 1:], _PACE)
        self._centre(slice(None))

    def _falls(self, points: Tensor, code: Tensor) -> Tensor:
        """Return the number of points of each entry, and their sum: (entries, 1 + width)."""
        counted = torch.cat([torch.ones_like(points[:, :1]), points], 1)
        return torch.zeros_like(self._found[0]).index_add_(0, code, counted)

    @torch.no_grad()
    def _move(self, book: int, points: Tensor, code: Tensor) -> None:
        found = self._falls(points, code)
        self._usage[book] = found[:, 0]
        self._sums[book] = found[:, 1:]
        self._centre(book)

    def _centre(self, books: int | slice) -> None:
        used = self._usage[books][..., None] > 1e-3
        means = self._sums[books] / (self._usage[books][..., None] + 1e-5)
        self.entries[books] = torch.where(used, means, self.entries[books])

    @torch.no_grad()
    def _revive(self, book: int, points: Tensor) -> None:
        mean = self._usage[book].mean()
        dead = self._usage[book] < _DEAD * mean
        chosen = points[torch.randint(0, len(points), (self.size,), device=points.device)]
        self.entries[book] = torch.where(dead[:, None], chosen, self.entries[book])
        self._sums[book] = torch.where(dead[:, None], chosen * mean, self._sums[book])
        self._usage[book] = torch.where(dead, mean, self._usage[book])
