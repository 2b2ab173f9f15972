"""transformers' own loops over one model: continuous batching, or one request after the other.

Imported by the engine process alone. Both run in a thread of their own.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from transformers import (
    ContinuousBatchingConfig,
    GenerationConfig,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
)
from transformers.generation.streamers import BaseStreamer

from izwi.sampling.draws import uniforms

logger = logging.getLogger(__name__)

_GREEDY = -1.0
# What a host without a device gives to keys and values, and to one step.
_HOST_BYTES, _HOST_BATCH = 512 << 20, 1024
_PAGE = 256
# Longest sequences that a cache holds at most.
_MOST_STREAMS = 64
_PROBE_S = 60.0


class Job(NamedTuple):
    """One answer to generate.

    Attributes:
        key: Names it; never used again.
        ids: The prompt.
        stop_ids: End the answer.
        top_k: 0 keeps all.
        seed: With the position it determines every draw.
    """

    key: str
    ids: list[int]
    max_new: int
    stop_ids: tuple[int, ...]
    temperature: float
    top_k: int
    top_p: float
    seed: int


class Output(NamedTuple):
    """What a job has generated so far.

    Attributes:
        ids: All ids, with the one that ended it.
        has_ended: Nothing more comes.
        error: Why it failed.
    """

    key: str
    ids: list[int]
    has_ended: bool
    error: str | None = None


class Generator(Protocol):
    """Runs jobs of one model. Its methods are called by one thread."""

    def start(self) -> None:
        """Start its thread, unless it runs."""
        ...

    def stop(self) -> None:
        """End its thread; jobs in flight are dropped."""
        ...

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs jobs."""
        ...

    @property
    def max_positions(self) -> int | None:
        """Ids that one job may have with its prompt; None if no memory limits them."""
        ...

    def add(self, job: Job) -> None:
        """Queue a job."""
        ...

    def cancel(self, key: str) -> None:
        """Drop a job; outputs of it may still come."""
        ...

    def outputs(self, timeout_s: float) -> list[Output]:
        """Return what has come since the last call; waits for the first."""
        ...


class SeededDraw(ContinuousBatchingLogitsProcessor):
    """Draws each row's id by its own seed, and leaves no other one to the sampler behind it.

    `ContinuousBatching`'s sampler draws for all rows from one generator, so that an answer would
    depend on what runs beside it. A row without a temperature takes the most likely id.
    """

    def __init__(self) -> None:
        self.supported_kwargs = {"draw_seed": int}
        self.ignored_kwargs = ()

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """Fill with the mark of greedy rows."""
        filled = torch.full_like(int32_tensor, _GREEDY, dtype=torch.float32)
        int32_tensor.copy_(filled.view(torch.int32))

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        """Return a uniform number for each row, (rows,) float32 as int32; negative: greedy."""
        states = [request.state for request in requests_with_new_token]
        seeds = [state.logit_processor_kwargs.get("draw_seed") for state in states]
        known = [0 if seed is None else seed for seed in seeds]
        numbers = uniforms(known, [state.position_offset for state in states], 0)
        drawn = [_GREEDY if s is None else float(n) for s, n in zip(seeds, numbers, strict=True)]
        return torch.tensor(drawn, dtype=torch.float32).view(torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Keep one id of each row: scores (rows, vocabulary), tensor_arg (at least rows,)."""
        uniform = tensor_arg[: scores.shape[0]].view(torch.float32)[:, None]
        total = scores.softmax(-1).cumsum(-1)
        drawn = (total > uniform * total[:, -1:]).to(torch.int8).argmax(-1)
        chosen = torch.where(uniform[:, 0] < 0.0, scores.argmax(-1), drawn)
        return torch.full_like(scores, float("-inf")).scatter_(-1, chosen[:, None], 0.0)


class Batched:
    """transformers' continuous batching. Implements `Generator`.

    Args:
        model: A causal language model of transformers.
        kv_bytes: For keys and values; 0: `share` of what is free on a device.
        share: Of the free memory, from 0 to 1.
        switches_to_flash: Use flash attention where it is installed.

    Raises:
        Exception: The model has no such batching; transformers raises any kind.
    """

    def __init__(self, model: Any, kv_bytes: int, share: float, *, switches_to_flash: bool = True):
        self._vocabulary = model.config.get_text_config().vocab_size
        # values that are not the defaults, so that all three may be chosen for each request
        sampling = {"temperature": 0.5, "top_k": self._vocabulary, "top_p": 0.5}
        settings: Any = GenerationConfig  # transformers gives it no types
        generation = settings(do_sample=True, eos_token_id=-1, pad_token_id=0, **sampling)
        self._manager = model.init_continuous_batching(
            generation,
            _batching(model, kv_bytes, share, switches_to_flash=switches_to_flash),
        )
        processors = self._manager.logit_processor
        draw = SeededDraw()
        processors.logits_processor.append(draw)
        processors.tensors_required += 1
        processors.supported_keys |= draw.supported_kwargs

    def start(self) -> None:
        """Start its thread, unless it runs."""
        if not self.is_alive:
            self._manager.start()

    def stop(self) -> None:
        """End its thread; jobs in flight are dropped."""
        self._manager.stop(hard_stop=True)

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs jobs."""
        fatal = self._manager.background_thread_status.fatal_error
        return bool(self._manager.is_running()) and fatal is None

    @property
    def max_positions(self) -> int | None:
        """What all pages hold: a job that outgrows them ends transformers' loop, and all others."""
        processor: Any = self._manager.batch_processor
        num_blocks = getattr(getattr(processor, "cache", None), "num_blocks", None)
        return None if num_blocks is None else int(num_blocks) * _PAGE

    def add(self, job: Job) -> None:
        """Queue a job."""
        options: dict[str, Any] = {"temperature": 1.0, "top_k": self._vocabulary, "top_p": 1.0}
        if job.temperature > 0.0:
            options = {
                "temperature": float(job.temperature),
                "top_k": min(job.top_k or self._vocabulary, self._vocabulary),
                "top_p": float(job.top_p),
                "draw_seed": job.seed,
            }
        self._manager.add_request(
            job.ids,
            request_id=job.key,
            max_new_tokens=job.max_new,
            streaming=True,
            eos_token_id=list(job.stop_ids) or -1,
            **options,
        )

    def cancel(self, key: str) -> None:
        """Drop a job."""
        self._manager.cancel_request(key)

    def outputs(self, timeout_s: float) -> list[Output]:
        """Return what has come since the last call; waits for the first."""
        found = []
        while (result := self._manager.get_result(timeout=timeout_s)) is not None:
            ended = result.is_finished()
            found.append(Output(result.request_id, result.generated_tokens, ended, result.error))
            timeout_s = 1e-4
            if self._manager.output_router.output_queue.empty():
                break
        return found


class OneByOne:
    """transformers' `generate`, one job after the other. Implements `Generator`.

    Args:
        model: A causal language model of transformers.
    """

    def __init__(self, model: Any):
        self._model = model
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        self._cancelled: set[str] = set()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="izwi-generate", daemon=True)

    def start(self) -> None:
        """Start its thread."""
        self._thread.start()

    def stop(self) -> None:
        """End its thread; jobs in flight are dropped."""
        self._stopping = True
        self._jobs.put(None)
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs jobs."""
        return self._thread.is_alive()

    max_positions = None

    def add(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.put(job)

    def cancel(self, key: str) -> None:
        """Drop a job."""
        self._cancelled.add(key)

    def outputs(self, timeout_s: float) -> list[Output]:
        """Return what has come since the last call; waits for the first."""
        found = []
        try:
            found.append(self._outputs.get(timeout=timeout_s))
            while True:
                found.append(self._outputs.get_nowait())
        except queue.Empty:
            return found

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None and not self._stopping:
            if job.key not in self._cancelled:
                try:
                    self._generate(job)
                except Exception as error:
                    logger.exception("transformers failed to generate")
                    self._outputs.put(Output(job.key, [], True, str(error)))
            self._cancelled.discard(job.key)

    def _generate(self, job: Job) -> None:
        streamer = _Streamer(job.key, self._outputs)
        options: dict[str, Any] = {"do_sample": job.temperature > 0.0}
        if options["do_sample"]:
            options |= {"temperature": job.temperature, "top_k": job.top_k, "top_p": job.top_p}
        torch.manual_seed(job.seed)
        prompt = torch.tensor([job.ids], device=self._model.device)
        self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=job.max_new,
            eos_token_id=list(job.stop_ids) or None,
            pad_token_id=0,
            streamer=streamer,
            stopping_criteria=StoppingCriteriaList([_Left(lambda: self._is_over(job.key))]),
            **options,
        )
        self._outputs.put(Output(job.key, list(streamer.ids), True))

    def _is_over(self, key: str) -> bool:
        return self._stopping or key in self._cancelled


class _Streamer(BaseStreamer):
    """Passes ids on as `generate` draws them."""

    def __init__(self, key: str, outputs: queue.SimpleQueue[Output]):
        self._key, self._outputs = key, outputs
        self._has_prompt = False
        self.ids: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        """Called with the prompt, then with each id."""
        if not self._has_prompt:
            self._has_prompt = True
            return
        self.ids += value.reshape(-1).tolist()
        self._outputs.put(Output(self._key, list(self.ids), False))

    def end(self) -> None:
        """Called at the end."""


class _Left(StoppingCriteria):
    """Ends `generate` when nobody waits for it."""

    def __init__(self, is_over: Any):
        self._is_over = is_over

    def __call__(self, input_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Return whether each row ends, (rows,) bool."""
        return torch.full((input_ids.shape[0],), self._is_over(), device=input_ids.device)


def open_generator(model: Any, kv_bytes: int, share: float) -> Generator:
    """Return continuous batching if the model has it, as two ids show, and else `OneByOne`.

    Args:
        model: A causal language model of transformers.
        kv_bytes: See `Batched`, as is the next.
        share: Of the free memory.
    """
    attention = model.config._attn_implementation
    # flash attention takes 16 bits alone, and may be a download: then its own attention batches
    for switches in (True, False):
        generator, failed = _batched(model, kv_bytes, share, switches_to_flash=switches)
        if generator is not None:
            return generator
        model.set_attn_implementation(attention)
    logger.warning("no continuous batching, answers are made one by one: %s", failed)
    return OneByOne(model)


def _batched(
    model: Any, kv_bytes: int, share: float, *, switches_to_flash: bool
) -> tuple[Batched | None, str]:
    """Return continuous batching that has generated two ids; else None, and why it did not."""
    try:
        generator = Batched(model, kv_bytes, share, switches_to_flash=switches_to_flash)
        generator.start()
    except Exception as error:  # of any kind, see `Batched`
        return None, str(error) or type(error).__name__
    failed = _probed(generator)
    if failed is None:
        return generator, ""
    generator.stop()
    return None, failed


def _probed(generator: Generator) -> str | None:
    """Generate two ids; returns why that failed."""
    generator.add(Job("probe", [1, 1], 2, (), 0.0, 0, 1.0, 0))
    outputs: Sequence[Output] = ()
    while not (outputs and outputs[-1].has_ended) and generator.is_alive:
        outputs = generator.outputs(_PROBE_S)
    return outputs[-1].error if outputs else "its loop has ended"


def _batching(
    model: Any, kv_bytes: int, share: float, *, switches_to_flash: bool
) -> ContinuousBatchingConfig:
    options: dict[str, Any] = {
        "per_request_processors": True,
        "page_size": _PAGE,
        "auto_switch_to_flash": switches_to_flash,
    }
    if model.device.type == "cpu" or kv_bytes:
        config = model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        page = _PAGE * 2 * heads * width * config.num_hidden_layers * model.dtype.itemsize
        most = _MOST_STREAMS * -(-getattr(config, "max_position_embeddings", _PAGE) // _PAGE)
        options["num_blocks"] = max(4, min(most, (kv_bytes or _HOST_BYTES) // page))
    else:
        options["max_memory_percent"] = share
    if model.device.type == "cpu":
        options["max_batch_tokens"] = _HOST_BATCH
    return ContinuousBatchingConfig(**options)
