"""The kinds of entries that a model emits, and the codec that turns frames into audio."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from izwi.model.layers import StateSpec
from izwi.model.step_batch import Span
from izwi.ops.protocol import Array

# Codes of the frame after the end of a stream, which codecs need whose audio lags its frames.
END = -1


class CodecSizes(Protocol):
    """What a codec needs of a device for each stream: known without its weights."""

    @property
    def state(self) -> Mapping[str, StateSpec]:
        """State that a stream keeps between chunks. Zeros are the start of a stream."""
        ...

    def peak_values(self, frames: int) -> int:
        """Return the most numbers that decoding a stream's frames keeps at once, without state.

        The memory plan needs it.
        """
        ...


class Codec(CodecSizes, Protocol):
    """The codec of a track, which turns its frames into audio."""

    @property
    def sample_rate(self) -> int:
        """Sample rate of the audio, Hz."""
        ...

    @property
    def frame_samples(self) -> int:
        """Number of samples in one frame, at `sample_rate`."""
        ...

    @property
    def lookahead_samples(self) -> int:
        """Number of samples by which audio lags its frames, less than a frame; 0 for no lag.

        Sample i from `decode` is sample i - lookahead_samples of the audio. A stream ends with a
        frame whose codes are all `END`, which gives its last samples; frames after it do not change
        them. A lag is allowed only in models with several tracks.
        """
        ...

    @property
    def warms_up(self) -> bool:
        """Whether `warm_codes` returns frames for some requests."""
        ...

    def warm_codes(self, span: Span) -> Array | None:
        """Return frames that the codec must decode before the first emitted one.

        In-context cloning continues the reference clip, so its frames are decoded first and their
        audio is dropped.

        Args:
            span: The positions of the prompt.

        Returns:
            (frames, codebooks) int64 on the device, or None.
        """
        ...

    def decode(self, codes: Array, state: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        """Decode (rows, frames, codebooks) to (rows, samples) in [-1, 1], and the next state.

        Uses only arrays on the device, like `Capturable.embed_inputs`.
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
        codec: Turns the entries into audio; None for text. At most one track of a model has one.
        silent_ids: Entries with one of these as first id are part of the log, but give no audio:
            they end a stretch of frames.
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
    """Return the index of the track with the codec; None if there is none."""
    return next((n for n, track in enumerate(tracks) if track.codec is not None), None)
