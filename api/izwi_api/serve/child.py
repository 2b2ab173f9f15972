"""A child process of the supervisor, and its restart back-off."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from izwi_api.serve.control import ApiServerSpec, Control, EngineSpec

_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 0.25, 30.0
# A process that has run for this long restarts with the shortest back-off.
_HEALTHY_AFTER_S = 60.0


def start_process(
    program: str,
    spec: EngineSpec | ApiServerSpec,
    descriptors: Sequence[int] = (),
    environ: Mapping[str, str] | None = None,
) -> tuple[subprocess.Popen[bytes], Control]:
    """Start a module as a child process, and send it what it runs; return it with our end."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", program],
            stdin=theirs.fileno(),
            pass_fds=descriptors,
            env=dict(os.environ if environ is None else environ),
            # Ctrl+C in the terminal is handled by this process, which tells the others
            start_new_session=True,
        )
    control = Control(ours)
    control.send(spec)
    return process, control


@dataclass(slots=True, eq=False)
class Child:
    """A process.

    Attributes:
        replica: Number of the engine, or None for an API server.
        is_ready: It has reported that it is ready.
        heartbeat_s: When it last sent a message.
    """

    name: str
    slot: int | None
    process: subprocess.Popen[bytes]
    control: Control
    replica: int | None = None
    is_ready: bool = False
    ready_s: float = 0.0
    heartbeat_s: float = 0.0


@dataclass(slots=True)
class Backoff:
    """How long to wait before a process is started again."""

    num_deaths: int = 0

    def after(self, worked_s: float) -> float:
        """Return the seconds to wait after the death of a process that had run for so long."""
        self.num_deaths = 0 if worked_s > _HEALTHY_AFTER_S else self.num_deaths
        self.num_deaths += 1
        return min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** (self.num_deaths - 1))
