"""The engine: one loop for every task. Knows no model by name and no HTTP.

schedule   which sequences run, with which pages   scheduler/
execute    encoders, one forward pass, the codec   runner/
process    logs grow, chunks leave, memory is freed
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial

from izwi.backends.budget import budget_of
from izwi.backends.memory_plan import MemoryPlan
from izwi.backends.protocol import Backend
from izwi.config import EngineConfig
from izwi.engine.model_worker import ModelWorker
from izwi.engine.prefix_moves import PrefixReader, PrefixWriter
from izwi.errors import InvalidRequest, ModelNotFound
from izwi.model.protocol import Model
from izwi.request.log import Log
from izwi.request.request import Chunk, Reason, Request
from izwi.request.sequence import PauseReason, Sequence
from izwi.runner.planning import plan_models
from izwi.runner.runner import Runner
from izwi.scheduler.callers import DeviceShares


class Engine:
    """Steps every live request of every model. Not thread-safe: one thread owns it."""

    def step(self) -> list[Chunk]:
        """Run one step of every model that has work: schedule, execute, process.

        Results are processed one step behind the device.
        """
        workers = self._busy_workers()
        for worker in workers:
            work = worker.schedule(self.clock())
            worker.launch(work)
        chunks: list[Chunk] = []
        for worker in workers:
            for results in worker.results():
                chunks += worker.process(results, self.clock())
        self._forget_ended(chunks)
        return chunks

    def __init__(
        self,
        models: Mapping[str, Model],
        backend: Backend,
        config: EngineConfig,
        clock: Callable[[], float] = time.monotonic,
        weight_bytes: Mapping[str, int] | None = None,
    ):
        """Set up the models, by a plan of the memory.

        Args:
            models: The models, by the names under which they are served.
            backend: The backend that has the weights of all models.
            config: Budgets.
            clock: Returns seconds, for playback and for measuring steps.
            weight_bytes: What the weights of each model take, if known, for the plan's description.

        Raises:
            DoesNotFit: The device has no room for one stream of each model.
        """
        self.config, self.clock, self.own_stream = config, clock, backend.own_stream
        self._backend, self._num_shares = backend, max(len(models), config.max_models)
        self.plan = plan_models(models, backend, config, weight_bytes or {})
        self._shares = DeviceShares()
        backend.keep_workspace(self.plan.workspace_bytes)
        self._workers = {
            name: self._worker(name, model, self.plan) for name, model in models.items()
        }
        self._leaving: set[str] = set()
        self._live: dict[str, tuple[ModelWorker, Sequence]] = {}
        self._arrivals = 0

    def add(self, name: str, model: Model) -> None:
        """Serve another model, with an unused share of the memory.

        No step runs meanwhile. Setting up pages takes milliseconds; capturing a model's steps on
        CUDA takes seconds.

        Raises:
            InvalidRequest: The name is taken, no share of the memory is left, or the device is
                full.
        """
        if name in self._workers:
            raise InvalidRequest(f"model {name!r} is still loaded", param="model")
        if len(self._workers) >= self._num_shares:
            raise InvalidRequest(
                f"{self._num_shares} models share the memory already: unload one first",
                param="model",
            )
        with self._backend.reporting_full_device():
            worker = self._worker(name, model, self._plan_of_added(name, model))
        self._workers = {**self._workers, name: worker}  # a copy: other threads read the old one

    def _plan_of_added(self, name: str, model: Model) -> MemoryPlan:
        """Plan the memory of one more model: a share of what is configured, or free now."""
        config = self.config
        if config.kv_bytes:
            share = replace(config, kv_bytes=config.kv_bytes // self._num_shares, max_models=1)
        elif self._backend.memory().is_shared:
            share = config
        else:
            share = replace(config, max_models=self._num_shares - len(self._workers))
        return plan_models({name: model}, self._backend, share, {})

    def _worker(self, name: str, model: Model, plan: MemoryPlan) -> ModelWorker:
        budget = budget_of(self.config, plan, name, self._num_shares)
        config = self.config.with_streams(plan.num_streams)
        return ModelWorker.for_model(model, self._backend, config, budget, self.clock, self._shares)

    def remove(self, name: str) -> None:
        """Accept no new requests for a model; free its memory when the running ones have ended.

        Raises:
            ModelNotFound: No such model is served.
        """
        if name not in self._workers or name in self._leaving:
            raise ModelNotFound(f"no model {name!r} is served", param="model")
        self._leaving.add(name)
        self._let_go()

    @property
    def runners(self) -> list[Runner]:
        """The runners of all models, in their order."""
        return [worker.runner for worker in self._workers.values()]

    @property
    def leaving(self) -> frozenset[str]:
        """Names of models that are removed once their requests have ended."""
        return frozenset(self._leaving)

    def submit(self, request: Request, log: Log | None = None) -> None:
        """Queue a request; one that another engine has begun resumes where its log ends.

        Raises:
            ModelNotFound: No such model is served.
            InvalidRequest: The prompt can never fit in memory, the id is taken, or the model does
                not support grammars.
            Overloaded: The model's queue is full.
        """
        worker = self._worker_of(request.model)
        if request.request_id in self._live:
            raise InvalidRequest(f"request {request.request_id!r} is running already")
        sequence = Sequence(request, self._arrivals, self.clock())
        if request.adapter is not None:
            sequence.adapter = worker.runner.adapters.load(request.adapter)
        if request.grammar is not None:
            sequence.drawing.grammar = worker.runner.grammars.start(request.grammar)
        worker.set_up_sequence(sequence, log)
        worker.scheduler.add(sequence)
        if log is not None:
            worker.restore_playback(sequence, log)
            if log.paused:
                worker.scheduler.pause(sequence, self.clock())
        self._arrivals += 1
        self._live[request.request_id] = worker, sequence

    def unread_adapters(self, requests: Seq[Request]) -> list[Callable[[], None]]:
        """Return what reads the adapters that `submit` would read; may run in any thread."""
        reads: dict[str, Callable[[], None]] = {}
        for request in requests:
            ref, worker = request.adapter, self._workers.get(request.model)
            if ref is not None and worker is not None and worker.runner.adapters.lacks(ref):
                reads[ref.digest] = partial(worker.runner.adapters.read, ref)
        return list(reads.values())

    def abort(self, request_id: str) -> list[Chunk]:
        """End a request now and free its memory; do nothing if it has ended."""
        if request_id not in self._live:
            return []
        worker, sequence = self._live.pop(request_id)
        chunk = worker.finish_request(sequence, Reason.ABORTED)
        self._let_go()
        return [chunk]

    def pause(self, request_id: str) -> None:
        """Pause a request until `resume`; do nothing if it has ended.

        It resumes with the very next sample or token. Its pages and codec state are kept while
        there is memory, and rebuilt from its log otherwise.
        """
        if request_id in self._live:
            worker, sequence = self._live[request_id]
            worker.scheduler.pause(sequence, self.clock())

    def resume(self, request_id: str) -> None:
        """Resume a paused request; do nothing if it is not paused."""
        if request_id in self._live:
            worker, sequence = self._live[request_id]
            worker.scheduler.resume(sequence, self.clock())

    def write(self, request_id: str, text_ids: Seq[int], closed: bool) -> bool:
        """Write text to a request with open input; return False if it has ended or was closed.

        Args:
            request_id: The request.
            text_ids: The next text ids, in the model's vocabulary.
            closed: Nothing more will be written.
        """
        if request_id not in self._live:
            return False
        _, sequence = self._live[request_id]
        if not sequence.input.is_open:
            return False
        sequence.input.written += tuple(text_ids)
        sequence.input.is_open = not closed
        if closed and sequence.status.paused is PauseReason.INPUT:
            sequence.status.paused = None
        return True

    def set_backpressure(self, request_id: str, backpressured: bool) -> None:
        """Turn backpressure on or off for a request whose reader is behind."""
        if request_id in self._live:
            self._live[request_id][1].status.backpressured = backpressured

    @property
    def has_work(self) -> bool:
        """Whether any sequence runs or waits, or a step is in flight."""
        return any(worker.has_work for worker in self._workers.values())

    @property
    def is_idle(self) -> bool:
        """Whether the last step ran nothing, because every sequence waits for input or a reader."""
        return all(worker.is_idle for worker in self._busy_workers())

    @property
    def spare_s(self) -> float:
        """Seconds to wait for new requests before asking again; 0 or less: a step is due."""
        return min((worker.spare_s for worker in self._busy_workers()), default=0.0)

    @property
    def load(self) -> dict[str, dict[str, float]]:
        """Counters of each model; see `izwi.metrics.LOAD_KEYS`."""
        return {name: worker.load for name, worker in self._workers.items()}

    def prefix_reader(self, model: str, keys: Seq[int]) -> PrefixReader:
        """Read pages of a known prefix, for another engine. Raises ModelNotFound."""
        return self._worker_of(model).prefix_reader(keys)

    def prefix_writer(self, model: str, keys: Seq[int]) -> PrefixWriter:
        """Write pages of a prefix that another engine has computed. Raises ModelNotFound."""
        return self._worker_of(model).prefix_writer(keys)

    def _worker_of(self, model: str) -> ModelWorker:
        if model not in self._workers or model in self._leaving:
            raise ModelNotFound(f"no model {model!r} is served", param="model")
        return self._workers[model]

    @property
    def num_prefix_changes(self) -> int:
        """How often the known prefixes of any model have changed."""
        return sum(worker.num_prefix_changes for worker in self._workers.values())

    def prefix_digests(self, limit: int) -> dict[str, list[int]]:
        """Return page digests of each model's known prefixes; see `RadixTree.digests`."""
        return {name: worker.prefix_digests(limit) for name, worker in self._workers.items()}

    def _busy_workers(self) -> list[ModelWorker]:
        return [worker for worker in self._workers.values() if worker.has_work]

    def _forget_ended(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            if chunk.reason is not None:
                self._live.pop(chunk.request_id, None)
        self._let_go()

    def _let_go(self) -> None:
        """Drop the workers of models that are being removed and have no work left."""
        if not self._leaving:
            return
        busy = {sequence.request.model for _, sequence in self._live.values()}
        busy |= {name for name in self._leaving if self._workers[name].is_in_flight}
        for name in self._leaving - busy:
            self._leaving.discard(name)
            self._workers[name].close()
            self._workers = {
                other: worker for other, worker in self._workers.items() if other != name
            }
