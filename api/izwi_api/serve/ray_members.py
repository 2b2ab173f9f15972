"""The engines of a Ray cluster, as one API server sees them come and go. Knows nothing of Ray."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import NamedTuple

from izwi_api.serve.replica_router import ReplicaRouter

logger = logging.getLogger(__name__)

# Seconds between looks at an engine whose requests could not all move.
_LOOK_S = 0.1
# Seconds until an engine is connected again whose connection was lost.
_RETRY_S = 0.5


class Member(NamedTuple):
    """An engine that may get requests.

    Attributes:
        address: Where it receives commands.
        is_hung: It has stopped responding.
    """

    address: str
    is_hung: bool = False


class Members:
    """Gives each engine of a cluster a place in a router, on the event loop of an API server.

    An engine that is no longer listed is drained: its requests go on elsewhere, with their logs,
    and its place is free once it has none. The connection to one that dies is lost at once, before
    the cluster notices; its requests move then, too.

    Args:
        router: The router, with at least as many places as there are ever engines.
        num_places: Its places.
    """

    def __init__(self, router: ReplicaRouter, num_places: int):
        self._router = router
        self._free = list(range(num_places))
        self._places: dict[str, int] = {}  # of listed engines, by their ids
        self._members: dict[str, Member] = {}
        router.when_lost = self._lost
        for place in self._free:
            router.vacate(place)

    def update(self, members: Mapping[str, Member]) -> None:
        """Follow the list of engines that may get requests, by their ids."""
        for name, member in members.items():
            before = self._members.get(name)
            if before is None:
                self._add(name, member)
            elif before.is_hung != member.is_hung:
                self._note_hung(self._places[name], member)
            self._members[name] = member
        for name in [name for name in self._members if name not in members]:
            del self._members[name]
            place = self._places.pop(name)
            logger.info("the engine at %d leaves: its requests go on elsewhere", place)
            self._router.drain(place)
            self._free_when_idle(place)

    def _add(self, name: str, member: Member) -> None:
        if not self._free:
            raise RuntimeError(f"there are more engines than places: {len(self._places)}")
        place = self._places[name] = self._free.pop(0)
        self._router.connect(place, member.address)
        if member.is_hung:
            self._router.drain(place, is_hung=True)

    def _note_hung(self, place: int, member: Member) -> None:
        if member.is_hung:
            self._router.drain(place, is_hung=True)
        else:
            self._router.accept(place)

    def _free_when_idle(self, place: int) -> None:
        if self._router.num_requests(place):
            asyncio.get_running_loop().call_later(_LOOK_S, self._free_when_idle, place)
            return
        self._router.vacate(place)
        self._free.append(place)

    def _lost(self, place: int) -> None:
        self._router.disconnect(place)
        names = [name for name, its_place in self._places.items() if its_place == place]
        for name in names:
            logger.warning("the connection to the engine at %d is lost", place)
            asyncio.get_running_loop().call_later(_RETRY_S, self._connect_again, name)

    def _connect_again(self, name: str) -> None:
        """Connect to an engine again, in case that only the connection was lost."""
        if name in self._members:
            self._router.connect(self._places[name], self._members[name].address)
