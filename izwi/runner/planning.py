"""What models need of a device: estimated from their configuration, or measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from izwi.backends.memory_plan import (
    MIB,
    DeviceMemory,
    GraphBytes,
    MemoryPlan,
    ModelNeeds,
    driver_bytes,
    plan_memory,
)
from izwi.backends.protocol import Backend
from izwi.checkpoints.registry import family_of
from izwi.checkpoints.weight_files import packed_forms
from izwi.config import EngineConfig
from izwi.errors import DoesNotFit
from izwi.model.layers import KVSpec
from izwi.model.protocol import Model
from izwi.model.sizes import ModelSizes, TensorShapes

# Positions of a typical request: a sentence that is spoken or transcribed, a turn of a
# conversation that is spoken, and one in text with what came before.
_SENTENCE, _SPOKEN_TURN, _TEXT_TURN = 192, 384, 768
# The largest prompt graph of a model of 1.7B (measured: 92 to 143 MB).
_PROMPT_BYTES = 144 * MIB
# Staged inputs and results of all graphs of a model (measured: 100 to 230 MB).
_BUFFER_BYTES = 160 * MIB
# Kernels that are not loaded yet, and graphs of a model, of which some only draw.
_UNLOADED_BYTES, _NUM_GRAPHS, _NUM_RUNS = 80 * MIB, 80, 56
# Numbers kept for each logit while ids are drawn, in bytes.
_DRAW_BYTES = 10
# Copies of a stream's state that a codec keeps while it decodes: the old, the new, and parts.
_STATE_COPIES = 2.5


def typical_positions(sizes: ModelSizes) -> int:
    """Return the positions of a typical request of a model."""
    if len(sizes.vocabularies) > 1:
        return _SPOKEN_TURN
    speech = sizes.codec is not None or (sizes.encodes and not sizes.whole_encoders)
    return _SENTENCE if speech else _TEXT_TURN


def row_bytes(sizes: ModelSizes, itemsize: int) -> int:
    """Return the bytes of a stream's codec state.

    Args:
        sizes: The model's sizes.
        itemsize: Bytes of a number of the device's dtype.
    """
    if sizes.codec is None:
        return 0
    return sum(
        math.prod(spec.shape) * (8 if spec.dtype == "int64" else itemsize)
        for spec in sizes.codec.state.values()
    )


def estimated_graphs(
    sizes: ModelSizes, itemsize: int, config: EngineConfig, num_ranks: int = 1
) -> GraphBytes:
    """Estimate the memory of a model's graphs, from the sizes of its layers, encoders and codec."""
    steps = [_PROMPT_BYTES]
    for encoder in (*sizes.encoders, *sizes.whole_encoders):
        for shape in encoder.shapes:
            pieces = min(config.max_step_encodes, encoder.max_pieces(shape))
            steps.append(encoder.peak_values(shape, pieces) * itemsize)
    steps += [_DRAW_BYTES * vocabulary * config.max_running for vocabulary in sizes.vocabularies]
    codec_bytes = 0
    if sizes.codec is not None:
        chunk = sizes.codec.peak_values(config.chunk_ramp[-1]) * itemsize
        rows = min(config.max_running, config.max_step_vocodes)
        codec_bytes = rows * int(chunk + _STATE_COPIES * row_bytes(sizes, itemsize))
    num_layers = len(sizes.layers)
    num_sums = 2 * num_layers * _NUM_RUNS if num_ranks > 1 else 0
    driver = _UNLOADED_BYTES + driver_bytes(num_layers, _NUM_GRAPHS, num_sums)
    return GraphBytes(max(steps), codec_bytes, _BUFFER_BYTES, driver)


def _whole_bytes(sizes: ModelSizes, itemsize: int) -> int:
    """Return what the encoders without graphs take, of which one runs at a time."""
    needs = [
        encoder.peak_values(shape, encoder.max_pieces(shape)) * itemsize
        for encoder in sizes.whole_encoders
        for shape in encoder.shapes
    ]
    return max(needs, default=0)


def needs_of(
    name: str,
    sizes: ModelSizes,
    backend: Backend,
    config: EngineConfig,
    graphs: GraphBytes,
    weight_bytes: int = 0,
) -> ModelNeeds:
    """Return what a model needs, given the memory of its graphs and weights."""
    copies = backend.page_copies if config.graphs else 1
    return ModelNeeds(
        name,
        weight_bytes,
        row_bytes(sizes, backend.itemsize),
        copies
        * backend.page_bytes(KVSpec.from_layers(sizes.layers), config.page_size, config.kv_dtype),
        config.page_size,
        min(typical_positions(sizes), sizes.max_positions),
        sizes.max_positions,
        graphs,
        config.max_running,
    )


def plan_models(
    models: Mapping[str, Model],
    backend: Backend,
    config: EngineConfig,
    weight_bytes: Mapping[str, int],
) -> MemoryPlan:
    """Plan the memory for models whose weights are loaded; graphs are rehearsed to measure them.

    Raises:
        DoesNotFit: The device has no room.
    """
    num_shares = max(config.max_models, len(models))
    sizes = {name: ModelSizes.from_model(model) for name, model in models.items()}

    def planned(config: EngineConfig, graphs: Callable[[str], GraphBytes]) -> MemoryPlan:
        needs = [
            needs_of(name, sizes[name], backend, config, graphs(name), weight_bytes.get(name, 0))
            for name in models
        ]
        memory = backend.memory()
        return plan_memory(memory, needs, config, loaded=True, num_shares=num_shares)

    if backend.memory().is_shared:
        return planned(config, lambda _: GraphBytes())
    ranks, itemsize = backend.ops.ranks.count, backend.itemsize
    plan = planned(config, lambda name: estimated_graphs(sizes[name], itemsize, config, ranks))
    if not (backend.captures and config.graphs):
        return plan
    fitting = config.with_streams(plan.num_streams)

    def measured(name: str) -> GraphBytes:
        graphs = backend.rehearse(models[name], fitting)
        return replace(graphs, steps=max(graphs.steps, _whole_bytes(sizes[name], itemsize)))

    return planned(fitting, measured)


def prepare_device(
    backend: Backend, folders: Mapping[str, Path], config: EngineConfig, weights: str
) -> dict[str, int]:
    """Limit the memory, and check that the models fit before any is loaded.

    Args:
        backend: The backend that will load them.
        folders: Folders of the checkpoints by served name.
        config: Budgets.
        weights: Format of the decoders' weights: one of WEIGHTS.

    Returns:
        Estimated bytes of the weights of each model; nothing on a host, whose memory is shared.

    Raises:
        DoesNotFit: The device has no room; the message says what would fit.
        CheckpointError: A checkpoint cannot be read.
    """
    if config.device_bytes:
        backend.limit_memory(config.device_bytes)
    if backend.memory().is_shared:
        return {}
    plan = plan_folders(folders, backend, config, weights)
    return {model.name: model.weight_bytes for model in plan.models}


def plan_folders(
    folders: Mapping[str, Path], backend: Backend, config: EngineConfig, weights: str
) -> MemoryPlan:
    """Plan the memory for checkpoints that are not loaded yet, in seconds, from estimates.

    Args:
        folders: Folders of the checkpoints by served name.
        backend: The backend that would load them.
        config: Budgets.
        weights: Format of the decoders' weights: one of WEIGHTS.

    Raises:
        DoesNotFit: The device has no room; the message says what would fit.
        CheckpointError: A checkpoint cannot be read.
    """
    memory = backend.memory()
    try:
        return _plan_of_folders(folders, backend, memory, config, weights)
    except DoesNotFit as error:
        fitting = [
            option
            for option, other in _OPTIONS.items()
            if other != weights and _fits(folders, backend, memory, config, other)
        ]
        if len(folders) > 1:
            fitting.append("fewer models")
        if not fitting:
            raise
        raise DoesNotFit(f"{error}. What would fit: {', '.join(fitting)}", param="model") from error


_OPTIONS = {"--weights int8": "int8", "--weights int4": "int4"}
_BITS = {"auto": None, "float": None, "int8": 8.0, "fp8": 8.0, "int4": 4.5}


def _fits(
    folders: Mapping[str, Path],
    backend: Backend,
    memory: DeviceMemory,
    config: EngineConfig,
    weights: str,
) -> bool:
    try:
        _plan_of_folders(folders, backend, memory, config, weights)
    except DoesNotFit:
        return False
    return True


def _plan_of_folders(
    folders: Mapping[str, Path],
    backend: Backend,
    memory: DeviceMemory,
    config: EngineConfig,
    weights: str,
) -> MemoryPlan:
    needs = []
    for name, folder in folders.items():
        sizes = family_of(folder).read_sizes(folder, backend.ops.ranks)
        graphs = GraphBytes()
        if not memory.is_shared:
            ranks = backend.ops.ranks.count
            graphs = estimated_graphs(sizes, backend.itemsize, config, ranks)
        weight_bytes = _weight_bytes(sizes.weights, backend.itemsize, _BITS[weights])
        weight_bytes -= _saved_by_packing(folder, sizes, backend, _BITS[weights])
        needs.append(needs_of(name, sizes, backend, config, graphs, weight_bytes))
    shares = max(config.max_models, len(folders))
    return plan_memory(memory, needs, config, loaded=False, num_shares=shares)


def _weight_bytes(
    files: Iterable[TensorShapes], itemsize: int, quantized_bits: float | None
) -> int:
    """Return what weights take.

    Args:
        files: Shapes of the tensors.
        itemsize: Bytes of a number.
        quantized_bits: Bits of a number of the decoders' large products; None: not quantized.
    """
    return sum(
        _tensor_bytes(name, shape, itemsize, quantized_bits)
        for shapes in files
        for name, shape in shapes.items()
    )


def _tensor_bytes(
    name: str, shape: tuple[int, ...], itemsize: int, quantized_bits: float | None
) -> int:
    product = len(shape) == 2 and ".layers." in name and "tower" not in name
    if product and quantized_bits is not None:
        return int(math.prod(shape) * quantized_bits / 8)
    return math.prod(shape) * itemsize


def _saved_by_packing(
    folder: Path, sizes: ModelSizes, backend: Backend, quantized_bits: float | None
) -> int:
    """Return how much less weights take that the checkpoint packs, and that stay packed."""
    if not sizes.packable or not sizes.weights:
        return 0
    shapes = sizes.weights[0]
    return sum(
        _tensor_bytes(name, shapes[name], backend.itemsize, quantized_bits)
        - backend.packed_bytes(form)
        for name, form in packed_forms(folder, shapes).items()
        if name in sizes.packable
    )
