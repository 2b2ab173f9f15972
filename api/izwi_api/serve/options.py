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
    """What is to be served.

    Attributes:
        sources: Checkpoints: folders, embedded names, hub ids.
        drain_s: Seconds that what runs may go on for after SIGTERM.
        num_api_servers: Processes for HTTP; 0 is all in one process.
        record: File to append to, or None.
    """

    sources: tuple[str, ...]
    runtime: RuntimeOptions
    config: EngineConfig
    settings: Settings
    drain_s: float
    num_api_servers: int = 1
    record: Path | None = None


class StartFailed(Exception):
    """A process could not begin, so nothing is served.

    Attributes:
        code: For the exit.
    """

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code
