"""Logging of `izwi serve`, the same in each of its processes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from izwi_api.serve.redaction import redact_records
from izwi_api.settings import LogSettings
from izwi_api.telemetry.log_lines import JsonLines, TextLines
from izwi_api.usage.limits import TokenBucket

logger = logging.getLogger(__name__)

# Warnings and errors of one line of code that are written at once, and then in a minute.
_REPEATS_PER_MINUTE = 20


def log_as_the_server(log: LogSettings) -> None:
    """Write log lines to stderr, without callers' secrets."""
    redact_records()
    stderr = logging.StreamHandler()
    stderr.setFormatter(JsonLines() if log.format == "json" else TextLines())
    logging.basicConfig(level=logging.INFO, handlers=[stderr])
    for module, level in log.levels.items():
        logging.getLogger(module).setLevel(level.upper())
    for handler in logging.getLogger().handlers:
        if not any(isinstance(known, LimitRepeats) for known in handler.filters):
            handler.addFilter(LimitRepeats())


class LimitRepeats(logging.Filter):
    """Leaves out warnings and errors that one line of code repeats, so that no client fills a disk.

    The next one that is written says how many were left out.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        super().__init__()
        self._clock = clock
        # By place in the code, of which there are few; messages hold what clients have sent.
        self._buckets: dict[tuple[str, int], TokenBucket] = {}
        self._left_out: dict[tuple[str, int], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written."""
        if record.levelno < logging.WARNING:
            return True
        place, now_s = (record.pathname, record.lineno), self._clock()
        bucket = self._buckets.get(place) or TokenBucket.full(_REPEATS_PER_MINUTE, now_s)
        if (taken := bucket.consume(now_s)) is None:
            self._left_out[place] = self._left_out.get(place, 0) + 1
            return False
        self._buckets[place] = taken
        if num_left_out := self._left_out.pop(place, 0):
            record.msg = f"{record.getMessage()} ({num_left_out} more like this were left out)"
            record.args = None
        return True


def log_memory(load: Mapping[str, Mapping[str, float]]) -> None:
    """Log how much memory each model takes."""
    for name, figures in load.items():
        pages, page_bytes = int(figures["pages"]), int(figures["page_bytes"])
        logger.info(
            "%s: %d pages of %d KiB for keys and values, %.0f MiB",
            *(name, pages, page_bytes >> 10, pages * page_bytes / (1 << 20)),
        )
        if figures["shared_bytes"]:  # a device of its own, with a plan
            parts = ("weight_bytes", "state_bytes", "graph_bytes", "shared_bytes")
            logger.info(
                "%s: %.0f MiB weights, %.0f MiB codec state, %.0f MiB graphs, %.0f MiB shared",
                *(name, *(figures[part] / (1 << 20) for part in parts)),
            )
