"""What models generate for one caller, while they generate it: one handle over their answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import aclosing, contextmanager
from typing import Any, Protocol

from izwi.engine_client.protocol import Abortable
from izwi.errors import Overloaded
from izwi_api.usage.metering import Charge


class Source(Protocol):
    """What a generation is made of: an answer of the engine, or another generation."""

    def pause(self) -> None:
        """Pause it before its next step."""
        ...

    def resume(self) -> None:
        """Resume it with the next sample or token."""
        ...

    def abort(self) -> None:
        """Abort it, unless it has ended."""
        ...


class Generation(Abortable):
    """Output of models while they generate it. Leaving its context aborts it.

    Attributes:
        is_paused: What starts later is paused, too.
    """

    is_paused = False

    def sources(self) -> Iterable[Source]:
        """Return what it is made of, as far as that has started."""
        raise NotImplementedError

    def output(self) -> AsyncGenerator[Any]:
        """Yield the output as it comes; leaving early aborts the generation.

        Raises:
            IzwiError: A model failed.
        """
        raise NotImplementedError

    async def finish(self) -> None:
        """Wait until all of it is generated; raises as `output`."""
        async with aclosing(self.output()) as pieces:
            async for _ in pieces:
                pass

    def pause(self) -> None:
        """Pause all models before their next steps."""
        self.is_paused = True
        for source in self.sources():
            source.pause()

    def resume(self) -> None:
        """Continue with the next token, and the next sample."""
        self.is_paused = False
        for source in self.sources():
            source.resume()

    def abort(self) -> None:
        """Abort what still runs."""
        for source in self.sources():
            source.abort()


class ChargedGeneration(Generation):
    """A generation for which the caller's key is charged.

    Args:
        charge: Reserved for it. It is settled when the generation ends.
    """

    def __init__(self, charge: Charge):
        self._charge = charge

    def abort(self) -> None:
        """Abort what still runs; nothing of it is charged or refunded any more."""
        self._charge.settle()
        super().abort()

    def refund_unread(self) -> None:
        """Refund the charge for what the engine's queue has refused: by default all of it."""
        self._charge.settle(is_refused=True)

    @contextmanager
    def reading(self) -> Generator[None]:
        """Abort it when the block that reads its output is left."""
        try:
            yield
        except Overloaded:
            self.refund_unread()
            raise
        finally:
            self.abort()
