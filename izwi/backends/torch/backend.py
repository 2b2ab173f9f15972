"""Choose a device and a dtype, and bind the operations to them."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from izwi.backends.budget import free_host_kv_bytes
from izwi.backends.kept_packed import KeptPacked
from izwi.backends.memory_plan import DeviceMemory, GraphBytes
from izwi.backends.torch.grouped import GroupedWeight
from izwi.backends.torch.kv import PagedKV, bytes_per_page
from izwi.backends.torch.ops import TorchOps
from izwi.backends.torch.sampler import TorchSampling
from izwi.backends.torch.state import StateArena
from izwi.backends.torch.weights import load_weights
from izwi.cache.pages import pages_for
from izwi.checkpoints.linear_spec import LinearForm
from izwi.checkpoints.weight_files import NO_PARTS
from izwi.config import EngineConfig
from izwi.errors import DeviceFull, InvalidRequest
from izwi.host.rank_links import FollowerProcesses
from izwi.model.layers import KVSpec, StateSpec
from izwi.model.protocol import Model
from izwi.model.tracks import Track, frame_track
from izwi.ops.ranks import Part, RankPlace, Ranks

if TYPE_CHECKING:
    from izwi.backends.torch.captured.graphs import Capturers, Graphs


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


# With fewer bytes of weights than this, a matrix product takes less time than splitting it between
# two cores. Measured on 2 cores with one stream of the embedded voice: a step takes 17.7 ms on one
# thread and 17.7 to 20 ms on two, but 66 to 290 ms on two beside one other busy process, because
# each of some 250 products waits for the other core. With 8 streams: 45 ms on one, 33 ms on two.
_SMALL_BYTES = 256 << 20


class TorchBackend:
    """Torch on one device in one dtype. Implements `izwi.backends.protocol.Backend`."""

    def __init__(self, ops: TorchOps):
        self.ops = ops
        self.followers: FollowerProcesses | None = None
        # on a CPU padding costs what batching saves, and makes results depend on the batch (ADR 5)
        self.pads_encoders = ops.device.type != "cpu"
        self._loaded_bytes = 0
        self._limit_bytes: int | None = None
        self._workspace_bytes, self._has_workspace = 0, False
        # shared by all models: their graphs run one after the other
        self._capturers: Capturers | None = None
        self._graph_bytes = GraphBytes()
        self._side_stream: SideStream | None = None
        self._all_threads = torch.get_num_threads()

    def load_weights(
        self,
        folder: Path,
        shapes: Mapping[str, tuple[int, ...]],
        packable: Container[str] = (),
        parts: Mapping[str, Part] | None = None,
    ) -> dict[str, Tensor | GroupedWeight]:
        """Read a folder's weights; see `izwi.backends.torch.weights.load_weights`.

        On a CPU this also sets the number of threads: one for small models, all for large ones.
        """
        # joined weights are all packed or all plain, and parts are plain
        packs = self.ops.packs and self.ops.ranks.count == 1
        kept = KeptPacked(packable if packs else (), self.ops.keeps_packed)
        device, dtype = self.ops.device, self.ops.dtype
        with self.reporting_full_device():
            weights = load_weights(
                *(folder, shapes),
                device=device,
                dtype=dtype,
                stays_packed=kept,
                parts=parts or NO_PARTS,
            )
        kept.warn(folder, self.device_name, self.dtype_name)
        self._loaded_bytes += sum(weight.nbytes for weight in weights.values())
        if self.ops.device.type == "cpu":
            small = self._loaded_bytes < _SMALL_BYTES
            torch.set_num_threads(1 if small else self._all_threads)
        return weights

    def packed_bytes(self, form: LinearForm) -> int:
        """Return what a checkpoint's packed weight takes, packed or widened."""
        return self.ops.packed_bytes(form)

    @property
    def device_name(self) -> str:
        """Torch's name of the device."""
        return str(self.ops.device)

    @property
    def dtype_name(self) -> str:
        """Name of the dtype of activations."""
        return str(self.ops.dtype).removeprefix("torch.")

    @property
    def library(self) -> str:
        """Torch's version; on a CPU also its kernels and number of threads."""
        kernels, threads = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
        return f"torch {torch.__version__}, {kernels}, threads: {threads}"

    def running(self) -> AbstractContextManager[Any]:
        """Context for all work of a model: inference mode."""
        return torch.inference_mode()

    def own_stream(self) -> AbstractContextManager[None]:
        """Run this thread's launches on a stream of its own, concurrent to other work."""
        return self._own_stream()

    @contextmanager
    def _own_stream(self) -> Iterator[None]:
        with self.ops.own_stream():
            self._claim_workspace()
            yield

    @contextmanager
    def reporting_full_device(self) -> Iterator[None]:
        """Convert torch's out-of-memory error to InvalidRequest."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            message = "the device has no room for the model"
            raise InvalidRequest(message, param="model") from error

    @property
    def itemsize(self) -> int:
        """Bytes of a number in the dtype of activations."""
        return self.ops.dtype.itemsize

    @property
    def captures(self) -> bool:
        """Whether steps are captured: on CUDA with Triton."""
        return self.ops.captures

    def request_error(self, error: BaseException) -> BaseException:
        """Return the error that a request ends with: DeviceFull for a full device."""
        if isinstance(error, torch.OutOfMemoryError):
            return DeviceFull(
                "the device has no memory left for this request; retry later", retry_after_s=2
            )
        return error

    def memory(self) -> DeviceMemory:
        """Return the device's memory; on a CPU, what keys and values may take of the host's.

        With several ranks, the least that any has, so that all make the same plan.
        """
        ranks = self.ops.ranks
        if self.ops.device.type != "cuda":
            (free,) = least(ranks, [free_host_kv_bytes() // ranks.count])
            return DeviceMemory(free, free, is_shared=True)
        torch.cuda.empty_cache()  # else torch keeps unloaded models' memory
        device = self.ops.device
        free, total = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device)
        if self._limit_bytes is not None:
            total = min(total, self._limit_bytes)
            free = min(free, total - reserved)
        idle = reserved - torch.cuda.memory_allocated(device)
        total, free, idle = least(ranks, [total, max(0, free), idle])
        return DeviceMemory(total, free, idle)

    def limit_memory(self, num_bytes: int) -> None:
        """Use at most this much of a CUDA device's memory, weights included."""
        if self.ops.device.type != "cuda":
            return
        _, total = torch.cuda.mem_get_info(self.ops.device)
        self._limit_bytes = num_bytes
        share = min(1.0, num_bytes / total)
        torch.cuda.set_per_process_memory_fraction(share, self.ops.device)

    def keep_workspace(self, num_bytes: int) -> None:
        """Keep memory for work without graphs, on the stream of the thread that steps."""
        self._workspace_bytes = num_bytes

    def _claim_workspace(self) -> None:
        if self.ops.device.type == "cuda" and self._workspace_bytes:
            # freed at once: the allocator keeps it for this stream
            torch.empty(self._workspace_bytes, dtype=torch.uint8, device=self.ops.device)
            self._has_workspace = True

    def free_bytes(self) -> int:
        """Return what is left of a CUDA device for graphs; see `DeviceRoom`."""
        free, total = torch.cuda.mem_get_info(self.ops.device)
        if self._limit_bytes is not None:
            total = min(total, self._limit_bytes)
            free = min(free, total - torch.cuda.memory_reserved(self.ops.device))
        return free - (0 if self._has_workspace else self._workspace_bytes)

    def least(self, value: int) -> int:
        """Return the least value of all ranks; see `DeviceRoom`."""
        (found,) = least(self.ops.ranks, [value])
        return found

    def rehearse(self, model: Model, config: EngineConfig) -> GraphBytes:
        """Compile the kernels of a model's graphs, and measure the memory that they will take."""
        if not self.captures:
            return GraphBytes()
        from izwi.backends.torch.captured.graphs import ModelArrays, rehearsed

        spec, size = KVSpec.from_layers(model.layers), config.page_size
        kv = self.paged_kv(spec, 1, size, config.kv_dtype)
        kv.num_pages = pages_for(model.max_positions, size)  # no kernel runs that would read them
        frames = frame_track(model.tracks)
        codec = None if frames is None else model.tracks[frames].codec
        arena = self.state_arena(codec.state if codec else {}, config.max_running)
        arrays = ModelArrays(kv, arena, self.sampling(model.tracks).suppressed)
        found = rehearsed(model, arrays, self.ops, config)
        sizes = [found.steps, found.codec, found.buffers, found.driver]
        # the most that any rank takes
        graphs = GraphBytes(*(-size for size in least(self.ops.ranks, [-one for one in sizes])))
        known = self._graph_bytes
        self._graph_bytes = GraphBytes(
            max(known.steps, graphs.steps), max(known.codec, graphs.codec)
        )
        return graphs

    @property
    def page_copies(self) -> int:
        """One: captured steps write in place."""
        return 1

    def page_bytes(self, spec: KVSpec, page_size: int, kv_dtype: str) -> int:
        """Return the size of one page in bytes. Raises InvalidRequest: `kv_dtype` is unknown."""
        return bytes_per_page(spec, page_size, self.ops.dtype, kv_dtype)

    def paged_kv(self, spec: KVSpec, num_pages: int, page_size: int, kv_dtype: str) -> PagedKV:
        """Allocate pages. Raises InvalidRequest: the device cannot hold `kv_dtype`."""
        ops = self.ops
        return PagedKV(spec, num_pages, page_size, ops.device, ops.dtype, kv_dtype)

    def state_arena(self, specs: Mapping[str, StateSpec], num_rows: int) -> StateArena:
        """Allocate rows of state; on CUDA they are used on a side stream."""
        ops = self.ops
        if self._side_stream is None:
            self._side_stream = SideStream(ops.device)
        return StateArena(specs, num_rows, ops.device, ops.dtype, self._side_stream)

    def sampling(self, tracks: Seq[Track]) -> TorchSampling:
        """Create the sampling of a model's tracks."""
        return TorchSampling(tracks, self.ops.device)

    def try_products(self) -> None:
        """Ask a CPU's library how it rounds products with packed weights."""
        self.ops.try_products()

    def own_copy(self, x: Tensor) -> Tensor:
        """Copy an array, so that it keeps no other memory alive."""
        return x.clone()

    def capture(
        self,
        model: Model,
        kv: PagedKV,
        arena: StateArena,
        sampling: TorchSampling,
        config: EngineConfig,
    ) -> Graphs | None:
        """Capture a model's steps as CUDA graphs, where there is CUDA with Triton."""
        if not self.ops.captures:
            return None
        # their kernels need triton, which is there on CUDA
        from izwi.backends.torch.captured.graphs import Capturers, Graphs, ModelArrays

        if self._capturers is None:
            self._capturers = Capturers.on(self.ops.device, self)
        if self.ops.device.type == "cuda":
            torch.cuda.synchronize(self.ops.device)  # graphs of other models use the same pools
        self._capturers.prime(self._graph_bytes)
        arrays = ModelArrays(kv, arena, sampling.suppressed)
        return Graphs.from_model(model, arrays, self.ops, config, self._capturers)


def torch_backend(
    device: str = "auto",
    dtype: str = "auto",
    weights: str = "auto",
    attention: str = "auto",
    place: RankPlace | None = None,
) -> TorchBackend:
    """Bind torch to a device.

    Args:
        device: "cpu", "cuda", "cuda:1", "mps", or "auto" for the best available one.
        dtype: A key of DTYPES, or "auto": bfloat16 on CUDA, float16 on GPUs that have none,
            float32 elsewhere.
        weights: Storage of the decoders' weights: "auto" (in `dtype`), "int8", "fp8" or "int4".
        attention: Attention kernels: "torch", "triton", or "auto" for the fastest available.
        place: This rank's place, if several share each model; waits until all of them are there.

    Raises:
        InvalidRequest: The device, the dtype, `weights` or `attention` is unknown or not available.
    """
    # One growing segment instead of many of fixed sizes, which large arrays would not fit into
    # later. It is read once, before the first allocation.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    if device == "auto":
        if torch.cuda.is_available():
            device = "cuda"
        else:
            device = "mps" if torch.backends.mps.is_available() else "cpu"
    kind = device.split(":")[0]
    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if not available.get(kind, False):
        raise InvalidRequest(f"device {device!r} is not available here", param="device")
    if dtype == "auto":
        dtype = _usual_dtype(device, kind)
    if dtype not in DTYPES:
        raise InvalidRequest(
            f"dtype {dtype!r} is not one of auto, {', '.join(sorted(DTYPES))}", param="dtype"
        )
    ops = _table(kind)(device, DTYPES[dtype], weights, attention)
    if place is not None:
        # imported by few: it takes a quarter of a second
        from izwi.backends.torch.ranks import TorchRanks

        ops.ranks = TorchRanks(place, ops.device)
    return TorchBackend(ops)


def _usual_dtype(device: str, kind: str) -> str:
    """Return the dtype of "auto": GPUs before compute capability 8.0 have no bfloat16."""
    if kind != "cuda":
        return "float32"
    return "bfloat16" if torch.cuda.get_device_capability(device) >= (8, 0) else "float16"


def num_gpus() -> int:
    """Return the number of CUDA devices."""
    return torch.cuda.device_count()


def _table(kind: str) -> type[TorchOps]:
    """Return the operations for a kind of device, with our own kernels where they run."""
    if kind != "cuda" or find_spec("triton") is None:
        return TorchOps
    # triton comes with torch for CUDA alone
    from izwi.backends.torch.triton.ops import TritonOps
    from izwi.backends.torch.triton.tile_search import use_kept

    use_kept(torch.cuda.get_device_name())
    return TritonOps


def least(ranks: Ranks, values: list[int]) -> list[int]:
    """Return the least of each value among the ranks."""
    if ranks.count == 1:
        return values
    mine = torch.tensor([values])
    device = getattr(ranks, "device", mine.device)
    of_all: Tensor = ranks.all_gather(mine.to(device)).view(ranks.count, -1)
    return list(map(int, of_all.amin(0).tolist()))


class SideStream:
    """A second stream of a device.

    Its work runs in order and does not wait for the main stream. A caller that passes arrays from
    one stream to the other must synchronise on the host.
    """

    def __init__(self, device: torch.device):
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(device))

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Run this thread's launches on the stream; no effect on devices other than CUDA."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield
