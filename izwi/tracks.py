"""The kinds of entries that a model emits, and the codec that turns frames into sound."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from izwi.layers import StateSpec
from izwi.ops.protocol import Array
from izwi.sequence import Sequence

# The codes of a frame behind the end of a stream, which a codec whose sound lags needs to see.
END = -1


class Codec(Protocol):
    """What turns the frames of a track into sound."""

    @property
    def sample_rate(self) -> int:
        """Of the sound, Hz."""
        ...

    @property
    def frame_samples(self) -> int:
        """Samples of one frame at `sample_rate`."""
        ...

    @property
    def lookahead_samples(self) -> int:
        """Samples by which sound lags its frames, less than a frame; 0 where it does not.

        Sample i that `decode` gives belongs at i - lookahead_samples of the sound. A stream ends
        with a frame whose codes are all `END`, which brings its last samples; what is behind that
        frame changes none of them. The model has several tracks.
        """
        ...

    @property
    def state(self) -> Mapping[str, StateSpec]:
        """What a stream of sound keeps between chunks. Zeros are the start of a stream."""
        ...

    @property
    def warms_up(self) -> bool:
        """Whether `warm_codes` gives any, for some request."""
        ...

    def warm_codes(self, sequence: Sequence) -> Array | None:
        """Frames that the codec must hear before the first emitted one.

        (frames, codebooks) int64 on the device, or None.

        In-context cloning continues the reference clip, so its frames come first and their
        sound is dropped.
        """
        ...

    def decode(self, codes: Array, state: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        """Turn (rows, frames, codebooks) into (rows, samples) in [-1, 1] and the next state.

        From arrays on the device alone, as `Recordable.embed_inputs`.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """One kind of entry that a model emits: text tokens, or frames of codec codes.

    Attributes:
        name: For messages and metrics: "text", "frames".
        num_codebooks: Ids in one entry.
        vocabulary: Ids of codebook 0.
        suppressed: (vocabulary,) ids of codebook 0 that are never drawn, stop ids excepted, or
            None.
        codec: Turns the entries into sound; None for text. One track of a model has one at most.
        silent_ids: Entries with one of these as first id are part of the log, but no sound: the
            end of a stretch of frames.
        in_prompt: Entries are drawn at output positions of the prompt and take no position.
    """

    name: str
    num_codebooks: int
    vocabulary: int
    suppressed: npt.NDArray[np.bool_] | None = None
    codec: Codec | None = None
    silent_ids: frozenset[int] = frozenset()
    in_prompt: bool = False


def frame_track(tracks: Seq[Track]) -> int | None:
    """Which of a model's tracks becomes sound, if any."""
    return next((n for n, track in enumerate(tracks) if track.codec is not None), None)
