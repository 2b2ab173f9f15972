"""The batch of a step as bytes, for another process that runs it: a rank, a replay.

It holds all that the step reads besides weights, pages and codec state: logs and block tables up to
where the rows use them, encoded audio, and the masks of grammars.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any, Generic

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from izwi.cache.pages import pages_for
from izwi.model.step_batch import Row, StepBatch
from izwi.request.request import PromptT, Request
from izwi.request.serialization import Frame, decode, encode
from izwi.request.track_log import Entry
from izwi.sampling.grammars import fill_masks


class RowMessage(Struct, frozen=True, array_like=True, eq=False):
    """A `Row`, with what it refers to; its request is that of `StepMessage` at its place."""

    start: int
    stop: int
    entries: list[Entry]
    written: tuple[int, ...]
    is_open: bool
    encoded: tuple[npt.NDArray[Any], ...]
    key: int
    tracks: list[int] | None
    pages: list[int]
    step: int
    drawn: tuple[int, ...]
    track: int
    adjusts: bool
    allowed: npt.NDArray[np.int32] | None


class StepMessage(Struct, Generic[PromptT], frozen=True, eq=False):
    """A `StepBatch`."""

    requests: list[Request[PromptT]]
    rows: list[RowMessage]


def encode_batch(
    batch: StepBatch, page_size: int, vocabulary: int, to_host: Callable[[Any], npt.NDArray[Any]]
) -> list[Frame]:
    """Encode a batch.

    Args:
        batch: The batch.
        page_size: Positions of a page.
        vocabulary: Ids of the first track, for the masks of grammars.
        to_host: Copies an encoder's result.

    Raises:
        InvalidRequest: A row's grammar exceeds a limit, or allows no token.
    """
    rows = [_message(row, page_size, vocabulary, to_host) for row in batch.rows]
    return encode(StepMessage([row.request for row in batch.rows], rows))


def _message(
    row: Row, page_size: int, vocabulary: int, to_host: Callable[[Any], npt.NDArray[Any]]
) -> RowMessage:
    entries, tracks = row.before()
    return RowMessage(
        start=row.start,
        stop=row.stop,
        entries=entries,
        written=row.written,
        is_open=row.is_open,
        encoded=tuple(map(to_host, row.encoded)),
        key=row.key,
        tracks=tracks,
        pages=list(row.pages[: pages_for(row.stop, page_size)]),
        step=row.step,
        drawn=row.drawn,
        track=row.track,
        adjusts=row.adjusts,
        allowed=None if row.allowed is None else fill_masks([row.allowed], vocabulary)[0],
    )


class BatchDecoder:
    """Decodes batches of models with known prompts."""

    def __init__(self, prompts: Sequence[type[Struct]], to_device: Callable[[Any], Any]):
        """Set up.

        Args:
            prompts: See `izwi.model.protocol.Family.prompts`.
            to_device: Copies an encoder's result.
        """
        self._cls: Any = StepMessage[reduce(or_, prompts)]  # type: ignore[misc]
        self._to_device = to_device

    def decode(self, frames: Sequence[Frame]) -> StepBatch:
        """Decode a batch. Raises InvalidMessage."""
        message: StepMessage[Any] = decode(frames, self._cls)
        pairs = zip(message.requests, message.rows, strict=True)
        return StepBatch(tuple(self._row(request, row) for request, row in pairs))

    def _row(self, request: Request, row: RowMessage) -> Row:
        return Row(
            request=request,
            num_prompt=request.prompt.num_positions,
            start=row.start,
            stop=row.stop,
            entries=row.entries,
            num_known=len(row.entries),
            written=row.written,
            is_open=row.is_open,
            encoded=tuple(map(self._to_device, row.encoded)),
            key=row.key,
            tracks=row.tracks,
            pages=row.pages,
            step=row.step,
            drawn=row.drawn,
            track=row.track,
            adjusts=row.adjusts,
            allowed=row.allowed,
            memo={},
        )
