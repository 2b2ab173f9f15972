"""Draws whose parameters a kernel can read itself."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from izwi.backends.torch.triton.sampling import RowSampling
from izwi.model.protocol import Pick


@dataclass(frozen=True, slots=True, eq=False)
class DescribedPick:
    """A pick, with what its draws of codebooks 1.. read.

    Attributes:
        pick: Draws the ids of one codebook.
        sampling: Parameters of the rows.
        few_candidates: As of `izwi.backends.torch.triton.sampling.draw`.
        rehearses: Whether kernels are only compiled, so that no id may be looked up.
    """

    pick: Pick
    sampling: RowSampling
    few_candidates: bool
    rehearses: bool = False

    def __call__(self, logits: Tensor, codebook: int) -> Tensor:
        ids: Tensor = self.pick(logits, codebook)
        return ids
