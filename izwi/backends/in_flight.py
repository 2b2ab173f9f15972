"""Asynchronous work on a device, between its launch and its results."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Generic, Protocol, TypeVar

R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")


class Copy(Protocol):
    """A copy to the host; see `izwi.backends.torch.transfer.HostCopy`."""

    @property
    def is_done(self) -> bool:
        """Whether waiting for it would return at once."""
        ...


class InFlight(Generic[R_co]):
    """Work in flight. Calling it waits for the results and returns them."""

    def __init__(self, wait: Callable[[], R_co], copies: Seq[Copy]):
        """Wrap launched work.

        Args:
            wait: Blocks until the results are on the host, and returns them.
            copies: Copies of the results to the host; once all are done, `wait` does not block.
        """
        self._wait, self._copies = wait, copies

    def __call__(self) -> R_co:
        """Wait for the results."""
        return self._wait()

    @property
    def is_done(self) -> bool:
        """Whether the device has finished, so that calling returns at once. Does not block."""
        return all(copy.is_done for copy in self._copies)

    def then(self, convert: Callable[[Callable[[], R_co]], S]) -> InFlight[S]:
        """Return the same work with converted results; `convert` gets a function that waits."""
        return InFlight(lambda: convert(self._wait), self._copies)
