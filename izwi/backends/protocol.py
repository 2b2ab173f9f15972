"""What the engine asks of a backend: everything with arrays that models do not touch (ADR 25).

Engine, scheduler and the planning half of the runner see these protocols alone. Models see
`izwi.ops.Ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from izwi.config import EngineConfig
from izwi.layers import KVSpec, StateSpec
from izwi.model import Backend, Model, Pick, Row
from izwi.ops.protocol import Array, AttentionContext
from izwi.request import EncodeInput
from izwi.runner.in_flight import InFlight
from izwi.runner.logprobs import Logprobs
from izwi.sequence import Sequence
from izwi.tracks import Track

# Waits for samples, (n,) float32, that are being made.
PendingAudio = Callable[[], npt.NDArray[np.float32]]
# Entries drawn of the rows that emit, and `StepSampler.logprobs` by place among them.
Entries = tuple[list[list[int]], dict[int, Logprobs]]


class PagedKV(Protocol):
    """Keys and values of every layer of one model, in pages."""

    spec: KVSpec
    num_pages: int
    page_size: int

    def context(self, rows: Seq[Row]) -> AttentionContext:
        """Attention of packed rows, each seeing its own pages."""
        ...

    def copy(self, moves: Seq[tuple[int, int, int]]) -> None:
        """Copy the first slots of pages to the same places of other pages, in all layers.

        Args:
            moves: (source page, destination page, slots). Every source is read before any
                destination is written. Destinations differ from each other.
        """
        ...

    def read_pages(self, pages: Seq[int]) -> npt.NDArray[np.uint8]:
        """Copy pages to the host, (pages, page_bytes), exact bits."""
        ...

    def write_pages(self, pages: Seq[int], data: npt.NDArray[np.uint8]) -> None:
        """Put back what `read_pages` gave, into these or other pages.

        Raises:
            ValueError: The data is of another shape or dtype.
        """
        ...


class SavedRow(Protocol):
    """A row's state on the host."""

    @property
    def num_bytes(self) -> int:
        """Host memory that it takes."""
        ...


class StateArena(Protocol):
    """Rows of fixed-size state, one a stream. A row that is handed out is the start of one."""

    @property
    def num_free(self) -> int:
        """Free rows."""
        ...

    def beside(self) -> AbstractContextManager[None]:
        """Work inside runs beside the model's steps, where the device can do so."""
        ...

    def allocate(self) -> int:
        """Hand out a zeroed row. The caller checks `num_free` first."""
        ...

    def clear(self, row: int) -> None:
        """Make a row the start of a stream again."""
        ...

    def release(self, row: int) -> None:
        """Take a row back."""
        ...

    def commit(self, rows: Seq[int]) -> None:
        """Note that what wrote rows has succeeded: their state is that of their streams."""
        ...

    def is_committed(self, row: int) -> bool:
        """Whether the row's state is known: nothing that wrote it has failed."""
        ...

    def gather(self, rows: Seq[int]) -> Mapping[str, Array]:
        """Copy rows out, (len(rows), *shape) each."""
        ...

    def scatter(self, rows: Seq[int], state: Mapping[str, Array]) -> None:
        """Copy rows back in; the caller commits them."""
        ...

    def save(self, row: int) -> SavedRow:
        """Copy a row to the host; it stays as it is and may be released."""
        ...

    def restore(self, row: int, saved: Any) -> None:
        """Make a row what was saved, of this or another row.

        Raises:
            ValueError: It was saved from an arena of other arrays, which is our own bug.
        """
        ...


class StepSampler(Protocol):
    """Draws for the emitting rows of one step. Noise is a function of (seed, step, codebook)."""

    @property
    def pick(self) -> Pick:
        """The function that models call: logits (rows, vocabulary), codebook -> ids (rows,)."""
        ...

    def logprobs(self) -> dict[int, Logprobs]:
        """Log probabilities of what was drawn, by row, of the rows that ask for them."""
        ...


class Sampling(Protocol):
    """How entries of one model are drawn."""

    def of(self, sequences: Seq[Sequence], track: int = 0) -> StepSampler:
        """Prepare a step's draws on a track: one row a sequence, in row order."""
        ...


class RecordedSteps(Protocol):
    """Steps that a device has recorded and repeats, where it can: an optional capability."""

    def takes(self, rows: Seq[Row]) -> bool:
        """Whether the next entries of these rows can be drawn here."""
        ...

    def launch(self, rows: Seq[Row]) -> InFlight[Entries]:
        """Launch the rows; returns what waits for an entry of each that emits, in order."""
        ...

    def takes_chunks(self, most_frames: int) -> bool:
        """Whether chunks of up to so many frames can be made here."""
        ...

    def vocode(self, chunks: Seq[npt.NDArray[np.int64]], rows: Seq[int]) -> list[PendingAudio]:
        """Begin to make the next frames of streams, (frames, codebooks) each."""
        ...

    def hear(self, codes: Array, row: int) -> None:
        """Run frames, (frames, codebooks), through the codec for their state alone."""
        ...

    def encodes(self, piece: EncodeInput) -> bool:
        """Whether a piece of audio can be encoded here."""
        ...

    def encode(self, pieces: Seq[EncodeInput]) -> list[Array]:
        """Encode pieces of audio; what each gives has memory of its own."""
        ...


class ArrayBackend(Backend, Protocol):
    """One device in one dtype: what holds, moves, draws and frees arrays."""

    pads_encoders: bool  # whether pieces of audio are padded to go through an encoder together

    @property
    def device_name(self) -> str:
        """What arrays are on, as `--device` names it."""
        ...

    @property
    def dtype_name(self) -> str:
        """Of activations: "float32", "bfloat16" or "float16"."""
        ...

    @property
    def library(self) -> str:
        """Name and version of what computes, and what else decides the last bits."""
        ...

    def running(self) -> AbstractContextManager[Any]:
        """What all work of a model runs in: nothing is kept for gradients."""
        ...

    def own_stream(self) -> AbstractContextManager[None]:
        """Let this thread's work not wait for other work on the device."""
        ...

    def reporting_full_device(self) -> AbstractContextManager[None]:
        """Turn the error of a device that is full into InvalidRequest."""
        ...

    def free_kv_bytes(self) -> int:
        """Bytes that keys and values may take on the device as it is now.

        Memory that was given back counts as free.
        """
        ...

    def page_bytes(self, spec: KVSpec, page_size: int, kv_dtype: str) -> int:
        """Bytes that one page takes.

        Raises:
            InvalidRequest: `kv_dtype` is unknown.
        """
        ...

    def paged_kv(self, spec: KVSpec, num_pages: int, page_size: int, kv_dtype: str) -> PagedKV:
        """Allocate pages.

        Raises:
            InvalidRequest: `kv_dtype` is unknown, or the device cannot hold it.
        """
        ...

    def state_arena(self, specs: Mapping[str, StateSpec], num_rows: int) -> StateArena:
        """Allocate rows of state, one array a spec."""
        ...

    def sampling(self, tracks: Seq[Track]) -> Sampling:
        """Prepare what draws entries of a model's tracks."""
        ...

    def own_copy(self, x: Array) -> Array:
        """Copy of an array that keeps no other memory alive."""
        ...

    def record(
        self, model: Model, kv: Any, arena: Any, sampling: Any, config: EngineConfig
    ) -> RecordedSteps | None:
        """Record the steps of a model that repeat; None where the device cannot.

        Args:
            model: Whose steps.
            kv: What `paged_kv` of this backend gave.
            arena: What `state_arena` gave.
            sampling: What `sampling` gave.
            config: Budgets.
        """
        ...
