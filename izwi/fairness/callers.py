"""Which caller the current work is for, so that the work of one delays others by a bound only.

Callers with a key are their keys, on however many connections; others are their connections. Tasks
inherit the caller. The empty name is the caller of everything else, such as commands in this
process.
"""

from __future__ import annotations

from contextvars import ContextVar

current_caller: ContextVar[str] = ContextVar("current_caller", default="")

# Whether the current work may wait until no other caller has any: a line of a batch.
is_idle_work: ContextVar[bool] = ContextVar("is_idle_work", default=False)
