"""What an engine process does of moved prefixes: computes them for others, or writes theirs.

Used on the step thread. Both run in parts of some MiB, so that a step waits for one part only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from izwi.engine.prefix_moves import PrefixReader, PrefixWriter
from izwi.engine.stepped import Stepped
from izwi.errors import IzwiError
from izwi.request.adapter import salted
from izwi.request.request import Request
from izwi_api.serve.shared_pages import Prefix, ReadPages, WrittenPages, read_pages

logger = logging.getLogger(__name__)

# What is copied between two steps.
_PART_BYTES = 32 << 20
# Memory of prefixes that other engines have not read yet; further ones are not passed on.
_MOST_BYTES = 4 << 30


class PageMoves:
    """Prefixes that this engine passes on, and those that it gets.

    Args:
        engine: The engine.
        later: Calls a function after the next step.
    """

    def __init__(self, engine: Stepped, later: Callable[[Callable[[], None]], object]):
        self._engine, self._later = engine, later
        self._written: dict[str, WrittenPages] = {}

    # -- of the engine that computes ------------------------------------------------------------
    def pass_on(self, request: Request, done: Callable[[str], None]) -> None:
        """Write the known pages of a prompt where others can read them; call back with the path.

        The path is empty if there are none, or no memory for them.
        """
        keys = salted(request.prompt.content_keys.tolist(), request.adapter)
        try:
            reader = self._engine.prefix_reader(request.model, keys)
        except IzwiError:  # the model leaves
            done("")
            return
        page_bytes = reader.page_bytes
        unread = sum(one.num_bytes for one in self._written.values())
        if not reader.num_pages or unread + reader.num_pages * page_bytes > _MOST_BYTES:
            reader.close()
            done("")
            return
        whole = keys[: reader.num_pages * reader.page_size]
        try:
            written = WrittenPages(Prefix(request.model, whole, page_bytes, reader.num_pages))
        except OSError as error:
            logger.warning("no memory for a prompt's pages: %s", error)
            reader.close()
            done("")
            return
        self._written[request.request_id] = written
        self._read_part(request.request_id, reader, done)

    def free(self, request_ids: Sequence[str]) -> None:
        """Free the memory of prefixes that were read, or that nobody will read."""
        for request_id in request_ids:
            if (written := self._written.pop(request_id, None)) is not None:
                written.close()

    def _read_part(
        self, request_id: str, reader: PrefixReader, done: Callable[[str], None]
    ) -> None:
        written = self._written.get(request_id)
        if written is None:  # nobody waits for it any more
            reader.close()
            return
        path = written.path
        try:
            written.write(reader.read(max(1, _PART_BYTES // reader.page_bytes)))
        except Exception:  # a request waits for the answer
            logger.exception("the pages of a prompt are not passed on")
            path = ""
        if path and not reader.is_read:
            self._later(lambda: self._read_part(request_id, reader, done))
            return
        reader.close()
        done(path)

    # -- of the engine that goes on -------------------------------------------------------------
    def write(self, path: str, done: Callable[[], None]) -> None:
        """Write pages that another engine has computed, as far as there is room; call back."""
        try:
            read = read_pages(path)
            writer = self._engine.prefix_writer(read.prefix.model, read.prefix.keys)
        except (OSError, IzwiError) as error:
            logger.warning("a prompt is computed again: %s", error)
            done()
            return
        if writer.page_bytes != read.prefix.page_bytes:
            logger.error("pages of another size came: engines differ in their settings")
            writer.close()
            done()
            return
        self._write_part(read, writer, done)

    def _write_part(self, read: ReadPages, writer: PrefixWriter, done: Callable[[], None]) -> None:
        count = max(1, _PART_BYTES // writer.page_bytes)
        part = read.pages[writer.num_known : writer.num_known + count]
        try:
            goes_on = len(part) > 0 and writer.write(part)
        except Exception:  # a request waits for the answer
            logger.exception("the rest of a prompt is computed again")
            goes_on = False
        if goes_on:
            self._later(lambda: self._write_part(read, writer, done))
            return
        writer.close()
        done()
