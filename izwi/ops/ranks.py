"""The ranks that share a model: each has a part of its layers, and they add and join results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class RankNumber(Protocol):
    """A rank's number, and that of all."""

    @property
    def index(self) -> int:
        """This rank's number."""
        ...

    @property
    def count(self) -> int:
        """Number of ranks."""
        ...


class Ranks(RankNumber, Protocol):
    """The ranks of one engine, as one of them sees them.

    All ranks call the same methods in the same order, with arrays of the same shapes.
    """

    @property
    def num_exchanges(self) -> int:
        """Calls of these methods so far; 0 for the only rank, which exchanges nothing."""
        ...

    def all_reduce(self, x: Any) -> Any:
        """Return the sum of all ranks' arrays, the same bits on each; it may overwrite `x`."""
        ...

    def all_gather(self, x: Any) -> Any:
        """Join all ranks' arrays (..., width) in their order: (..., count * width)."""
        ...

    def broadcast(self, x: Any) -> Any:
        """Return rank 0's array; it may overwrite `x`."""
        ...


class Alone:
    """The only rank. Implements `Ranks`."""

    index = 0
    count = 1
    num_exchanges = 0

    def all_reduce(self, x: Any) -> Any:
        """Return `x`."""
        return x

    def all_gather(self, x: Any) -> Any:
        """Return `x`."""
        return x

    def broadcast(self, x: Any) -> Any:
        """Return `x`."""
        return x


ALONE = Alone()


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank is, and where it finds the others.

    Attributes:
        index: Its number.
        count: Number of ranks.
        store: A file that does not exist yet, by which they find each other; of all ranks the same.
    """

    index: int
    count: int
    store: str


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a tensor: indices [start, stop) along one axis."""

    axis: int
    start: int
    stop: int

    @staticmethod
    def at(ranks: RankNumber, axis: int, size: int) -> Part:
        """Return a rank's equal part of an axis. Raises ValueError if there is none."""
        if size % ranks.count:
            raise ValueError(f"{size} cannot be divided by {ranks.count}")
        width = size // ranks.count
        return Part(axis, ranks.index * width, (ranks.index + 1) * width)

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of this part of a tensor."""
        return (*whole[: self.axis], self.stop - self.start, *whole[self.axis + 1 :])

    @property
    def index(self) -> tuple[slice, ...]:
        """The part as an index of an array."""
        return (slice(None),) * self.axis + (slice(self.start, self.stop),)
