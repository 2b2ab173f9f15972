"""Logging of `izwi serve`, the same in each of its processes."""

from __future__ import annotations

import logging
from collections.abc import Mapping

logger = logging.getLogger(__name__)


def log_as_the_server() -> None:
    """Write log lines to stderr."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")


class WithoutQueries(logging.Filter):
    """Removes query strings from logged paths: some clients put a key or text there."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, with its path cut at the question mark."""
        if isinstance(record.args, tuple):
            record.args = tuple(
                value.partition("?")[0] if isinstance(value, str) and value[:1] == "/" else value
                for value in record.args
            )
        return True


def leave_queries_out() -> None:
    """Remove query strings from uvicorn's log lines."""
    for name in ("uvicorn.access", "uvicorn.error"):
        logging.getLogger(name).addFilter(WithoutQueries())


def tell_memory(load: Mapping[str, Mapping[str, float]]) -> None:
    """Log how much memory each model's keys and values may take."""
    for name, figures in load.items():
        pages, page_bytes = int(figures["pages"]), int(figures["page_bytes"])
        logger.info(
            "%s: %d pages of %d KiB for keys and values, %.0f MiB",
            *(name, pages, page_bytes >> 10, pages * page_bytes / (1 << 20)),
        )
