"""Files that this process has open and that have no name."""

from __future__ import annotations

from pathlib import Path


def nameless_files(folder):
    """Those that lie in a folder."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            link = str(fd.readlink())
        except FileNotFoundError:  # the one that lists them, or one that was closed meanwhile
            continue
        found += [link] if link.startswith(f"{folder}/") else []
    return found
