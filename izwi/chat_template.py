"""A checkpoint's own chat template, executed in a limited process (`chat_template_worker`)."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

import msgspec

from izwi.chat_template_worker import JOB, OUTPUT, REFUSED, TEMPLATE, Job, Refusal, environment
from izwi.errors import InvalidRequest, IzwiError
from izwi.limited_process import HEAD, READY, read_exactly, start_process

MEMORY_BYTES = 256 << 20
# Limits for one conversation: processor time, and wall time on a busy machine.
CPU_LIMIT_S = 2
TIME_LIMIT_S = 20.0
_START_LIMIT_S = 60.0
_MAX_REFUSAL_BYTES = 4096
_MAX_CHAR_BYTES = 4


class ChatTemplate:
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
        self.source, self._memory_bytes = source, memory_bytes
        self._cpu_limit_s, self._time_limit_s = cpu_limit_s, time_limit_s
        self._lock = threading.Lock()
        self._worker: _Worker | None = None

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
        job = msgspec.json.encode(Job(dict(variables), max_chars, self._cpu_limit_s))
        with self._lock:
            worker = self._worker or _Worker(self.source, self._memory_bytes)
            self._worker = None  # until it has answered as it should
            try:
                answer = worker.ask(job, max_chars, self._time_limit_s)
            except (OSError, EOFError, msgspec.MsgspecError, UnicodeDecodeError) as error:
                worker.end()
                raise InvalidRequest(
                    "the model's chat template was stopped: it takes more than "
                    f"{self._cpu_limit_s} s of processor time, or too much memory",
                    param="messages",
                ) from error
            except BaseException:
                worker.end()
                raise
            if isinstance(answer, Refusal) and answer.out_of_memory:
                worker.end()
            else:
                self._worker = worker
        if isinstance(answer, Refusal):
            raise InvalidRequest(answer.message, param="messages")
        return answer

    def close(self) -> None:
        """Stop the process; another one starts when needed."""
        with self._lock:
            if self._worker is not None:
                self._worker.end()
                self._worker = None


class _Worker:
    """One process with the template."""

    def __init__(self, source: str, memory_bytes: int):
        self._stream, process = start_process("izwi.chat_template_worker", memory_bytes)
        self.end = weakref.finalize(self, _end, self._stream, process)
        self._stream.settimeout(_START_LIMIT_S)
        try:
            if HEAD.unpack(read_exactly(self._stream, HEAD.size)) != (READY, 0):
                raise EOFError
            content = source.encode()
            self._stream.sendall(HEAD.pack(TEMPLATE, len(content)) + content)
        except (OSError, EOFError) as error:
            self.end()
            raise IzwiError("the process for chat templates does not start") from error

    def ask(self, job: bytes, max_chars: int, time_limit_s: float) -> str | Refusal:
        """Send a job, and return its result.

        Raises:
            OSError, EOFError, MsgspecError, UnicodeDecodeError: The process ended, was too slow, or
                sent an invalid answer.
        """
        until_s = time.monotonic() + time_limit_s
        self._stream.settimeout(time_limit_s)
        self._stream.sendall(HEAD.pack(JOB, len(job)) + job)
        kind, size = HEAD.unpack(self._read(HEAD.size, until_s))
        if kind == REFUSED and size <= _MAX_REFUSAL_BYTES:
            return msgspec.json.decode(self._read(size, until_s), type=Refusal)
        if kind != OUTPUT or size > _MAX_CHAR_BYTES * max_chars:
            raise EOFError
        return self._read(size, until_s).decode()

    def _read(self, num_bytes: int, until_s: float) -> bytearray:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._stream.settimeout(left_s)
        return read_exactly(self._stream, num_bytes)


def _end(stream: socket.socket, process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    stream.close()
