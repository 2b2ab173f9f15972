"""Work in a side stream beside the steps of a model, where the device has streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class SideStream:
    """A second queue of work on a device.

    What is launched in it keeps its order and waits for nothing of the first queue. Who passes
    arrays from one to the other waits for them on the host.
    """

    def __init__(self, device: torch.device):
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(device))

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Launch there what this thread launches; on other devices than CUDA, as always."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield
