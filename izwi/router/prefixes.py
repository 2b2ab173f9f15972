"""What is known of an engine's prefix trees, outside that engine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from izwi.cache.radix import page_chain
from izwi.request.adapter import salted
from izwi.request.request import Request

# Leading pages of a prompt that are looked up.
_MOST_PAGES = 256
# Digests of placed requests that are remembered for each engine.
_MOST_PLACED = 8192


def prompt_chain(request: Request, page_size: int) -> list[int]:
    """Return running digests of the leading whole pages of a request's prompt.

    They equal those that engines publish (`izwi.cache.memory.PagedMemory.digests`).
    """
    keys = request.prompt.content_keys[: _MOST_PAGES * page_size]
    return page_chain(salted(keys.tolist(), request.adapter), page_size)


class KnownPrefixes:
    """Prefixes that one engine has: those it has published, and those of requests sent to it.

    The latter count from the moment of placement, so that requests of one conversation that follow
    each other closely meet. A publication does not remove them, because it may be older than they;
    the oldest are forgotten.
    """

    def __init__(self) -> None:
        self._published: dict[str, frozenset[int]] = {}
        self._placed: OrderedDict[tuple[str, int], None] = OrderedDict()

    def publish(self, digests: dict[str, list[int]]) -> None:
        """Replace what the engine has published: page digests by model."""
        self._published = {model: frozenset(known) for model, known in digests.items()}

    def place(self, model: str, digests: Iterable[int]) -> None:
        """Remember digests of a request that was sent to the engine."""
        placed = self._placed
        for digest in digests:
            placed[model, digest] = None
            placed.move_to_end((model, digest))
        while len(placed) > _MOST_PLACED:
            placed.popitem(last=False)

    def clear(self) -> None:
        """Forget everything: the engine has died."""
        self._published = {}
        self._placed.clear()

    def num_known(self, model: str, chain: Sequence[int]) -> int:
        """Return how many leading digests of a chain the engine has."""
        published, placed = self._published.get(model, frozenset()), self._placed
        for count, digest in enumerate(chain):
            if digest not in published and (model, digest) not in placed:
                return count
        return len(chain)

    def has(self, model: str, digest: int) -> bool:
        """Whether the engine has one piece of encoded audio."""
        return (model, digest) in self._placed
