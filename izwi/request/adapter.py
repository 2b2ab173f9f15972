"""Which adapter a request runs with: its files, and what names their contents."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class AdapterRef(Struct, frozen=True, array_like=True):
    """An adapter that engines can read.

    Attributes:
        name: What callers ask for: "MODEL:ADAPTER".
        folder: Its folder, on the engine's machine.
        digest: Hexadecimal digest of its files. Adapters with the same one are the same.
    """

    name: str
    folder: str
    digest: str

    @property
    def model(self) -> str:
        """Name of the model that it is an adapter of."""
        return self.name.rpartition(":")[0]

    @property
    def salt(self) -> int:
        """63 bits that are part of all content keys of its requests."""
        return int(self.digest[:16], 16) >> 1


def salted(keys: Sequence[int], adapter: AdapterRef | None) -> list[int]:
    """Return content keys as they are with an adapter, which no request without it has.

    Keys and values depend on the adapter, so pages are shared only among its requests.
    """
    if adapter is None:
        return list(keys)
    salt = adapter.salt
    return [key ^ salt for key in keys]
