"""Videos that are drawn or were drawn in the last hour, in a folder that API servers share."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Literal

import msgspec

from izwi.errors import FileNotStored

KEPT_S = 3600
# Videos that have ended; the oldest make room for others.
MAX_KEPT = 50
_ID = re.compile(r"video_[0-9a-f]{32}", re.ASCII)
Status = Literal["queued", "in_progress", "completed", "failed"]


class Video(msgspec.Struct, kw_only=True):
    """A video. Times are whole seconds since 1970.

    Attributes:
        owner: Name of the caller's key, or empty; no other caller sees it.
        size: Like "1280x720"; "auto" until the model's own is known.
        progress: Percent.
        pid: The API server that waits for it.
        error: Code and message, if it failed.
    """

    id: str
    owner: str
    model: str
    prompt: str
    seconds: str
    size: str
    created_at: int
    pid: int
    status: Status = "queued"
    progress: int = 0
    completed_at: int | None = None
    expires_at: int | None = None
    error: tuple[str, str] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.status in ("queued", "in_progress")


def new_video_id() -> str:
    """Return an id that cannot be guessed."""
    return f"video_{secrets.token_hex(16)}"


class VideoStore:
    """The videos of a server. Every method blocks on the disk.

    Files that did not change are read once.

    Args:
        folder: Where they are; created when needed.
        clock: Seconds since 1970.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time):
        self._folder, self._clock = folder, clock
        # what was read of each file, with what changes when it is replaced
        self._known: dict[Path, tuple[tuple[int, int], Video]] = {}

    def now_s(self) -> int:
        """Return the time, in whole seconds since 1970."""
        return int(self._clock())

    def add(self, video: Video) -> None:
        """Keep a new video, and remove old ones."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        ended = [one for one in self._all() if not one.is_open]
        for place, old in enumerate(ended):
            if place >= MAX_KEPT - 1 or (old.expires_at or 0) <= self._clock():
                self._remove(old.id)
        self._write(video)

    def num_open(self) -> Counter[str]:
        """Return how many have not ended, by owner."""
        return Counter(video.owner for video in self._all() if video.is_open)

    def videos(self, owner: str) -> list[Video]:
        """Return the videos of a caller, the newest first."""
        return [one for one in self._all() if one.owner == owner and self._is_kept(one)]

    def find(self, owner: str, video_id: str) -> Video:
        """Return a video. Raises FileNotStored."""
        video = self._read(self._path(video_id)) if _ID.fullmatch(video_id) else None
        if video is None or video.owner != owner or not self._is_kept(video):
            raise FileNotStored(f"there is no video {video_id[:64]!r}", param="video_id")
        return video

    def save(self, video: Video) -> bool:
        """Store a change. Returns False if it was deleted meanwhile."""
        if not self._path(video.id).exists():
            return False
        self._write(video)
        return True

    def complete(self, video: Video, content: bytes) -> None:
        """Store the end of a video with its file."""
        if self._path(video.id).exists():
            self.content(video.id).write_bytes(content)
            now = self.now_s()
            video.status, video.progress = "completed", 100
            video.completed_at, video.expires_at = now, now + KEPT_S
            self._write(video)

    def fail(self, video: Video, code: str, message: str) -> None:
        """Store that a video failed, and why."""
        video.status, video.error = "failed", (code, message)
        video.expires_at = self.now_s() + KEPT_S
        self.save(video)

    def content(self, video_id: str) -> Path:
        """Return where the file of a video is; the id is one of ours."""
        return self._folder / f"{video_id}.mp4"

    def delete(self, owner: str, video_id: str) -> None:
        """Delete a video; if it is being drawn, that ends. Raises FileNotStored."""
        self._remove(self.find(owner, video_id).id)

    def _path(self, video_id: str) -> Path:
        return self._folder / f"{video_id}.json"

    def _is_kept(self, video: Video) -> bool:
        return video.expires_at is None or video.expires_at > self._clock()

    def _all(self) -> list[Video]:
        """Return all videos, the newest first."""
        read = [self._read(path) for path in self._folder.glob("video_*.json")]
        found = [video for video in read if video is not None]
        return sorted(found, key=lambda video: (video.created_at, video.id), reverse=True)

    def _read(self, path: Path) -> Video | None:
        try:
            info = path.stat()
            version = info.st_ino, info.st_mtime_ns
            known = self._known.get(path)
            if known is None or known[0] != version:
                known = version, msgspec.json.decode(path.read_bytes(), type=Video)
                self._known[path] = known
        except OSError:
            self._known.pop(path, None)
            return None
        video = copy(known[1])
        if video.is_open and not _is_alive(video.pid):
            self.fail(video, "engine_stopped", "the API server that waited for it has ended")
        return video

    def _write(self, video: Video) -> None:
        path = self._path(video.id)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(msgspec.json.encode(video))
        part.replace(path)

    def _remove(self, video_id: str) -> None:
        for path in (self._path(video_id), self.content(video_id)):
            path.unlink(missing_ok=True)
            self._known.pop(path, None)


def _is_alive(pid: int) -> bool:
    with suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True
