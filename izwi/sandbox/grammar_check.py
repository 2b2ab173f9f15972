"""Check grammars from outside before they are compiled in a process that serves others.

A grammar is compiled in a limited process, which a hostile one can only make end. Results are kept
by the digest of the grammar, so that a schema that is sent again is not compiled again here.

Most grammars compile in a millisecond, and give the mask of their first token. Those that take much
longer move to a second queue, so that an ordinary one waits for none of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import OrderedDict
from functools import cache
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from izwi.errors import InvalidRequest, Overloaded
from izwi.inputs.grammar import Grammar
from izwi.sandbox.client import Frames, JobStopped, LimitedJob, ProcessKind, only_frame
from izwi.sandbox.grammar_worker import REFUSED, USABLE, GrammarJob
from izwi.sandbox.process import OUT_OF_TIME, exit_codes
from izwi.sandbox.queue import LimitedQueue

# Limits of one grammar, in the first queue and in the second. Five fields take 0.001 s, a thousand
# 0.1 s.
QUICK_CPU_S, CPU_LIMIT_S = 0.2, 1.0
MEMORY_BYTES = 64 << 20
# Wall time, on a busy machine.
TIME_LIMIT_S = 30.0
MAX_WAITING = 64
_MAX_KNOWN = 4096
_MAX_MESSAGE_BYTES = 4096
# Exit codes of processes that exceeded their limits, the last two that of memory.
_OF_ITS_LIMITS = (*OUT_OF_TIME, *exit_codes("SIGABRT", "SIGSEGV"))


class _Outcome(NamedTuple):
    """Whether a grammar can be used.

    Attributes:
        message: Message for the caller; empty if it can be used.
        is_slow: Whether it took longer than `QUICK_CPU_S`, the first mask included, or was given
            longer.
    """

    message: str
    is_slow: bool = False


class GrammarCheck:
    """Compiles grammars in limited processes, and remembers which can be used."""

    def __init__(self) -> None:
        kind = ProcessKind("izwi.sandbox.grammar_worker", "compiles grammars", MEMORY_BYTES)
        too_many = "too many grammars wait to be compiled"
        self._quick = LimitedQueue(kind, 1, MAX_WAITING, too_many)
        self._slow = LimitedQueue(kind, 1, MAX_WAITING, too_many)
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, _Outcome] = OrderedDict()
        self._turns = WeakValueDictionary[tuple[int, bytes], asyncio.Lock]()

    def start(self) -> None:
        """Start a process ahead, so that the first grammar need not wait."""
        self._quick.start()

    async def check(self, grammar: Grammar) -> Grammar:
        """Return a grammar as checked. If the caller leaves, its compilation is stopped.

        Raises:
            InvalidRequest: It cannot be used, or takes too much time or memory to compile.
            Overloaded: Too many grammars wait, or the machine is too slow.
            IzwiError: No process can be started.
        """
        outcome = self._look_up(grammar)
        if outcome is None:
            async with self._turn(grammar):  # the same schema often comes many times at once
                outcome = self._look_up(grammar) or await self._compile(grammar)
                self._cache_outcome(grammar, outcome)
        return _checked(grammar, outcome)

    def check_now(self, grammar: Grammar) -> Grammar:
        """Do the same for a caller without an event loop. Blocks."""
        outcome = self._look_up(grammar)
        if outcome is None:
            try:
                message = self._slow.pool.run(_job(grammar, CPU_LIMIT_S), _read)
                outcome = _Outcome(message, is_slow=True)
            except JobStopped as error:
                outcome = _too_expensive(grammar, error)
            self._cache_outcome(grammar, outcome)
        return _checked(grammar, outcome)

    def stop(self) -> None:
        """End the processes."""
        self._quick.stop()
        self._slow.stop()

    def _turn(self, grammar: Grammar) -> asyncio.Lock:
        """Return the lock of a grammar's callers on the running event loop."""
        key = id(asyncio.get_running_loop()), _digest(grammar)
        with self._lock:
            return self._turns.setdefault(key, asyncio.Lock())

    async def _compile(self, grammar: Grammar) -> _Outcome:
        try:
            try:
                job = _job(grammar, QUICK_CPU_S, with_mask=True)
                return _Outcome(await self._quick.run(job, _read, 1.0))
            except JobStopped as error:
                if error.exit_code not in _OF_ITS_LIMITS:
                    raise
            message = await self._slow.run(_job(grammar, CPU_LIMIT_S), _read, 1.0)
            return _Outcome(message, is_slow=True)
        except JobStopped as error:
            return _too_expensive(grammar, error)

    def _look_up(self, grammar: Grammar) -> _Outcome | None:
        digest = _digest(grammar)
        with self._lock:
            if digest in self._known:
                self._known.move_to_end(digest)
            return self._known.get(digest)

    def _cache_outcome(self, grammar: Grammar, outcome: _Outcome) -> None:
        with self._lock:
            self._known[_digest(grammar)] = outcome
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)


@cache
def grammar_check() -> GrammarCheck:
    """Return the check that this process uses; its processes end with this one."""
    return GrammarCheck()


def _job(grammar: Grammar, cpu_s: float, *, with_mask: bool = False) -> LimitedJob:
    try:
        job = msgspec.json.encode(GrammarJob(grammar.text, grammar.source, cpu_s, with_mask))
    except UnicodeEncodeError as error:  # half a surrogate pair
        message = f"the {grammar.source} cannot be read: {error}"
        raise InvalidRequest(message, param=grammar.param) from error
    return LimitedJob(job, TIME_LIMIT_S, max_frame_bytes=_MAX_MESSAGE_BYTES)


def _read(frames: Frames) -> str:
    """Return the message for the caller, empty if there is none."""
    kind, content = only_frame(frames)
    if kind == USABLE and not content:
        return ""
    if kind != REFUSED or not content:
        raise JobStopped(f"the process sent {kind!r} of {len(content)} bytes")
    return content.decode()


def _too_expensive(grammar: Grammar, stopped: JobStopped) -> _Outcome:
    """Return the outcome for a grammar whose compilation ended its process.

    Raises:
        Overloaded: The machine was too slow, or killed the process; that is not the grammar's.
    """
    if stopped.exit_code not in _OF_ITS_LIMITS:
        raise Overloaded("the grammar could not be compiled in time", retry_after_s=5) from stopped
    return _Outcome(
        f"the {grammar.source} is too expensive: to compile it takes more than {CPU_LIMIT_S:g} s "
        f"of processor time, or more than {MEMORY_BYTES >> 20} MB"
    )


def _checked(grammar: Grammar, outcome: _Outcome) -> Grammar:
    if outcome.message:
        raise InvalidRequest(outcome.message, param=grammar.param)
    return replace(grammar, is_checked=True, is_slow=outcome.is_slow)


def _digest(grammar: Grammar) -> bytes:
    text = f"{grammar.source}\n{grammar.text}"
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()
