"""Fetch checkpoints from the hub into its local cache."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from threading import Lock
from typing import Any

from izwi.errors import InvalidRequest, IzwiError, ModelNotFound

_PATTERNS = ["*.json", "*.txt", "*.safetensors", "*.jinja", "speech_tokenizer/*"]
_PART = ".part"  # of names of files that are not complete
_ATTEMPTS, _TIMEOUT_S, _CHUNK_BYTES = 5, 30.0, 1 << 18
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


def fetch_file(
    hub_id: str,
    pattern: str,
    folder: Path,
    *,
    offline: bool = False,
    report: Report = lambda _: None,
) -> Path:
    """Fetch one file of a repository, and return its path.

    A download that was interrupted goes on where it ended, also that of another process: the hub's
    own client keeps files in its cache, but begins them anew.

    Args:
        hub_id: org/name.
        pattern: Name of the file, with * and ? as in a shell.
        folder: Holds fetched files, each in a folder for its version.
        offline: Never ask the hub.
        report: Called with the progress.

    Raises:
        ModelNotFound: There is no such repository, or the hub cannot be reached.
        InvalidRequest: No file has such a name, or several have; the message lists them.
    """
    from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url

    place = folder / hub_id.replace("/", "--")
    if offline:
        kept = {
            path.relative_to(place).as_posix().partition("/")[2]: path for path in _whole(place)
        }
        return kept[_only_match(hub_id, pattern, list(kept))]
    try:
        name = _only_match(hub_id, pattern, HfApi().list_repo_files(hub_id))
        address = hf_hub_url(hub_id, name)
        found = get_hf_file_metadata(address)
    except IzwiError:
        raise
    except Exception as error:  # as in `fetch`
        raise ModelNotFound(
            f"{hub_id!r} was not found in the hub: {error}", param="model"
        ) from error
    version = re.sub(r"\W", "", found.etag or found.commit_hash or "file")[:16]
    target = place / version / name
    if not target.is_file():
        _download(address, target, found.size, report)
    return target


def _whole(place: Path) -> list[Path]:
    """Return all files of a repository that are complete."""
    return [path for path in sorted(place.rglob("*")) if path.is_file() and path.suffix != _PART]


def _download(address: str, target: Path, size: int | None, report: Report) -> None:
    """Download a file, continuing its part. Raises ModelNotFound if it cannot be finished."""
    import httpx
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + _PART)
    with WeakFileLock(target.with_name(f".{target.name}.lock{_PART}")):
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                _continue(address, part, size, report)
                break
            except (httpx.HTTPError, OSError) as error:
                refused = isinstance(error, httpx.HTTPStatusError)
                if refused or isinstance(error, OSError) or not attempts_left:
                    message = f"{address} could not be downloaded: {error}; the next try goes on"
                    raise ModelNotFound(message, param="model") from error
        part.replace(target)


def _continue(address: str, part: Path, size: int | None, report: Report) -> None:
    """Append the rest of a file to its part. Raises httpx.HTTPError or OSError."""
    import httpx
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    done = part.stat().st_size if part.is_file() else 0
    report(DownloadProgress("downloading", done, size))
    if size is not None and done == size:
        return
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if done:
        headers["Range"] = f"bytes={done}-"
    with httpx.stream(
        "GET", address, headers=headers, follow_redirects=True, timeout=_TIMEOUT_S
    ) as response:
        response.raise_for_status()
        if response.status_code != httpx.codes.PARTIAL_CONTENT:
            done = 0  # the whole file comes
        with part.open("ab" if done else "wb") as file:
            for chunk in response.iter_bytes(_CHUNK_BYTES):
                file.write(chunk)
                done += len(chunk)
                report(DownloadProgress("downloading", done, size))
    if size is not None and done != size:
        part.unlink()
        raise OSError(f"{done} bytes came, {size} were expected")


def _only_match(hub_id: str, pattern: str, listed: list[str]) -> str:
    """Return the one file with a name. Raises InvalidRequest."""
    found = sorted(name for name in listed if fnmatchcase(name, pattern))
    if len(found) == 1:
        return found[0]
    if found:
        raise InvalidRequest(
            f"{pattern!r} matches {len(found)} files of {hub_id}: {', '.join(found[:8])}; "
            "give a pattern that matches one",
            param="file",
        )
    weights = sorted(name for name in listed if name.endswith((".gguf", ".safetensors")))
    names = ", ".join(weights[:16]) or "no weights"
    raise InvalidRequest(f"{pattern!r} matches no file of {hub_id}; it has {names}", param="file")


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
