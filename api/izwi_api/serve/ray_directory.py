"""Who in this process wants to know the engines of a Ray deployment. Knows nothing of Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock

from izwi_api.serve.ray_members import Member

Listener = Callable[[Mapping[str, Member]], object]

_lock = Lock()
_listeners: dict[str, Listener] = {}
_latest: dict[str, Mapping[str, Member]] = {}


def subscribe(deployment: str, listener: Listener) -> None:
    """Call a listener with the engines of a deployment, now if they are known and on each change.

    It is called on any thread.
    """
    with _lock:
        _listeners[deployment] = listener
        known = _latest.get(deployment)
    if known is not None:
        listener(known)


def publish(deployment: str, members: Mapping[str, Member]) -> None:
    """Tell the listener of a deployment which engines there are."""
    with _lock:
        if _latest.get(deployment) == members:
            return
        _latest[deployment] = members
        listener = _listeners.get(deployment)
    if listener is not None:
        listener(members)
