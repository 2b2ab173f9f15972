"""What the step thread steps: izwi's own engine, or another one with the same methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from izwi.config import EngineConfig
from izwi.engine.prefix_moves import PrefixReader, PrefixWriter
from izwi.model.protocol import Model
from izwi.request.log import Log
from izwi.request.request import Chunk, Request


class Stepped(Protocol):
    """Steps requests; one thread owns it. `izwi.engine.engine.Engine` says what each method does.

    Only `load` is also read by other threads.
    """

    config: EngineConfig

    def own_stream(self) -> AbstractContextManager[None]:
        """Surround all steps: what is inside runs on the step thread."""
        ...

    def step(self) -> list[Chunk]:
        """Run one step; see `Engine.step`."""
        ...

    def submit(self, request: Request, log: Log | None = None) -> None:
        """Queue a request; see `Engine.submit`."""
        ...

    def unread_adapters(self, requests: Sequence[Request]) -> list[Callable[[], None]]:
        """Return what reads adapters of requests; see `Engine.unread_adapters`."""
        ...

    def abort(self, request_id: str) -> list[Chunk]:
        """End a request; see `Engine.abort`."""
        ...

    def pause(self, request_id: str) -> None:
        """Pause a request; see `Engine.pause`."""
        ...

    def resume(self, request_id: str) -> None:
        """Resume a request; see `Engine.resume`."""
        ...

    def write(self, request_id: str, text_ids: Sequence[int], closed: bool) -> bool:
        """Write text to a request; see `Engine.write`."""
        ...

    def set_backpressure(self, request_id: str, backpressured: bool) -> None:
        """Turn backpressure on or off; see `Engine.set_backpressure`."""
        ...

    def add(self, name: str, model: Model) -> None:
        """Serve another model; see `Engine.add`."""
        ...

    def remove(self, name: str) -> None:
        """Remove a model; see `Engine.remove`."""
        ...

    @property
    def leaving(self) -> frozenset[str]:
        """Names of models that are being removed."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether any request has not ended."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether a step would do nothing."""
        ...

    @property
    def spare_s(self) -> float:
        """Seconds until a step is due; see `Engine.spare_s`."""
        ...

    @property
    def load(self) -> dict[str, dict[str, float]]:
        """Figures of each model; see `izwi.metrics.LOAD_KEYS`."""
        ...

    @property
    def num_prefix_changes(self) -> int:
        """How often the known prefixes have changed."""
        ...

    def prefix_digests(self, limit: int) -> dict[str, list[int]]:
        """Return digests of known prefixes; see `Engine.prefix_digests`."""
        ...

    def prefix_reader(self, model: str, keys: Sequence[int]) -> PrefixReader:
        """Read pages of a known prefix; see `Engine.prefix_reader`."""
        ...

    def prefix_writer(self, model: str, keys: Sequence[int]) -> PrefixWriter:
        """Write pages of a prefix; see `Engine.prefix_writer`."""
        ...
