"""The lines that `izwi serve` prints when it is ready: the addresses of the page and the API."""

from __future__ import annotations

import logging
from urllib.parse import urlsplit

from izwi_api.console import messages
from izwi_api.telemetry.log_lines import logs_json

logger = logging.getLogger(__name__)

# Addresses that a server can listen at but no browser can open.
_ANY = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


def announce(url: str) -> None:
    """Print the addresses of a server that is ready, or log them where lines are JSON.

    Args:
        url: Where it listens, like http://0.0.0.0:8000.
    """
    page = page_url(url)
    if logs_json():
        logger.info("izwi is ready", extra={"fields": {"page": page, "api": f"{page}/v1"}})
        return
    messages().print(f"izwi is ready. Page: {page}  API: {page}/v1  (Ctrl+C stops)", markup=False)


def page_url(url: str) -> str:
    """Return the address that a browser on this machine opens."""
    parts = urlsplit(url)
    host = _ANY.get(parts.hostname or "", parts.netloc.rpartition(":")[0])
    return f"{parts.scheme}://{host}:{parts.port}"
