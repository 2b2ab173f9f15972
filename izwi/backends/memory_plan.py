"""The memory plan of a device: what its models need by part, and what remains for pages.

A pure value (ADR 30). It is computed from estimates before anything large is allocated, and again
from what was measured before pages are.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from izwi.cache.pages import pages_for
from izwi.config import EngineConfig
from izwi.errors import DoesNotFit

MIB = 1 << 20
# Numbers of streams to plan for, if the configured number does not fit.
_STREAMS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# Positions that one request of a model must be able to have, if the checkpoint has so many.
_LONGEST_REQUEST = 2048
# Work without graphs: rare samplings, clips longer than any graph, weights that are widened.
_WORKSPACE_BYTES = 384 * MIB
_LEAST_WORKSPACE_BYTES = 128 * MIB  # in one piece
# Of the free memory, left free for drivers and other programs.
_FREE_SHARE = 0.02
# What the driver keeps of kernels, and of each launch of a captured graph. A model of 28 layers
# took 120 MB with some 80 graphs. A sum over ranks takes far more than another kernel: two H100 had
# 1.6 to 1.8 GB less after 40 graphs of 96 layers, with two sums in each layer.
_KERNELS_BYTES, _LAUNCH_BYTES, _SUM_BYTES = 64 * MIB, 6 << 10, 256 << 10
_LAUNCHES_PER_LAYER = 7


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What a device has.

    Attributes:
        total_bytes: All of its memory.
        free_bytes: What may be allocated now; without weights that are loaded already.
        idle_bytes: Allocated by this process in parts too small for pages; work without graphs
            uses them.
        is_shared: It is the host's memory, and `free_bytes` is what pages may take of it, because
            everything else comes from the rest.
    """

    total_bytes: int
    free_bytes: int
    idle_bytes: int = 0
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class GraphBytes:
    """Memory of one model's captured graphs.

    Attributes:
        steps: The largest working set of an encoder, a prompt or a decode step. Models share it.
        codec: The largest working set of the codec, which runs beside a step. Models share it.
        buffers: Inputs and results, which each graph has for itself.
        driver: What the driver will allocate: structures of graphs, and kernels not loaded yet.
    """

    steps: int = 0
    codec: int = 0
    buffers: int = 0
    driver: int = 0


def driver_bytes(num_layers: int, num_graphs: int, num_sums: int = 0) -> int:
    """Return a bound of what the driver keeps of the captured graphs of a model.

    Args:
        num_layers: Layers that each graph runs.
        num_graphs: Graphs.
        num_sums: Sums over ranks, and other exchanges with them, in all graphs together.
    """
    launches = num_layers * num_graphs * _LAUNCHES_PER_LAYER
    return _KERNELS_BYTES + launches * _LAUNCH_BYTES + num_sums * _SUM_BYTES


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """What one model needs.

    Attributes:
        name: Its served name.
        weight_bytes: Weights.
        row_bytes: Codec state of one stream.
        page_bytes: One page, in all its copies.
        page_size: Positions of a page.
        typical_positions: Positions of a typical request, by which pages are divided.
        max_positions: Positions of the longest request that the checkpoint allows.
        graphs: Memory of its graphs with `num_streams` streams.
        num_streams: See `graphs`.
    """

    name: str
    weight_bytes: int
    row_bytes: int
    page_bytes: int
    page_size: int
    typical_positions: int
    max_positions: int
    graphs: GraphBytes
    num_streams: int

    def least_pages(self, num_streams: int) -> int:
        """Pages for this many typical requests, and for one long one."""
        longest = pages_for(min(self.max_positions, _LONGEST_REQUEST), self.page_size)
        typical = num_streams * pages_for(self.typical_positions, self.page_size)
        return min(max(longest, typical), self.most_pages(num_streams))

    def most_pages(self, num_streams: int) -> int:
        """Pages beyond which more are of no use."""
        return num_streams * pages_for(self.max_positions, self.page_size)


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What one model gets.

    Attributes:
        name: Its served name.
        weight_bytes: Weights.
        state_bytes: Codec states of all streams.
        buffer_bytes: Inputs and results of its graphs, and what the driver keeps for them.
        page_bytes: All pages.
    """

    name: str
    weight_bytes: int
    state_bytes: int
    buffer_bytes: int
    page_bytes: int

    @property
    def total_bytes(self) -> int:
        """All parts."""
        return self.weight_bytes + self.state_bytes + self.buffer_bytes + self.page_bytes


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a device holds, by part.

    Attributes:
        memory: The device.
        num_streams: Streams of each model that run at the same time.
        models: What each model gets.
        graph_bytes: Working memory that the graphs of all models share.
        workspace_bytes: For work without graphs.
        reserve_bytes: Left free.
        images_bytes: Left to the process that draws images.
    """

    memory: DeviceMemory
    num_streams: int
    models: tuple[ModelPlan, ...]
    graph_bytes: int = 0
    workspace_bytes: int = 0
    reserve_bytes: int = 0
    images_bytes: int = 0

    def share_of(self, name: str) -> ModelPlan:
        """Return what a model gets."""
        return next(model for model in self.models if model.name == name)

    @property
    def shared_bytes(self) -> int:
        """Everything that is no model's own."""
        return sum((self.graph_bytes, self.workspace_bytes, self.reserve_bytes, self.images_bytes))

    def lines(self) -> Iterator[tuple[str, str]]:
        """Describe the plan: what, and of which parts it is made."""
        for model in self.models:
            parts = {
                "weights": model.weight_bytes,
                "codec state": model.state_bytes,
                "graphs' buffers": model.buffer_bytes,
                "pages": model.page_bytes,
            }
            listed = ", ".join(f"{gib(size)} {part}" for part, size in parts.items() if size)
            yield model.name, listed
        shared = {
            "working memory of graphs": self.graph_bytes,
            "workspace": self.workspace_bytes,
            "images": self.images_bytes,
            "left free": self.reserve_bytes,
        }
        if any(shared.values()):
            yield "shared", ", ".join(f"{gib(size)} {part}" for part, size in shared.items())
        yield "streams", f"{self.num_streams} of each model at a time"


def plan_memory(
    memory: DeviceMemory,
    needs: Seq[ModelNeeds],
    config: EngineConfig,
    *,
    loaded: bool,
    num_shares: int = 0,
) -> MemoryPlan:
    """Plan the memory of a device for as many streams as fit, up to the configured number.

    Pages get what remains, or the configured size. Models share it by need: in proportion to the
    keys and values of a typical request.

    Args:
        memory: The device.
        needs: What each model needs.
        config: Budgets.
        loaded: The weights are on the device already: they are not part of `memory.free_bytes`.
        num_shares: Number of models to keep pages for, if more are loaded later.

    Raises:
        DoesNotFit: Not even one stream of each model fits.
    """
    num_shares = max(num_shares, len(needs))
    if memory.is_shared:
        fixed = _without_pages(memory, needs, config.max_running)
        return _with_pages(fixed, needs, config.kv_bytes or memory.free_bytes, num_shares)
    fewer = (number for number in reversed(_STREAMS) if number < config.max_running)
    for num_streams in (config.max_running, *fewer):
        fixed = replace(
            _without_pages(memory, needs, num_streams), images_bytes=config.images_bytes
        )
        own = sum(m.total_bytes - loaded * m.weight_bytes for m in fixed.models)
        left = memory.free_bytes - own - fixed.shared_bytes
        least = sum(model.least_pages(num_streams) * model.page_bytes for model in needs)
        if left >= (config.kv_bytes or least):
            return _with_pages(fixed, needs, config.kv_bytes or left, num_shares)
    needed_bytes = memory.free_bytes - left + (config.kv_bytes or least)
    parts = "; ".join(f"{what}: {sizes}" for what, sizes in fixed.lines())
    raise DoesNotFit(
        f"the device has no room for the model: {gib(needed_bytes)} are needed for one stream of"
        f" each model, {gib(memory.free_bytes)} of {gib(memory.total_bytes)} are free ({parts})",
        param="model",
    )


def _without_pages(memory: DeviceMemory, needs: Seq[ModelNeeds], num_streams: int) -> MemoryPlan:
    """Return the plan of everything but pages."""
    models = tuple(
        ModelPlan(
            model.name,
            model.weight_bytes,
            0 if memory.is_shared else model.row_bytes * (num_streams + 1),
            model.graphs.buffers + model.graphs.driver,
            0,
        )
        for model in needs
    )
    if memory.is_shared:
        return MemoryPlan(memory, num_streams, models)
    steps = max((model.graphs.steps for model in needs), default=0)
    codec = max((m.graphs.codec * num_streams // m.num_streams for m in needs), default=0)
    return MemoryPlan(
        memory,
        num_streams,
        models,
        graph_bytes=steps + codec,
        workspace_bytes=max(_WORKSPACE_BYTES - memory.idle_bytes, _LEAST_WORKSPACE_BYTES),
        reserve_bytes=int(memory.free_bytes * _FREE_SHARE),
    )


def _with_pages(
    fixed: MemoryPlan, needs: Seq[ModelNeeds], left: int, num_shares: int
) -> MemoryPlan:
    """Divide what is left among the models' pages: the least that each needs, the rest by need."""
    left = max(0, left) * len(needs) // num_shares
    streams = fixed.num_streams
    pages = {model.name: model.least_pages(streams) * model.page_bytes for model in needs}
    if sum(pages.values()) > left:  # configured
        pages = dict.fromkeys(pages, 0)
    left -= sum(pages.values())
    room = {m.name: m.most_pages(streams) * m.page_bytes - pages[m.name] for m in needs}
    weights = {model.name: model.typical_positions * model.page_bytes for model in needs}
    # Those that can use the least of their share come first: what they leave is shared again.
    rest = sum(weights.values())
    for name in sorted(weights, key=lambda name: room[name] / weights[name]):
        more = min(room[name], left * weights[name] // rest)
        pages[name] += more
        left, rest = left - more, rest - weights[name]
    models = tuple(replace(model, page_bytes=pages[model.name]) for model in fixed.models)
    return replace(fixed, models=models)


def gib(num_bytes: int) -> str:
    """Write a number of bytes in GiB."""
    return f"{num_bytes / (1 << 30):.2f} GiB"
