"""Run work on a side stream, concurrent to a model's steps, if the device has streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class SideStream:
    """A second stream of a device.

    Its work runs in order and does not wait for the main stream. A caller that passes arrays from
    one stream to the other must synchronise on the host.
    """

    def __init__(self, device: torch.device):
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(device))

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Run this thread's launches on the stream; no effect on devices other than CUDA."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield
