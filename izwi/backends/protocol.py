"""What the engine needs from a backend: all work on arrays that models do not do (ADR 25).

Engine, scheduler and the planning half of the runner use only these protocols. Models use
`izwi.ops.Ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from izwi.backends.in_flight import InFlight
from izwi.backends.memory_plan import DeviceMemory, GraphBytes
from izwi.checkpoints.linear_spec import LinearForm
from izwi.config import EngineConfig
from izwi.host.rank_links import FollowerProcesses
from izwi.model.layers import KVSpec, StateSpec
from izwi.model.protocol import Model, ModelBackend, Pick
from izwi.model.step_batch import Row, StepBatch
from izwi.model.tracks import Track
from izwi.ops.protocol import Array, AttentionContext
from izwi.request.request import EncodeInput
from izwi.sampling.draws import Logprobs

# Waits for samples, (n,) float32, that are being computed.
PendingAudio = Callable[[], npt.NDArray[np.float32]]
# DrawnEntries drawn for the rows that emit, and `StepSampler.logprobs` by index among them.
DrawnEntries = tuple[list[list[int]], dict[int, Logprobs]]


class PagedKV(Protocol):
    """Keys and values of every layer of one model, in pages."""

    spec: KVSpec
    num_pages: int
    page_size: int

    def context(self, rows: Seq[Row]) -> AttentionContext:
        """Return the attention of packed rows, each over its own pages."""
        ...

    def copy(self, moves: Seq[tuple[int, int, int]]) -> None:
        """Copy the first slots of pages to the same places of other pages, in all layers.

        Args:
            moves: (source page, destination page, slots). Every source is read before any
                destination is written. Destinations differ from each other.
        """
        ...

    def read_pages(self, pages: Seq[int]) -> npt.NDArray[np.uint8]:
        """Copy pages to the host: (pages, page_bytes), bit-exact."""
        ...

    def write_pages(self, pages: Seq[int], data: npt.NDArray[np.uint8]) -> None:
        """Restore the result of `read_pages`, into these or other pages.

        Raises:
            ValueError: The data is of another shape or dtype.
        """
        ...


class SavedRow(Protocol):
    """A row's state on the host."""

    @property
    def num_bytes(self) -> int:
        """Host memory in bytes."""
        ...


class StateArena(Protocol):
    """Rows of fixed-size state, one for each stream. A new row is the start of a stream."""

    @property
    def num_free(self) -> int:
        """Number of free rows."""
        ...

    def side_stream(self) -> AbstractContextManager[None]:
        """Run the work inside concurrently to the model's steps, if the device can."""
        ...

    def allocate(self) -> int:
        """Allocate a zeroed row. The caller checks `num_free` first."""
        ...

    def clear(self, row: int) -> None:
        """Reset a row to the start of a stream."""
        ...

    def release(self, row: int) -> None:
        """Free a row."""
        ...

    def commit(self, rows: Seq[int]) -> None:
        """Record that the work that wrote rows has succeeded, so their state is valid."""
        ...

    def is_committed(self, row: int) -> bool:
        """Whether the row's state is valid: no work that wrote it has failed."""
        ...

    def gather(self, rows: Seq[int]) -> Mapping[str, Array]:
        """Copy rows out, (len(rows), *shape) each."""
        ...

    def scatter(self, rows: Seq[int], state: Mapping[str, Array]) -> None:
        """Copy rows back in; the caller commits them."""
        ...

    def save(self, row: int) -> SavedRow:
        """Copy a row to the host; it stays valid and may be released."""
        ...

    def restore(self, row: int, saved: Any) -> None:
        """Restore a saved row, into this or another row.

        Raises:
            ValueError: It was saved from an arena with other arrays, which is a bug.
        """
        ...


class StepSampler(Protocol):
    """Draws for the emitting rows of one step. Noise is a function of (seed, step, codebook)."""

    @property
    def pick(self) -> Pick:
        """Draw ids: logits (rows, vocabulary), codebook -> ids (rows,). Models call this."""
        ...

    def logprobs(self) -> dict[int, Logprobs]:
        """Return the log probabilities of drawn ids by row, for the rows that request them."""
        ...


class Sampling(Protocol):
    """Sampling of one model's entries."""

    def for_step(self, draws: Seq[Row], track: int = 0) -> StepSampler:
        """Prepare a step's draws on a track, one for each row: see `StepBatch.draws`."""
        ...


class CapturedSteps(Protocol):
    """Steps that a device runs while the next one is planned: an optional capability.

    CUDA captures them as graphs; MLX launches them as they are.
    """

    def takes(self, batch: StepBatch) -> bool:
        """Return whether the next entries of these rows can be drawn by captured steps."""
        ...

    def launch(self, batch: StepBatch) -> InFlight[DrawnEntries]:
        """Launch a batch; return a wait for its entries, in order."""
        ...

    def takes_chunks(self, most_frames: int) -> bool:
        """Return whether chunks of up to this many frames can be decoded by captured steps."""
        ...

    def vocode(self, chunks: Seq[npt.NDArray[np.int64]], rows: Seq[int]) -> list[PendingAudio]:
        """Begin to decode the next frames of streams, (frames, codebooks) each."""
        ...

    def advance_codec(self, codes: Array, row: int) -> None:
        """Decode frames, (frames, codebooks), only to advance the codec state."""
        ...

    def encodes(self, piece: EncodeInput) -> bool:
        """Return whether a piece of audio can be encoded by captured steps."""
        ...

    def encode(self, pieces: Seq[EncodeInput]) -> list[Array]:
        """Encode pieces of audio; each result has its own memory."""
        ...


class Backend(ModelBackend, Protocol):
    """One device in one dtype: allocates, moves, samples and frees arrays."""

    pads_encoders: bool  # whether pieces of audio are padded to go through an encoder together
    # what runs the same steps on the other ranks; None on those, and if there are none
    followers: FollowerProcesses | None

    @property
    def device_name(self) -> str:
        """Name of the device, as in `--device`."""
        ...

    @property
    def dtype_name(self) -> str:
        """Dtype of activations: "float32", "bfloat16" or "float16"."""
        ...

    @property
    def library(self) -> str:
        """Name and version of the library, and all else that determines the last bits."""
        ...

    def running(self) -> AbstractContextManager[Any]:
        """Return the context for all work of a model: gradients are off."""
        ...

    def own_stream(self) -> AbstractContextManager[None]:
        """Run this thread's work without waiting for other work on the device."""
        ...

    def reporting_full_device(self) -> AbstractContextManager[None]:
        """Convert the device's out-of-memory error to InvalidRequest."""
        ...

    def request_error(self, error: BaseException) -> BaseException:
        """Return the error that a request ends with: DeviceFull for a full device."""
        ...

    @property
    def itemsize(self) -> int:
        """Bytes of a number in the dtype of activations."""
        ...

    @property
    def captures(self) -> bool:
        """Whether steps are captured into graphs with memory of their own."""
        ...

    def packed_bytes(self, form: LinearForm) -> int:
        """Return what a checkpoint's packed weight takes here: packed, or widened if it must be."""
        ...

    def memory(self) -> DeviceMemory:
        """Return the device's memory, and what may be allocated of it now.

        Freed memory counts as free.
        """
        ...

    def limit_memory(self, num_bytes: int) -> None:
        """Use at most this much of the device's memory, weights included."""
        ...

    def keep_workspace(self, num_bytes: int) -> None:
        """Keep memory for work that is not planned, so that no other program takes it."""
        ...

    def rehearse(self, model: Model, config: EngineConfig) -> GraphBytes:
        """Compile the kernels of a model's graphs, and measure the memory that they will take.

        Nothing is captured and no pages are needed. Without graphs this does nothing.
        """
        ...

    @property
    def page_copies(self) -> int:
        """How often each page exists on the device, while steps are launched ahead."""
        ...

    def page_bytes(self, spec: KVSpec, page_size: int, kv_dtype: str) -> int:
        """Return the bytes of one copy of a page.

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
        """Allocate rows of state, with one array for each spec."""
        ...

    def sampling(self, tracks: Seq[Track]) -> Sampling:
        """Prepare the sampling of a model's entries."""
        ...

    def try_products(self) -> None:
        """Try what products with the loaded weights need once, so that no request waits for it."""
        ...

    def own_copy(self, x: Array) -> Array:
        """Return a copy of an array that keeps no other memory alive."""
        ...

    def capture(
        self, model: Model, kv: Any, arena: Any, sampling: Any, config: EngineConfig
    ) -> CapturedSteps | None:
        """Capture the steps of a model that repeat, or set up launching them; None if it cannot.

        Args:
            model: The model.
            kv: Result of `paged_kv` of this backend.
            arena: Result of `state_arena`.
            sampling: Result of `sampling`.
            config: Budgets.
        """
        ...
