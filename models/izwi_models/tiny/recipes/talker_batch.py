"""A batch of the talker's training: all that is drawn of it, before anything is embedded."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Targets:
    """Targets of a batch's hidden states, (rows, frames + 1) each."""

    where: Tensor  # position whose state predicts each frame, including the end
    first: Tensor  # id of codebook 0, or the end of speech
    counted: Tensor  # weight; 0 for padding


@dataclass(frozen=True, slots=True)
class Layout:
    """The input of a batch as ids, before it is embedded; rows have up to `length` positions."""

    text: Tensor  # (rows, length)
    codec: Tensor  # (rows, length) control ids; -1 where there is none
    speaker: Tensor  # (rows, 1) position of the speaker
    by_name: Tensor  # (rows,) whether the speaker is a named voice's embedding, not a clip's vector
    first_frame: Tensor  # (rows, 1) position of the first frame
    history: Tensor  # (rows, frames, codebooks) codes with errors


@dataclass(frozen=True, slots=True)
class Batch:
    """All that is drawn of a step, apart from the speakers' clips."""

    items: Tensor  # (rows,) numbers of the utterances
    layout: Layout
    targets: Targets
    inside: Tensor  # (rows, frames) whether a frame belongs to the utterance
    frames: Tensor  # (chosen,) frames whose codebooks 1.. are predicted, among those of all rows
    codes: Tensor  # (chosen, codebooks)
    fine_weights: Tensor  # (chosen, codebooks - 1); 0 for padding

    @property
    def fine_codes(self) -> Tensor:
        """Codes of codebooks 1.., (chosen, codebooks - 1)."""
        return self.codes[:, 1:]
