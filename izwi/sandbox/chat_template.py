"""A checkpoint's own chat template, executed in a limited process (`chat_template_worker`)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from izwi.errors import InvalidRequest
from izwi.sandbox.chat_template_worker import OUTPUT, REFUSED, TEMPLATE, TemplateJob, environment
from izwi.sandbox.client import Frames, JobStopped, LimitedJob, LimitedPool, ProcessKind, only_frame

MEMORY_BYTES = 256 << 20
# Limits for one conversation: processor time, and wall time on a busy machine.
CPU_LIMIT_S = 2
TIME_LIMIT_S = 20.0
_MAX_REFUSAL_BYTES = 4096
_MAX_CHAR_BYTES = 4


class SandboxedTemplate:
    """One template. Its process starts with the first conversation and keeps running.

    Only one thread renders at a time.

    Attributes:
        source: The template's text.
    """

    def __init__(
        self,
        source: str,
        *,
        cpu_limit_s: int = CPU_LIMIT_S,
        time_limit_s: float = TIME_LIMIT_S,
        memory_bytes: int = MEMORY_BYTES,
    ):
        """Parse a template without executing it.

        Args:
            source: The template's text.
            cpu_limit_s: Processor time for one conversation.
            time_limit_s: Wall time for one conversation.
            memory_bytes: Memory that its process may take in addition to that at its start.

        Raises:
            ValueError: It is not valid Jinja, or not Unicode.
        """
        try:
            source.encode()  # half a surrogate pair cannot be sent to the process
            environment().parse(source)
        except Exception as error:
            raise ValueError(f"not a valid Jinja template: {error}") from error
        self.source = source
        self._cpu_limit_s, self._time_limit_s = cpu_limit_s, time_limit_s
        self._lock = threading.Lock()
        self._pool = LimitedPool(
            ProcessKind(
                "izwi.sandbox.chat_template_worker",
                "renders chat templates",
                memory_bytes,
                first=((TEMPLATE, source.encode()),),
            )
        )

    def render(self, variables: Mapping[str, Any], max_chars: int) -> str:
        """Return the text of a conversation in the template.

        Args:
            variables: The template's variables, plain JSON.
            max_chars: Maximum length of the text.

        Raises:
            InvalidRequest: The template rejects the conversation, fails, or exceeds its limit of
                time or memory.
            RecursionError: The variables are nested too deeply.
        """
        job = LimitedJob(
            msgspec.json.encode(TemplateJob(dict(variables), max_chars, self._cpu_limit_s)),
            self._time_limit_s,
            max_frame_bytes=max(_MAX_REFUSAL_BYTES, _MAX_CHAR_BYTES * max_chars),
        )
        try:
            with self._lock:
                return self._pool.run(job, _read)
        except JobStopped as error:
            raise InvalidRequest(
                "the model's chat template was stopped: it takes more than "
                f"{self._cpu_limit_s} s of processor time, or too much memory",
                param="messages",
            ) from error

    def close(self) -> None:
        """Stop the process; another one starts when needed."""
        with self._lock:
            self._pool.end_idle()


def _read(frames: Frames) -> str:
    kind, content = only_frame(frames)
    if kind == REFUSED:
        raise InvalidRequest(content.decode(), param="messages")
    if kind != OUTPUT:
        raise JobStopped(f"the process sent {kind!r}")
    return content.decode()
