"""Fetch checkpoints from the hub into its local cache."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from izwi.errors import IzwiError, ModelNotFound

_PATTERNS = ["*.json", "*.txt", "*.safetensors", "*.jinja", "speech_tokenizer/*"]
_HUB_ID = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}", re.ASCII)


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """How far a model is on its way.

    Attributes:
        stage: Where it is: "resolving", "downloading", "loading", ..
        done_bytes: Bytes of its files that are here; None where the hub's client does not say.
        total_bytes: Bytes of the files that were found so far, those here included.
    """

    stage: str
    done_bytes: int | None = None
    total_bytes: int | None = None


# Called with a DownloadProgress, from any thread. An IzwiError that it raises stops the download.
Report = Callable[[DownloadProgress], None]


def is_hub_id(text: str) -> bool:
    """Return whether a text has the form org/name and is not another path."""
    return _HUB_ID.fullmatch(text) is not None


def fetch(hub_id: str, *, offline: bool = False, report: Report | None = None) -> Path:
    """Fetch the missing files of a checkpoint, and return its folder in the local cache.

    Args:
        hub_id: org/name.
        offline: Never ask the hub.
        report: Called with the progress, instead of bars on the terminal.

    Raises:
        ModelNotFound: There is no such checkpoint, or the hub cannot be reached.
    """
    from huggingface_hub import snapshot_download  # slow to import, and seldom needed

    bars: dict[str, Any] = {} if report is None else {"tqdm_class": _reporting_bar(report)}
    try:
        folder = snapshot_download(
            hub_id, allow_patterns=_PATTERNS, local_files_only=offline, **bars
        )
    except IzwiError:
        raise
    except Exception as error:  # the hub client raises dozens of kinds; the reader needs one line
        where = "the local cache" if offline else "the hub"
        raise ModelNotFound(
            f"{hub_id!r} was not found in {where}: {error}", param="model"
        ) from error
    return Path(folder)


def _reporting_bar(report: Report) -> type[Any]:
    """Make a class of progress bars that draw nothing, and report those that count bytes.

    The client has two of them, for bytes received and bytes written: the one ahead is reported.
    """
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    lock = Lock()
    most = 0

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any):
            self._is_bytes = options.get("unit") == "B"
            self._done = int(options.get("initial") or 0)
            options["disable"] = True
            super().__init__(*args, **options)  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            nonlocal most
            if not self._is_bytes:
                return
            with lock:
                self._done += int(n or 0)
                most = max(most, self._done)
            report(DownloadProgress("downloading", most, int(self.total) if self.total else None))

    return Bar
