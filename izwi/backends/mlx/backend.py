"""MLX on its default device: Apple's GPU through Metal, or a CPU."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Container, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import cast

import mlx.core as mx

from izwi.backends.budget import free_host_kv_bytes
from izwi.backends.kept_packed import KeptPacked
from izwi.backends.memory_plan import DeviceMemory, GraphBytes
from izwi.backends.mlx.kv import MlxPagedKV, page_bytes
from izwi.backends.mlx.launched import LaunchedSteps, can_launch
from izwi.backends.mlx.ops import DTYPES, MlxOps
from izwi.backends.mlx.paged_decode import metal_kernel
from izwi.backends.mlx.quantized import MlxWeight
from izwi.backends.mlx.sampler import MlxSampling
from izwi.backends.mlx.state import MlxStateArena
from izwi.backends.mlx.weights import load_weights
from izwi.checkpoints.linear_spec import LinearForm
from izwi.config import EngineConfig
from izwi.errors import InvalidRequest
from izwi.host.allocator import keep_freed
from izwi.host.rank_links import FollowerProcesses
from izwi.model.layers import KVSpec, StateSpec
from izwi.model.protocol import CapturableModel, Model
from izwi.model.tracks import Track
from izwi.ops.ranks import Part

# Share of the process memory that Metal recommends; the rest is for activations and the system.
_DEVICE_SHARE = 0.6
_BITS = {"auto": None, "float": None, "int8": 8, "int4": 4}


class MlxBackend:
    """MLX in one dtype. Implements `izwi.backends.protocol.Backend`."""

    pads_encoders = False  # one device runs one piece after the other as fast

    def __init__(self, ops: MlxOps, *, launches_ahead: bool = False):
        """Bind the default device.

        Args:
            ops: The operations.
            launches_ahead: Whether steps are launched without waiting for their results.
        """
        self.ops, self.launches_ahead = ops, launches_ahead
        self.followers: FollowerProcesses | None = None  # there is one rank
        self._is_gpu = mx.default_device().type == mx.gpu
        self._kept: weakref.WeakSet[MlxPagedKV | MlxStateArena] = weakref.WeakSet()

    def load_weights(
        self,
        folder: Path,
        shapes: Mapping[str, tuple[int, ...]],
        packable: Container[str] = (),
        parts: Mapping[str, Part] | None = None,
    ) -> dict[str, MlxWeight]:
        """Read a folder's weights; see `izwi.backends.mlx.weights.load_weights`.

        From then on this thread computes in a stream that every thread may finish, because the
        step thread is the first to need what models prepare of their weights.
        """
        assert not parts  # there is one rank
        use_shared_stream()
        kept = KeptPacked(packable if self.ops.packs else (), self.ops.keeps_packed)
        weights = load_weights(folder, shapes, self.ops.dtype, kept)
        kept.warn(folder, self.device_name, self.dtype_name)
        return weights

    def packed_bytes(self, form: LinearForm) -> int:
        """Return what a checkpoint's packed weight takes, packed or widened."""
        return self.ops.packed_bytes(form)

    @property
    def device_name(self) -> str:
        """MLX has one device."""
        return "mlx"

    @property
    def dtype_name(self) -> str:
        """Dtype of activations."""
        return next(name for name, dtype in DTYPES.items() if dtype == self.ops.dtype)

    @property
    def library(self) -> str:
        """Version of MLX, and whether it runs on a GPU."""
        return f"mlx {version('mlx')}, {'gpu' if self._is_gpu else 'cpu'}"

    @contextmanager
    def running(self) -> Iterator[None]:
        """At the end, compute writes that were not read yet, as of a prompt without an entry.

        With steps in flight they are only handed to the device, which runs them in order.
        """
        yield
        evaluate = mx.async_eval if self.launches_ahead else mx.eval
        evaluate([kept.arrays for kept in self._kept])

    @contextmanager
    def own_stream(self) -> Iterator[None]:
        """Run this thread's work in its own stream."""
        with mx.stream(mx.new_thread_unsafe_stream(mx.default_device())):
            yield

    @contextmanager
    def reporting_full_device(self) -> Iterator[None]:
        """Convert MLX's out-of-memory error to InvalidRequest."""
        try:
            yield
        except RuntimeError as error:
            if "alloc" not in str(error).lower() and "memory" not in str(error).lower():
                raise
            message = "the device has no room for the model"
            raise InvalidRequest(message, param="model") from error

    @property
    def itemsize(self) -> int:
        """Bytes of a number in the dtype of activations."""
        return int(self.ops.dtype.size)

    @property
    def captures(self) -> bool:
        """No: graphs are lazy, and their memory is the host's."""
        return False

    def memory(self) -> DeviceMemory:
        """Return what keys and values may take now, of the memory shared by all."""
        if not self._is_gpu:
            free = free_host_kv_bytes()
            return DeviceMemory(free, free, is_shared=True)
        mx.clear_cache()  # what models left that are gone
        most = int(mx.device_info()["max_recommended_working_set_size"])
        free = int(_DEVICE_SHARE * (most - mx.get_active_memory()))
        return DeviceMemory(most, max(0, min(free, 4 * free_host_kv_bytes())), is_shared=True)

    def request_error(self, error: BaseException) -> BaseException:
        """Return the error: MLX has no type for a full device."""
        return error

    def limit_memory(self, num_bytes: int) -> None:
        """Let MLX allocate at most this much."""
        mx.set_memory_limit(num_bytes)

    def keep_workspace(self, num_bytes: int) -> None:
        """Do nothing: the memory is shared with all programs."""

    def rehearse(self, model: Model, config: EngineConfig) -> GraphBytes:  # noqa: ARG002
        """Do nothing: nothing is captured."""
        return GraphBytes()

    @property
    def page_copies(self) -> int:
        """Two with steps launched ahead, which use them in turn; see `izwi.backends.mlx.kv`."""
        return 2 if self.launches_ahead else 1

    def page_bytes(self, spec: KVSpec, page_size: int, kv_dtype: str) -> int:
        """Return the bytes of one page. Raises InvalidRequest if `kv_dtype` is not "auto"."""
        return page_bytes(spec, page_size, self.ops.dtype, kv_dtype)

    def paged_kv(self, spec: KVSpec, num_pages: int, page_size: int, kv_dtype: str) -> MlxPagedKV:
        """Allocate pages. Raises InvalidRequest if `kv_dtype` is not "auto"."""
        self.page_bytes(spec, page_size, kv_dtype)
        kernel = metal_kernel() if self._is_gpu else None
        kv = MlxPagedKV(spec, num_pages, page_size, self.ops.dtype, kernel)
        self._kept.add(kv)
        return kv

    def state_arena(self, specs: Mapping[str, StateSpec], num_rows: int) -> MlxStateArena:
        """Allocate rows of state."""
        device = mx.default_device()
        stream = mx.new_thread_unsafe_stream(device) if self.launches_ahead else None
        arena = MlxStateArena(specs, num_rows, self.ops.dtype, stream)
        self._kept.add(arena)
        return arena

    def sampling(self, tracks: Seq[Track]) -> MlxSampling:
        """Prepare the sampling of a model's entries."""
        return MlxSampling(tracks, mx.float32 if self._is_gpu else mx.float64)

    def try_products(self) -> None:
        """Do nothing: products are computed in one way."""

    def own_copy(self, x: mx.array) -> mx.array:
        """Return a copy of an array that keeps no other memory alive."""
        copy = mx.contiguous(x) + mx.zeros((), dtype=x.dtype)
        mx.eval(copy)
        return copy

    def capture(
        self,
        model: Model,
        kv: MlxPagedKV,
        arena: MlxStateArena,
        sampling: MlxSampling,
        config: EngineConfig,  # noqa: ARG002
    ) -> LaunchedSteps | None:
        """Return what launches a model's steps; None if each waits for the results of the last.

        Nothing is captured: each step is one new lazy graph.
        """
        if not self.launches_ahead or not can_launch(model):
            return None
        kv.duplicate()
        return LaunchedSteps(cast(CapturableModel, model), kv, arena, sampling)


_thread = threading.local()


def use_shared_stream() -> None:
    """Make this thread's default stream one whose arrays every thread may compute."""
    if not hasattr(_thread, "stream"):
        _thread.stream = mx.new_thread_unsafe_stream(mx.default_device())
    mx.set_default_stream(_thread.stream)


def mlx_backend(
    dtype: str = "auto",
    weights: str = "auto",
    attention: str = "auto",
    *,
    launches_ahead: bool | None = None,
) -> MlxBackend:
    """Bind MLX to its default device.

    Args:
        dtype: A key of DTYPES, or "auto": bfloat16 on a GPU, float32 on a CPU.
        weights: Dtype of the decoders' weights: "auto" (as `dtype`, or as the checkpoint packs
            them), "float", "int8" or "int4".
        attention: Must be "auto".
        launches_ahead: Whether the next step is launched before the host knows what the last one
            drew. None: on a GPU.

    Raises:
        InvalidRequest: The dtype, `weights` or `attention` is unknown or not available.
    """
    if dtype == "auto":
        dtype = "bfloat16" if mx.default_device().type == mx.gpu else "float32"
    if dtype not in DTYPES:
        raise InvalidRequest(
            f"dtype {dtype!r} is not one of auto, {', '.join(sorted(DTYPES))}", param="dtype"
        )
    if weights not in _BITS:
        raise InvalidRequest(
            f"weights {weights!r} are not available with MLX: use {', '.join(_BITS)}",
            param="weights",
        )
    if attention != "auto":
        raise InvalidRequest(
            f"attention {attention!r} is not available with MLX: use 'auto'", param="attention"
        )
    use_shared_stream()
    if mx.default_device().type == mx.cpu:
        keep_freed()  # a GPU's arrays have an allocator of MLX's own, which keeps them
    if launches_ahead is None:
        launches_ahead = mx.default_device().type == mx.gpu
    return MlxBackend(
        MlxOps(DTYPES[dtype], _BITS[weights], packs=weights != "float"),
        launches_ahead=launches_ahead,
    )
