"""Settings of the engine. Frozen and complete after construction."""

from __future__ import annotations

from dataclasses import dataclass

from izwi.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Budgets of one engine.

    Attributes:
        max_running: Sequences of one model that hold pages at the same time.
        max_waiting: Sequences of one model that wait to run; one more is Overloaded.
        page_size: Positions of one page.
        kv_bytes: Memory for keys and values, divided equally among the models.
        max_step_tokens: Positions that one step of one model runs, decodes included.
        max_step_encodes: Pieces of audio that one step of one model encodes.
        max_step_vocodes: Streams whose sound one step of one model makes.
        chunk_ramp: Frames of the first, second, ... chunk of sound; the last repeats.
        max_backlog: Chunks that a reader may leave unread before its sequence is held.
    """

    max_running: int = 64
    max_waiting: int = 512
    page_size: int = 16
    kv_bytes: int = 1 << 30
    max_step_tokens: int = 2048
    max_step_encodes: int = 16
    max_step_vocodes: int = 64
    chunk_ramp: tuple[int, ...] = (1, 2, 4, 8, 12)
    max_backlog: int = 256

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            values = value if isinstance(value, tuple) else (value,)
            if not values or min(values) < 1:
                raise InvalidRequest(f"{name} must be at least 1, got {value}", param=name)
        if self.max_step_tokens < self.max_running:
            raise InvalidRequest(
                f"max_step_tokens ({self.max_step_tokens}) must hold one position for each of "
                f"max_running ({self.max_running}) sequences",
                param="max_step_tokens",
            )
