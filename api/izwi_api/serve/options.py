"""Options of `izwi serve`, for one process or several."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from izwi.config import EngineConfig
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.settings import Settings

ADDRESS_TAKEN = 3  # the exit code


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What to serve, and how.

    Attributes:
        sources: Checkpoints: folders, names of embedded ones, hub ids.
        drain_s: Seconds that requests in flight may take to finish after SIGTERM.
        num_api_servers: Processes for HTTP; with 0 everything runs in one process.
        record: File to append to, or None.
    """

    sources: tuple[str, ...]
    runtime: RuntimeOptions
    config: EngineConfig
    settings: Settings
    drain_s: float
    num_api_servers: int = 1
    record: Path | None = None
