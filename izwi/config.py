"""Settings of the engine. Frozen and complete after construction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from izwi.errors import InvalidRequest

POLICY_NAMES = ("deadline", "priority", "fcfs")
KV_DTYPES = ("auto", "int8", "fp8")
# Drafts of the next entries: none, from the sequence's own n-grams, or those only where they pay.
SPECULATIONS = ("off", "ngram", "auto")
ATTENTIONS = ("auto", "torch", "triton", "sgl-kernel")  # what a backend's decoders attend with
# How a backend keeps the weights of large products: "auto" packed where the checkpoint packs them,
# "float" always as numbers of the device's dtype.
WEIGHTS = ("auto", "float", "int8", "fp8", "int4")
_MAY_BE_ZERO = (
    *("device_bytes", "images_bytes", "kv_bytes", "host_bytes", "disk_bytes", "encoded_bytes"),
    *("max_prefill_s", "max_decode_s"),
)


def require_one_of(name: str, value: str, choices: Sequence[str]) -> None:
    """Check a setting.

    Raises:
        InvalidRequest: `value` is none of `choices`.
    """
    if value not in choices:
        raise InvalidRequest(
            f"{name} must be one of {', '.join(choices)}, got {value!r}", param=name
        )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Budgets of one engine.

    Attributes:
        max_running: Sequences of one model that hold pages at the same time.
        max_waiting: Sequences of one model that wait to run; one more is Overloaded.
        page_size: Positions of one page.
        max_models: Number of models among which memory is divided, if fewer are loaded at the
            start; the remaining shares are for models that are loaded later.
        device_bytes: Device memory that may be used in all; 0: as much as is free.
        images_bytes: Device memory that is left to the process that draws images.
        kv_bytes: Memory for keys and values, divided among the models by need; 0 takes what the
            memory plan leaves (`izwi.backends.memory_plan`). A model that is loaded later takes at
            most the memory that its weights leave free.
        max_step_tokens: Positions that one step of one model runs, decodes included.
        max_step_encodes: Pieces of audio that one step of one model encodes.
        max_step_vocodes: Streams whose audio one step of one model decodes.
        chunk_ramp: Frames of the first, second, ... chunk of audio; the last repeats.
        max_backlog: Unread chunks at which backpressure stops the sequence.
        policy: Who runs first: a name in `izwi.scheduler.policy.POLICIES`.
        max_step_s: Time that one step of one model should take where nothing urgent needs more.
        ttfa_target_s: Target for the time to first audio; a stream without audio after it is late.
        max_wait_s: A request that could not start within this time is refused as Overloaded.
        max_prefill_s: A request without output so long after its start ends with DeadlineExceeded;
            0: no limit. Its pauses do not count.
        max_decode_s: The same of one that is not complete so long after its first output.
        kv_dtype: "auto" (that of the weights), "int8" or "fp8" for keys and values in the pages.
        host_bytes: Host memory for pages and codec states that had to leave the device.
        disk_bytes: Disk for what had to leave the host memory; 0 uses none.
        graphs: Whether steps that repeat are captured as graphs, where the device can.
        adapters: Whether steps with adapters are captured at the start, too, so that the first
            requests with one do not wait for it.
        encoded_bytes: Memory for results of the audio encoders, so that equal audio runs once.
        speculate: Which rows guess their next entries: a name in `SPECULATIONS`.
    """

    max_running: int = 64
    max_waiting: int = 512
    page_size: int = 16
    max_models: int = 1
    device_bytes: int = 0
    images_bytes: int = 0
    kv_bytes: int = 0
    max_step_tokens: int = 2048
    max_step_encodes: int = 16
    max_step_vocodes: int = 64
    chunk_ramp: tuple[int, ...] = (1, 2, 4, 8)
    max_backlog: int = 256
    policy: str = "deadline"
    max_step_s: float = 0.012
    ttfa_target_s: float = 0.1
    max_wait_s: float = 60.0
    max_prefill_s: float = 0.0
    max_decode_s: float = 0.0
    kv_dtype: str = "auto"
    host_bytes: int = 256 << 20
    disk_bytes: int = 0
    encoded_bytes: int = 64 << 20
    graphs: bool = True
    adapters: bool = False
    speculate: str = "off"

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            least = 0 if name in _MAY_BE_ZERO else 1
            values = value if isinstance(value, tuple) else (value,)
            counts = [n for n in values if isinstance(n, int) and not isinstance(n, bool)]
            if not values or any(number < least for number in counts):
                raise InvalidRequest(f"{name} must be at least {least}, got {value}", param=name)
            if isinstance(value, float) and not (value > 0 or value == least == 0):
                more = "at least" if name in _MAY_BE_ZERO else "more than"
                raise InvalidRequest(f"{name} must be {more} 0, got {value}", param=name)
        if self.max_step_tokens < self.max_running:
            raise InvalidRequest(
                f"max_step_tokens ({self.max_step_tokens}) must hold one position for each of "
                f"max_running ({self.max_running}) sequences",
                param="max_step_tokens",
            )
        require_one_of("policy", self.policy, POLICY_NAMES)
        require_one_of("kv_dtype", self.kv_dtype, KV_DTYPES)
        require_one_of("speculate", self.speculate, SPECULATIONS)

    def with_streams(self, num_streams: int) -> EngineConfig:
        """Return the same with another number of running sequences."""
        return replace(self, max_running=num_streams)
