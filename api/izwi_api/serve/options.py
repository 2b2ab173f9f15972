"""Options of `izwi serve`, for one process or several."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from izwi.config import EngineConfig
from izwi.errors import InvalidRequest
from izwi.router.options import RouterOptions
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.serve.shared_pages import can_share
from izwi_api.settings import Settings

ADDRESS_TAKEN = 3  # the exit code


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """The engines of a server.

    Attributes:
        devices: The devices of the engines, `tensor_parallel` for each; empty: one engine on the
            device of the runtime options.
        router: How requests are placed on them.
        min_ready: Engines that must accept requests before the server says that it is ready.
        places: Numbers of the engines that serve a model, by its name; others are served by all.
        tensor_parallel: Ranks of each engine, over which its models are split.
    """

    devices: tuple[str, ...] = ()
    router: RouterOptions = field(default_factory=RouterOptions)
    min_ready: int = 1
    places: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    tensor_parallel: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.min_ready <= self.count:
            raise InvalidRequest(
                f"--min-ready must be between 1 and the number of replicas ({self.count}), "
                f"got {self.min_ready}",
                param="min_ready",
            )
        if self.router.num_prefill and not can_share():
            raise InvalidRequest(
                "--prefill-replicas needs memory that processes share, as Linux has it",
                param="prefill_replicas",
            )
        if self.router.num_prefill and self.router.num_prefill >= self.count:
            raise InvalidRequest(
                f"--prefill-replicas {self.router.num_prefill} leaves none of {self.count} "
                "replicas to decode",
                param="prefill_replicas",
            )
        for name, numbers in self.places.items():
            if wrong := [number for number in numbers if not 0 <= number < self.count]:
                raise InvalidRequest(
                    f"--place {name}: there is no replica {wrong[0]}; they are 0 to "
                    f"{self.count - 1}",
                    param="place",
                )

    def serves(self, replica: int, model: str) -> bool:
        """Whether an engine serves a model."""
        return replica in self.places.get(model, (replica,))

    def places_of(self, model: str) -> tuple[int, ...]:
        """Return the numbers of the engines that serve a model."""
        return self.places.get(model, tuple(range(self.count)))

    def check_models(self, models: Collection[str], *, may_come: bool = False) -> None:
        """Check the places of models; others `may_come` later. Raises InvalidRequest."""
        unknown = [name for name in self.places if name not in models]
        if unknown and not may_come:
            raise InvalidRequest(
                f"--place: no model is called {unknown[0]!r}; they are {', '.join(models)}",
                param="place",
            )
        for replica in range(self.count):
            if models and not any(self.serves(replica, model) for model in models):
                raise InvalidRequest(f"--place leaves replica {replica} no model", param="place")

    @property
    def count(self) -> int:
        """Number of engines."""
        return max(1, len(self.devices) // self.tensor_parallel)

    def devices_of(self, replica: int) -> tuple[str, ...]:
        """Return the devices of an engine; none if it is the one on the usual device."""
        first = replica * self.tensor_parallel
        return self.devices[first : first + self.tensor_parallel]


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What to serve, and how.

    Attributes:
        sources: Checkpoints: folders, names of embedded ones, hub ids.
        drain_s: Seconds that requests in flight may take to finish after SIGTERM.
        num_api_servers: Processes for HTTP; with 0 everything runs in one process.
        record: File to append to, or None.
        replicas: The engines, and how requests are placed on them.
        operators: Accept commands of operators also with one engine.
        adapters: Folders of adapters, by "MODEL:ADAPTER".
    """

    sources: tuple[str, ...]
    runtime: RuntimeOptions
    config: EngineConfig
    settings: Settings
    drain_s: float
    num_api_servers: int = 1
    record: Path | None = None
    replicas: ReplicaOptions = field(default_factory=ReplicaOptions)
    operators: bool = False
    adapters: Mapping[str, Path] = field(default_factory=dict)
