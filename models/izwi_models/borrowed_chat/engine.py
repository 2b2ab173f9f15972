"""An engine over transformers: requests go to its loops, and what they generate becomes chunks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from izwi.arrays import Int64
from izwi.config import EngineConfig
from izwi.errors import (
    CheckpointError,
    ContextTooLong,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
)
from izwi.metrics import LOAD_KEYS
from izwi.model.protocol import Model
from izwi.request.request import Chunk, Reason, Request
from izwi.request.timing import Timing
from izwi_models.borrowed_chat.generators import Generator, Job, Output, open_generator

logger = logging.getLogger(__name__)

# How long a step waits for output; a new request waits as long at most.
_STEP_S = 0.01
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Of a device's free memory, for keys and values.
_SHARE = 0.8


class RunnerDied(BaseException):
    """transformers' loop has ended, and this process must be replaced."""


class Delivered(Protocol):
    """What an engine that died has passed on of a request: an `izwi.request.log.Log`."""

    @property
    def entries(self) -> Int64:
        """Ids, (n, 1) int64."""
        ...

    @property
    def paused(self) -> bool:
        """Whether it was paused by a caller."""
        ...


@dataclass(slots=True)
class _Live:
    """A request that has not ended.

    Attributes:
        num_read: Ids of the generator that were passed on.
        unread: The last output of a paused request.
    """

    request: Request
    key: str
    since_s: float
    num_read: int = 0
    is_paused: bool = False
    unread: Output | None = None
    timing: Timing = field(default_factory=Timing)

    @property
    def has_begun(self) -> bool:
        """Whether an id was generated, or may be without being known here."""
        return self.unread is not None or self.num_read > 0 or self.is_paused


class TransformersEngine:
    """Implements `izwi.engine.stepped.Stepped` over transformers' loops.

    Args:
        generators: What runs each model, by its name.
        weight_bytes: Of each model.
        config: Of it only the queue's length, its longest wait, and the backlog of readers count.
    """

    def __init__(
        self,
        generators: Mapping[str, Generator],
        weight_bytes: Mapping[str, int],
        config: EngineConfig,
    ):
        self.config = config
        self._generators, self._weight_bytes = generators, weight_bytes
        self._live: dict[str, _Live] = {}
        self._ids: dict[str, str] = {}  # of live requests, by the generators' keys
        self._num_submitted = self._num_steps = self._num_entries = 0

    @contextmanager
    def own_stream(self) -> Iterator[None]:
        """Run the generators' threads."""
        with ExitStack() as stack:
            for generator in self._generators.values():
                generator.start()
                stack.callback(generator.stop)
            yield

    def step(self) -> list[Chunk]:
        """Wait shortly for output, and return it."""
        chunks = self._unread()
        busy = {one.request.model for one in self._live.values()}
        for name in busy:
            generator = self._generators[name]
            for output in generator.outputs(_STEP_S / len(busy)):
                chunks += self._read(output)
            if not generator.is_alive:
                raise RunnerDied(f"the loop of transformers over {name!r} has ended")
        chunks += self._refuse_late()
        self._num_steps += bool(chunks)
        return chunks

    def submit(self, request: Request, log: Delivered | None = None) -> None:
        """Pass a request to its model's loop.

        Raises:
            ModelNotFound: No such model is served.
            InvalidRequest: The id is taken, or the request asks for what transformers lacks.
            ContextTooLong: The pages of all requests could not hold its prompt.
            Overloaded: Too many requests are live.
        """
        if request.model not in self._generators:
            raise ModelNotFound(f"no model {request.model!r} is served", param="model")
        if request.request_id in self._live:
            raise InvalidRequest(f"request {request.request_id!r} is running already")
        if request.grammar is not None or request.adapter is not None or request.logprobs:
            raise InvalidRequest("a model that transformers runs has plain answers alone")
        if len(self._live) >= self.config.max_waiting:
            raise Overloaded(f"{len(self._live)} requests wait already", retry_after_s=1)
        max_entries = _entries_that_fit(request, self._generators[request.model].max_positions)
        known = [] if log is None else log.entries[:, 0].tolist()
        self._num_submitted += 1
        live = _Live(request, f"{self._num_submitted}", time.monotonic())
        live.timing.is_resumed = log is not None
        live.is_paused = log is not None and log.paused
        sampling = request.sampling
        self._live[request.request_id] = live
        self._ids[live.key] = request.request_id
        self._generators[request.model].add(
            Job(
                live.key,
                [*request.prompt.content_keys.tolist(), *known],
                max_entries - len(known),
                request.stop_ids,
                sampling.temperature,
                sampling.top_k,
                sampling.top_p,
                request.seed,
            )
        )

    def unread_adapters(
        self,
        requests: Sequence[Request],  # noqa: ARG002
    ) -> list[Callable[[], None]]:
        """Return nothing: there are no adapters."""
        return []

    def prefix_reader(self, model: str, keys: Sequence[int]) -> NoReturn:  # noqa: ARG002
        """Raise ModelNotFound: transformers keeps its pages to itself."""
        raise ModelNotFound(f"no pages of {model!r} can be moved", param="model")

    prefix_writer = prefix_reader

    def abort(self, request_id: str) -> list[Chunk]:
        """End a request now; do nothing if it has ended."""
        live = self._live.get(request_id)
        if live is None:
            return []
        self._generators[live.request.model].cancel(live.key)
        return [self._last(live, [], Reason.ABORTED)]

    def pause(self, request_id: str) -> None:
        """Stop to pass on a request's output; it goes on being generated."""
        if request_id in self._live:
            self._live[request_id].is_paused = True

    def resume(self, request_id: str) -> None:
        """Pass on the output of a paused request with the next step."""
        if request_id in self._live:
            self._live[request_id].is_paused = False

    def write(self, request_id: str, text_ids: Sequence[int], closed: bool) -> bool:
        """Refuse: no chat request has open input."""
        del request_id, text_ids, closed
        return False

    def set_backpressure(self, request_id: str, backpressured: bool) -> None:
        """Do nothing: an answer that its reader does not read is some numbers."""

    def add(self, name: str, model: Model) -> None:
        """Raise InvalidRequest: models are chosen when the server starts."""
        del name, model
        raise InvalidRequest("transformers runs the models of the start alone", param="model")

    def remove(self, name: str) -> None:
        """Raise InvalidRequest: models are chosen when the server starts."""
        del name
        raise InvalidRequest("transformers runs the models of the start alone", param="model")

    leaving: frozenset[str] = frozenset()
    num_prefix_changes = 0
    spare_s = 0.0
    is_idle = False

    @property
    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._live)

    @property
    def load(self) -> dict[str, dict[str, float]]:
        """Figures of each model; those that transformers does not tell are 0."""
        figures = {name: dict.fromkeys(LOAD_KEYS, 0.0) for name in self._generators}
        for live in list(self._live.values()):
            figures[live.request.model]["running"] += 1
        for name, num_bytes in self._weight_bytes.items():
            figures[name]["weight_bytes"] = num_bytes
        return figures

    def prefix_digests(self, limit: int) -> dict[str, list[int]]:
        """Return none: transformers keeps prefixes to itself."""
        del limit
        return {name: [] for name in self._generators}

    def _refuse_late(self) -> list[Chunk]:
        """End requests that have waited too long for their first id."""
        most_s = self.config.max_wait_s
        before_s = time.monotonic() - most_s
        late = [
            live
            for live in self._live.values()
            if live.since_s < before_s and not live.has_begun and not live.request.is_idle_work
        ]
        for live in late:
            self._generators[live.request.model].cancel(live.key)
        message = f"could not be scheduled within {most_s:g} s (queue full); retry later"
        return [self._last(live, [], Reason.ERROR, Overloaded(message)) for live in late]

    def _read(self, output: Output) -> list[Chunk]:
        request_id = self._ids.get(output.key)
        if request_id is None:  # aborted
            return []
        live = self._live[request_id]
        if live.is_paused:
            live.unread = output
            return []
        return self._chunks(live, output)

    def _unread(self) -> list[Chunk]:
        """Return the output of requests that go on after a pause."""
        chunks = []
        for live in list(self._live.values()):
            if live.unread is not None and not live.is_paused:
                output, live.unread = live.unread, None
                chunks += self._chunks(live, output)
        return chunks

    def _chunks(self, live: _Live, output: Output) -> list[Chunk]:
        new = output.ids[live.num_read :]
        live.num_read = len(output.ids)
        if output.error is not None:
            return [self._last(live, new, Reason.ERROR, RuntimeError(output.error))]
        if output.has_ended:
            stops = bool(output.ids) and output.ids[-1] in live.request.stop_ids
            reason = Reason.STOP if stops else Reason.LENGTH
            return [self._last(live, new[:-1] if stops else new, reason)]
        if new and new[-1] in live.request.stop_ids:
            live.num_read -= 1  # the last output has it, too, and leaves it out
            new = new[:-1]
        if not new:
            return []
        timing = live.timing if live.timing.first_entry_s is None else None
        self._note(live)
        return [Chunk(live.request.request_id, _entries(new), timing=timing)]

    def _note(self, live: _Live) -> None:
        now_s = time.monotonic() - live.since_s
        timing = live.timing
        if timing.first_entry_s is None:
            timing.admitted_s = timing.first_entry_s = now_s
        timing.last_entry_s = now_s
        self._num_entries += 1

    def _last(
        self, live: _Live, ids: list[int], reason: Reason, error: BaseException | None = None
    ) -> Chunk:
        """End a request: return its last chunk."""
        request_id = live.request.request_id
        del self._live[request_id], self._ids[live.key]
        if ids:
            self._note(live)
        live.timing.ended_s = time.monotonic() - live.since_s
        return Chunk(request_id, _entries(ids), reason=reason, error=error, timing=live.timing)


def _entries_that_fit(request: Request, max_positions: int | None) -> int:
    """Return how long an answer may become. Raises ContextTooLong."""
    if max_positions is None:
        return request.max_entries
    num_prompt = len(request.prompt.content_keys)
    if num_prompt >= max_positions:
        raise ContextTooLong(
            f"the conversation has {num_prompt} tokens, and the memory for keys and values holds "
            f"{max_positions}, with the answer (--kv-mib)",
            param="messages",
        )
    return min(request.max_entries, max_positions - num_prompt)


def _entries(ids: Sequence[int]) -> Any:
    return np.array(ids, np.int64).reshape(-1, 1)


def open_engine(
    folders: Mapping[str, Path], device: str, dtype: str, config: EngineConfig
) -> TransformersEngine:
    """Load checkpoints with transformers.

    Args:
        folders: The checkpoints, by the names under which they are served.
        device: "auto", "cpu", "cuda" or "mps".
        dtype: "auto", "float32", "bfloat16" or "float16".
        config: Its `kv_bytes`, `device_bytes` and `images_bytes` limit the memory.

    Raises:
        CheckpointError: transformers cannot load one.
        InvalidRequest: The device or the dtype is not here.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.partition(":")[0] not in ("cpu", "cuda", "mps"):
        raise InvalidRequest(f"transformers does not run on {device!r} here", param="device")
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16"
    settings: Any = transformers_logging  # transformers gives it no types
    settings.disable_progress_bar()
    models = {name: _load(folder, device, _DTYPES[dtype]) for name, folder in folders.items()}
    share = _share(device, config) / len(models)
    weight_bytes = {name: model.get_memory_footprint() for name, model in models.items()}
    generators = {
        name: open_generator(model, config.kv_bytes // len(models), share)
        for name, model in models.items()
    }
    return TransformersEngine(generators, weight_bytes, config)


def _load(folder: Path, device: str, dtype: torch.dtype) -> Any:
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    except Exception as error:  # of any kind: a class may fail at its own configuration
        reason = str(error).strip().partition("\n")[0]
        raise CheckpointError(f"{folder}: transformers cannot load it: {reason}") from error
    moved: Any = model  # its `to` is decorated, which hides its parameters
    return moved.to(device).eval()


def _share(device: str, config: EngineConfig) -> float:
    """Return the part of a device's free memory that is for keys and values."""
    if not device.startswith("cuda"):
        return _SHARE
    free, total = torch.cuda.mem_get_info()
    limit = free if not config.device_bytes else config.device_bytes - (total - free)
    usable = min(free, limit) - config.images_bytes
    return max(0.05, _SHARE * usable / free)
