"""Which of a checkpoint's packed weights a backend keeps, and a warning about the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from pathlib import Path

from izwi.checkpoints.linear_spec import LinearForm

logger = logging.getLogger(__name__)


class KeptPacked:
    """Decides while a checkpoint is read.

    Args:
        packable: Weights that the model takes packed, too.
        keeps: Whether the backend multiplies a form as it is.
    """

    def __init__(self, packable: Container[str], keeps: Callable[[LinearForm], bool]):
        self._packable, self._keeps = packable, keeps
        self._num_widened, self._num_bytes = 0, 0

    def __call__(self, name: str, form: LinearForm) -> bool:
        """Return whether a weight stays packed."""
        if name not in self._packable:
            return False
        if self._keeps(form):
            return True
        self._num_widened += 1
        self._num_bytes += form.num_bytes
        return False

    def warn(self, folder: Path, device: str, dtype: str) -> None:
        """Log how many weights were widened that could have stayed packed elsewhere."""
        if self._num_widened:
            logger.warning(
                "%s: %d packed weights (%.1f MB) were widened to %s, because %s has no product "
                "for their form; docs/models.md says which have one",
                folder,
                self._num_widened,
                self._num_bytes / 1e6,
                dtype,
                device,
            )
