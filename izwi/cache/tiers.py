"""Lower tiers of pages: host memory, a file, or dropped.

Independent of tensors: a page is the bytes from `PagedKV.read_pages`. A dropped page can always be
rebuilt from its request's log, so failures here are not errors of the loop: a store that cannot
keep a page reports it, and the page is dropped.
"""

from __future__ import annotations

import logging
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from io import FileIO
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_log = logging.getLogger(__name__)


class Tier(StrEnum):
    """Where an evicted page goes, in order of preference at equal cost."""

    HOST = "host"
    DISK = "disk"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class TierCosts:
    """Seconds it takes to move a page between tiers, or to rebuild it.

    The defaults are typical of a server's bus and flash storage; measured values are better.

    Attributes:
        rebuild_s_per_position: Prefill, in a step that has other rows too.
        host_copy_s_per_byte: One copy between the device and the host.
        disk_write_s_per_byte: From the host's memory to the file.
        disk_read_s_per_byte: From the file to the host's memory.
    """

    rebuild_s_per_position: float
    host_copy_s_per_byte: float = 1e-10
    disk_write_s_per_byte: float = 1e-9
    disk_read_s_per_byte: float = 5e-10


def cheapest(
    num_positions: int,
    num_bytes: int,
    costs: TierCosts,
    tiers: Collection[Tier] = (Tier.HOST, Tier.DISK, Tier.DROP),
) -> Tier:
    """Return the cheapest tier for evicted positions that will be used again.

    Args:
        num_positions: Positions that would have to be rebuilt.
        num_bytes: Bytes that would have to be kept.
        costs: The cost of each tier.
        tiers: The available tiers.
    """
    there_and_back_s = 2 * num_bytes * costs.host_copy_s_per_byte
    disk_s = num_bytes * (costs.disk_write_s_per_byte + costs.disk_read_s_per_byte)
    seconds = {
        Tier.HOST: there_and_back_s,
        Tier.DISK: there_and_back_s + disk_s,
        Tier.DROP: num_positions * costs.rebuild_s_per_position,
    }
    return min((tier for tier in Tier if tier in tiers), key=seconds.__getitem__)


class PageStore:
    """Pages of one size in host memory; the least recently used ones overflow to a file.

    `put` returns a handle, an int that is never reused. The page is kept until its owner drops it,
    or the store drops it for lack of space; `take_dropped` lists the latter.

    Attributes:
        costs: Decides between the tiers at every put; may be replaced as measurements come in.
        num_host_hits: Pages that were read from host memory so far.
        num_disk_hits: Pages that were read from the file so far.
    """

    def __init__(
        self,
        page_bytes: int,
        costs: TierCosts,
        host_bytes: int,
        disk_bytes: int = 0,
        folder: Path | None = None,
    ):
        """Set up the tiers; neither takes memory before it is used.

        Args:
            page_bytes: Bytes of every page.
            costs: See `TierCosts`.
            host_bytes: Host memory that pages may take.
            disk_bytes: Disk that pages may take.
            folder: Where the file is made, by default the system's folder for temporary files.
                The file has no name there, so it is gone with the process, however that ends.
        """
        self.page_bytes, self.costs = page_bytes, costs
        self._host_capacity = host_bytes // page_bytes
        # the longest unused first; with the positions that it saves rebuilding
        self._host: OrderedDict[int, tuple[Bytes, int]] = OrderedDict()
        self._disk = _DiskTier(page_bytes, disk_bytes // page_bytes, folder)
        self._handles = count()
        self._dropped: list[int] = []
        self.num_host_hits = self.num_disk_hits = 0

    @property
    def num_host(self) -> int:
        """Pages in host memory."""
        return len(self._host)

    @property
    def num_disk(self) -> int:
        """Pages in the file."""
        return len(self._disk)

    def tier_for(self, num_positions: int) -> Tier:
        """Return the first tier for a page that is evicted now. With DROP, do not even read it.

        Args:
            num_positions: Positions that would have to be rebuilt without it.
        """
        return self._choose(num_positions, host=self._host_capacity > 0)

    def put(self, page: Bytes, num_positions: int) -> int | None:
        """Store a copy of a page.

        Args:
            page: (page_bytes,).
            num_positions: Positions that would have to be rebuilt without it.

        Returns:
            Its handle, or None if it is not kept.

        Raises:
            ValueError: The page is of another shape or dtype, which is our own bug.
        """
        if page.shape != (self.page_bytes,) or page.dtype != np.uint8:
            raise ValueError(f"a page is {self.page_bytes} bytes, got {page.shape} {page.dtype}")
        tier, handle = self.tier_for(num_positions), next(self._handles)
        if tier is Tier.HOST:
            return handle if self._put_host(handle, page, num_positions) else None
        if tier is Tier.DISK:
            return handle if self._put_disk(handle, page) else None
        return None

    def get(self, handle: int) -> Bytes | None:
        """Bytes of a page, (page_bytes,), not to be written to; it stays where it is.

        None if it has been dropped, or can no longer be read, which drops it.
        """
        if handle in self._host:
            self._host.move_to_end(handle)
            self.num_host_hits += 1
            return self._host[handle][0]
        page = self._disk.get(handle)
        self.num_disk_hits += page is not None
        return page

    def drop(self, handle: int) -> None:
        """Drop a page; does nothing if it was dropped already."""
        if self._host.pop(handle, None) is None:
            self._disk.drop(handle)

    def take_dropped(self) -> list[int]:
        """Return the handles that the store has dropped since the last call."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def close(self) -> None:
        """Drop all pages and free the file."""
        self._host.clear()
        self._disk.close()

    def _choose(self, num_positions: int, host: bool) -> Tier:
        tiers = {Tier.DROP}
        if host:
            tiers.add(Tier.HOST)
        if self._disk.capacity:
            tiers.add(Tier.DISK)
        return cheapest(num_positions, self.page_bytes, self.costs, tiers)

    def _put_host(self, handle: int, page: Bytes, num_positions: int) -> bool:
        while len(self._host) >= self._host_capacity:
            oldest, (bytes_, saves) = self._host.popitem(last=False)
            if self._choose(saves, host=False) is not Tier.DISK or not self._put_disk(
                oldest, bytes_
            ):
                self._dropped.append(oldest)
        try:
            kept = page.copy()
        except MemoryError:
            return False
        kept.flags.writeable = False
        self._host[handle] = kept, num_positions
        return True

    def _put_disk(self, handle: int, page: Bytes) -> bool:
        oldest = self._disk.make_room()
        if oldest is not None:
            self._dropped.append(oldest)
        return self._disk.put(handle, page)


class _DiskTier:
    """Pages in an unlinked file, least recently used first.

    Plain reads and writes: a write to a full disk then fails where it can be caught, while one
    through a memory map kills the process.
    """

    def __init__(self, page_bytes: int, capacity: int, folder: Path | None):
        self.capacity = capacity  # pages; reduced to those stored once the disk is full
        self._page_bytes, self._folder = page_bytes, folder
        self._file: FileIO | None = None
        self._places: OrderedDict[int, int] = OrderedDict()  # handle to place in the file
        self._free: list[int] = []
        self._num_places = 0

    def __len__(self) -> int:
        return len(self._places)

    def make_room(self) -> int | None:
        """Drop the least recently used page if the tier is full; return its handle."""
        if not self._places or len(self._places) < self.capacity:
            return None
        handle = next(iter(self._places))
        self.drop(handle)
        return handle

    def put(self, handle: int, page: Bytes) -> bool:
        """Write a page. Return False if that fails; the file then stops growing."""
        if len(self._places) >= self.capacity:
            return False
        place = self._free.pop() if self._free else self._num_places
        try:
            file = self._file or self._open()
            file.seek(place * self._page_bytes)
            left = np.ascontiguousarray(page).data
            while left:
                left = left[file.write(left) :]
        except OSError as error:
            self.capacity = len(self._places)
            _log.warning("the page file takes no more than %d pages: %s", self.capacity, error)
            return False
        self._num_places = max(self._num_places, place + 1)
        self._places[handle] = place
        return True

    def get(self, handle: int) -> Bytes | None:
        if handle not in self._places or self._file is None:
            return None
        self._places.move_to_end(handle)
        page = np.empty(self._page_bytes, dtype=np.uint8)
        try:
            self._file.seek(self._places[handle] * self._page_bytes)
            left = page.data
            while left:
                num_read = self._file.readinto(left)
                if not num_read:
                    raise OSError("the file ends before the page does")
                left = left[num_read:]
        except OSError as error:
            _log.warning("a page could not be read back: %s", error)
            self.drop(handle)
            return None
        return page

    def drop(self, handle: int) -> None:
        place = self._places.pop(handle, None)
        if place is not None:
            self._free.append(place)

    def close(self) -> None:
        self.capacity = 0
        self._places.clear()
        if self._file is not None:
            self._file.close()

    def _open(self) -> FileIO:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        file = tempfile.TemporaryFile(buffering=0, dir=self._folder)  # noqa: SIM115
        weakref.finalize(self, file.close)  # an engine may be dropped without `close`
        self._file = file
        return file
